"""The file by whose lock (flock) one campaign has a device: where it is, what it says.

The launcher holds it on devices (docs/launcher.md, `hold`), this process on its own machine, so
that both exclude each other. It is never removed: what is locked must stay the same file.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from harness.errors import DeviceError
from harness.targets.target import DeviceBusy
from harness.words import duration

# every user of a machine has to find the same file
DEFAULT_LOCK = "/tmp/moe-harness.lock"  # noqa: S108 - opened without following links
LONGEST_NOTICE = 65536


def open_lock(path: Path) -> int:
    """A file descriptor; the file is made, writable for all, when it is absent.

    Without O_CREAT first: in a sticky directory the kernel refuses that for another user's file.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        try:
            return os.open(path, flags)
        except FileNotFoundError:
            fd = os.open(path, flags | os.O_CREAT, 0o666)
            os.fchmod(fd, 0o666)
            return fd
    except OSError as e:
        raise DeviceError(
            f"{path}: the device's lock cannot be opened: {e.strerror}; mend that, or choose "
            "another file for all who use the device: target.device_lock=PATH"
        ) from e


def require_own_content(fd: int, path: Path) -> None:
    """Raises DeviceError, and changes nothing, for a file with content that no holder has written.

    A path that was mistyped can be anybody's file, and a holder empties its own.
    """
    content = os.pread(fd, LONGEST_NOTICE + 1, 0)
    if len(content) <= LONGEST_NOTICE:
        if not content.strip(b"\0"):  # zeros: what a power cut may leave of a notice
            return
        with contextlib.suppress(ValueError, RecursionError):
            about = json.loads(content)
            if isinstance(about, dict) and "owner" in about:
                return
    raise DeviceError(
        f"target.device_lock: {path} is not a device's lock but a file with other content, which "
        "is left as it is; name another file, or remove this one if nobody needs it"
    )


def busy(device: str, content: bytes, monotonic_s: float | None) -> DeviceBusy:
    """Names who has the device, from what the lock file says; whatever it lacks is left out.

    `monotonic_s`: the device's clock now, to tell since when.
    """
    try:
        about = json.loads(content)
        owner = about["owner"]
        who = f"{owner['user']}@{owner['host']}, process {owner['pid']}, {owner['directory']}"
    except (ValueError, TypeError, KeyError):
        about, who = {}, "its lock does not say whose"
    since = about.get("since_monotonic_ms") if isinstance(about, dict) else None
    if isinstance(since, int | float) and monotonic_s is not None:
        who += f", since {duration(max(0.0, monotonic_s - since / 1e3))}"
    return DeviceBusy(
        f"{device}: another campaign measures there ({who}); "
        "try again later, or wait for it with session.wait_for_device_s=SECONDS"
    )
