"""One campaign at a time on a device: takes it, or waits for it. Goes through the target."""

from __future__ import annotations

import getpass
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from harness.targets.target import DeviceBusy, Owner, Target
from harness.words import duration

ASK_AGAIN_S = 2.0


def owner_of(campaign_dir: Path) -> Owner:
    """This process, for a campaign; a campaign's id is unlike any other."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # no name for the number
        user = str(os.getuid())
    directory = campaign_dir.absolute()
    return Owner(directory.name, user, socket.gethostname(), os.getpid(), str(directory))


def claim(
    target: Target,
    owner: Owner,
    *,
    wait_s: float,
    say: Callable[[str], None],
    nap: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Take the device; where another campaign has it, wait so long for it.

    Raises DeviceBusy when that did not end in time.
    """
    began, told = clock(), False
    while True:
        try:
            target.claim(owner)
            break
        except DeviceBusy as e:
            left = began + wait_s - clock()
            if left <= 0:
                raise
            if not told:
                say(f"{str(e).partition(';')[0]}; waiting for it, {duration(wait_s)} at most")
                told = True
            nap(min(ASK_AGAIN_S, left))
    if told:
        say(f"{target.id.name}: is free after {duration(clock() - began)}")
