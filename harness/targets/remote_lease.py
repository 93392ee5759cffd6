"""A device that is ours for a campaign: its lock, held by a process there, and the beat (`heart`).

Should this process die, the device ends our programs `lease_s` after it last heard from us.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import PurePath, PurePosixPath

from harness.errors import DeviceError, HarnessError
from harness.targets.heart import Heart, Pulse
from harness.targets.link import Link, LinkLost
from harness.targets.lockfile import busy
from harness.targets.remote_shell import RemoteShell
from harness.targets.target import CELL_LOCK, Owner

BEAT = "beat"
EXIT_BUSY = 7
# A device that is silent for longer, or for a third of the lease, is not there: what is left of the
# lease has to be enough for connecting again.
MAX_SILENT_S = 10.0


class RemoteLease:
    """One device's. Used by one thread.

    `boot_id`, `holder`: of the device, and of the process that holds the lock there, when last
    looked at; another than before says that it was lost meanwhile. `restarted`: until it is heeded.
    """

    def __init__(
        self,
        shell: RemoteShell,
        link: Link,
        *,
        device_lock: str,
        lease_s: float,
        say: Callable[[str], None],
    ) -> None:
        """Asks nothing of the device yet."""
        self.boot_id = ""
        self.holder: int | None = None
        self.restarted = False
        self.owner: Owner | None = None
        self._shell = shell
        self._link = link
        self._device_lock = device_lock
        self._lease_s = lease_s
        self._say = say
        self._heart: Heart | None = None
        self._tails: dict[PurePath, int] = {}
        self._told_of_beats = False

    @property
    def campaign(self) -> PurePosixPath:
        """The campaign's directory there. Raises DeviceError before the device is claimed."""
        if self.owner is None:
            raise DeviceError(f"{self._shell.name}: not claimed")
        return self._shell.home / "campaigns" / self.owner.token

    @property
    def beat_flags(self) -> list[str]:
        """For a launcher that is to end when the lease does."""
        return ["--beat-file", str(self.campaign / BEAT), "--lease-s", f"{self._lease_s:g}"]

    def claim(self, owner: Owner) -> None:
        """Take the device's lock, held there by a process of ours, and start to beat."""
        self.owner = owner
        self._shell.make_dir(self.campaign)
        try:
            self._shell.steadily(self.hold)
        except DeviceError:
            with contextlib.suppress(HarnessError):
                self._shell.call(["rmdir", "--", str(self.campaign)])
            self.owner = None
            raise
        self._shell.steadily(self._start_heart)

    def hold(self) -> None:
        """Hold the device's lock, still or again; raises DeviceBusy, LinkLost."""
        assert self.owner is not None  # noqa: S101 - called by `claim` and after it
        args = ["hold", "--lock", self._device_lock]
        args += ["--owner", json.dumps(dataclasses.asdict(self.owner))]
        args += self.beat_flags
        args += ["--while", str(self.campaign / CELL_LOCK)]
        args += ["--log", str(self.campaign / "hold.txt")]
        done = self._shell.once([str(self._shell.installed_launcher()), *args])
        answer = self._shell.answer("hold", done, also=(EXIT_BUSY,))
        if not answer.get("held"):
            age = answer.get("age_s")
            by = answer.get("by")
            since = by.get("since_monotonic_ms") if isinstance(by, dict) else None
            now = since / 1e3 + age if since is not None and age is not None else None
            raise busy(self._shell.name, json.dumps(by).encode(), now)
        self.holder = answer.get("pid")

    # --- the beat ---

    def attend(self, tails: Mapping[PurePath, int]) -> None:
        """From now on each answer brings the ends of these files."""
        self._tails = dict(tails)
        self._shell.steadily(self._start_heart)

    def _start_heart(self) -> None:
        if self._heart is not None:
            self._heart.stop()
        argv = [str(self._shell.installed_launcher()), "attend"]
        argv += ["--lock", str(self.campaign / CELL_LOCK)]
        # a host that is cut off without a word is not attended for ever
        argv += self.beat_flags
        for path, size in self._tails.items():
            argv += ["--tail", str(path), str(size)]
        silent_s = min(MAX_SILENT_S, self._lease_s / 3)
        self._heart = Heart(self._link.open(argv), silent_s=silent_s)
        self.boot_id = self._heart.first_pulse().boot_id

    def pulse(self) -> Pulse:
        """The last answer of the device; after a break the first since."""

        def ask() -> Pulse:
            if self._heart is None or self._heart.pulse is None:
                raise LinkLost("the device is not attended")
            return self._heart.pulse

        pulse = self._shell.steadily(ask)
        if pulse.beat_error is not None and not self._told_of_beats:
            self._told_of_beats = True
            self._say(
                f"{self._shell.name}: our sign of life cannot be noted there ({pulse.beat_error}); "
                f"the device will end the cell {self._lease_s:g} s after the last one that could"
            )
        return pulse

    def tail(self, path: PurePath, size: int) -> bytes:
        """The end of one of the files, as of the last beat."""
        pulse = None if self._heart is None else self._heart.pulse
        if pulse is None or path not in self._tails:
            return b""
        place = list(self._tails).index(path)
        return pulse.tails[place][-size:] if place < len(pulse.tails) else b""

    def keep(self) -> None:
        """Connect again where that is needed, before the device has given us up."""
        if self._heart is not None:
            self._shell.steadily(lambda: None)

    # --- when the link breaks ---

    def lost(self) -> str | None:
        """Why the device is known to be away; None while it is not."""
        return None if self._heart is None else self._heart.lost

    def drop(self) -> None:
        """Stop beating; the lease goes on from the last beat."""
        if self._heart is not None:
            heart, self._heart = self._heart, None
            heart.stop()

    def take_up(self) -> None:
        """On a new connection: the lock and the beat, where there were any. Raises LinkLost."""
        if self.owner is None or self._shell.launcher is None:
            return
        boot = self.boot_id
        self.hold()
        self._start_heart()
        self.restarted = self.restarted or self.boot_id != boot

    def let_go(self) -> None:
        """Release the lock, and clear away the campaign's files unless a cell still writes them."""
        assert self.owner is not None  # noqa: S101 - it holds
        self._shell.verb(
            *("release", "--lock", self._device_lock, "--token", self.owner.token), retry=False
        )
        lock = str(self.campaign / CELL_LOCK)
        if not self._shell.verb("locked", lock, retry=False)["locked"]:
            self._shell.once(["rm", "-rf", "--", str(self.campaign)])
