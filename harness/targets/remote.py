"""A device behind a link: `Target` by means of the launcher that was put there.

A program that was started goes on when the link breaks, and a link that broke is made again; only
when the device stays away for `reconnect_s` does anything fail. Should this process die, the device
ends our programs `lease_s` after it last heard from us (`heart`).

On the device, below `dir`: `files/<sha256>/NAME` what was installed (engine, model, texts);
`campaigns/<id>/` the work directories of a campaign, its cells' lock and its beat.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, TypeVar

from harness.errors import DeviceError, HarnessError
from harness.records import TargetId
from harness.targets.heart import Heart, Pulse
from harness.targets.link import Finished, Link, LinkLost
from harness.targets.lockfile import busy
from harness.targets.remote_files import RemoteFiles
from harness.targets.remote_running import RemoteRunning
from harness.targets.steady import Steady
from harness.targets.target import CHANGED, CellLost, Owner, PageCache

T = TypeVar("T")

CELL_LOCK = ".cell.lock"
# what tells this device from others, and where a relative path counts from
KEY_AND_HOME = """
cat /etc/machine-id 2>/dev/null
for name in ro.serialno ro.boot.serialno; do getprop "$name" 2>/dev/null; done
printf '\\0%s' "$PWD"
"""
BEAT = "beat"
EXIT_BUSY = 7
CALL_S = 60.0
# to connect once more for letting the device go; its lease does it otherwise
CLOSE_S = 3.0
# A device that is silent for longer, or for a third of the lease, is not there: what is left of the
# lease has to be enough for connecting again.
MAX_SILENT_S = 10.0


class RemoteTarget:
    """`Target` on a device; see there. Used by one thread.

    `say`, `on_transfer`: for a screen; `on_restart`: for what a restart of the device undoes.
    """

    def __init__(
        self,
        link: Link,
        kind: str,
        name: str,
        *,
        directory: str,
        device_lock: str,
        lease_s: float,
        reconnect_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`directory`: of ours on the device, absolute or below the home directory there."""
        self.id = TargetId(kind, name)
        self.say: Callable[[str], None] = lambda _line: None
        self.on_transfer: Callable[[str, int, int], None] = lambda _name, _done, _total: None
        self.on_restart: Callable[[], None] = lambda: None
        self.boot_id = ""
        self._boot_of_cell = ""
        self._link = link
        self.device_lock = device_lock
        self._lease_s = lease_s
        self._launcher: PurePosixPath | None = None
        self._owner: Owner | None = None
        self._holder: int | None = None
        self._holder_of_cell: int | None = None
        self._heart: Heart | None = None
        self._tails: dict[PurePath, int] = {}
        self._told_of_beats = self._restarted = False
        self._steady = Steady(
            link,
            name,
            reconnect_s=reconnect_s,
            advice=f"the device ends what we started there {lease_s:g} s after it last heard from "
            "us; what was measured is kept",
            clock=clock,
        )
        self._steady.say = self._tell
        self._steady.lost = lambda: None if self._heart is None else self._heart.lost
        self._steady.drop, self._steady.take_up = self._drop_heart, self._take_up
        self._steady.after = self._again
        asked = self.call(["sh", "-c", KEY_AND_HOME])
        key, _, home = asked.stdout.rpartition(b"\0")
        if asked.code != 0 or not home:
            raise DeviceError(f"{name}: does not say where it is: {asked.last_words}")
        self._key = _hash_of(key)
        self.home = PurePosixPath(os.fsdecode(home)) / directory
        self._files = RemoteFiles(self)

    # --- programs ---

    def call(
        self, argv: Sequence[str], *, timeout_s: float = CALL_S, stdin: bytes = b""
    ) -> Finished:
        """Run a short program to its end; after a break in the link it is run again."""
        return self.steadily(lambda: self._link.call(argv, timeout_s=timeout_s, stdin=stdin))

    def verb(self, *args: str, timeout_s: float = CALL_S, retry: bool = True) -> dict[str, Any]:
        """What the launcher answers to a verb (docs/launcher.md). Raises DeviceError."""
        argv = [str(self._installed_launcher()), *args]
        if retry:
            done = self.call(argv, timeout_s=timeout_s)
        else:
            done = self._link.call(argv, timeout_s=timeout_s)
        return self._answer(args[0], done)

    def _answer(self, name: str, done: Finished, also: tuple[int, ...] = ()) -> dict[str, Any]:
        if done.code != 0 and done.code not in also:
            raise DeviceError(f"{self.id.name}: {name}: {done.last_words}")
        try:
            answer = json.loads(done.stdout)
            if not isinstance(answer, dict):
                raise ValueError("not an object")
        except ValueError:
            raise DeviceError(
                f"{self.id.name}: the launcher there answered {done.stdout[:80]!r} to {name}"
            ) from None
        return answer

    def install_launcher(self, file: Path, sha256: str) -> PurePath:
        """As `install`, for the program by which the rest is done; makes our directory."""
        made = self.call(["mkdir", "-p", "--", str(self.home)])
        if made.code != 0:
            raise DeviceError(
                f"{self.id.name}: {self.home} cannot be made there: {made.last_words}; "
                "choose another with target.dir=DIR"
            )
        self._launcher = None
        place = self._files.place(file, sha256)
        if self.call([str(place), "--version"]).code != 0:
            self._files.send(file, place, executable=True)
        self._launcher = place
        answer = self._files.digests(place)
        if answer.get(place.name) != sha256:
            self._files.send(file, place, executable=True)
            if self._files.digests(place).get(place.name) != sha256:
                raise DeviceError(f"{self.id.name}: {place} does not arrive there as it was sent")
        self._files.note(place)
        return place

    def _installed_launcher(self) -> PurePosixPath:
        if self._launcher is None:
            raise DeviceError(f"{self.id.name}: the launcher has not been put there yet")
        return self._launcher

    # --- the device as a whole ---

    def claim(self, owner: Owner) -> None:
        """Take the device's lock, held there by a process of ours, and start to beat."""
        self._owner = owner
        self._ensure_dir(self._campaign)
        try:
            self.steadily(self._hold)
        except DeviceError:
            with contextlib.suppress(HarnessError):
                self.call(["rmdir", "--", str(self._campaign)])
            self._owner = None
            raise
        self.steadily(self._start_heart)

    @property
    def _campaign(self) -> PurePosixPath:
        if self._owner is None:
            raise DeviceError(f"{self.id.name}: not claimed")
        return self.home / "campaigns" / self._owner.token

    def _hold(self) -> None:
        """Hold the device's lock, still or again; raises DeviceBusy."""
        assert self._owner is not None  # noqa: S101 - called by `claim` and after it
        args = ["hold", "--lock", self.device_lock]
        args += ["--owner", json.dumps(dataclasses.asdict(self._owner))]
        args += ["--beat-file", str(self._campaign / BEAT), "--lease-s", f"{self._lease_s:g}"]
        args += ["--while", str(self._campaign / CELL_LOCK)]
        args += ["--log", str(self._campaign / "hold.txt")]
        done = self._link.call([str(self._installed_launcher()), *args], timeout_s=CALL_S)
        answer = self._answer("hold", done, also=(EXIT_BUSY,))
        if not answer.get("held"):
            age = answer.get("age_s")
            by = answer.get("by")
            since = by.get("since_monotonic_ms") if isinstance(by, dict) else None
            now = since / 1e3 + age if since is not None and age is not None else None
            raise busy(self.id.name, json.dumps(by).encode(), now)
        self._holder = answer.get("pid")

    def device_key(self) -> str | None:
        """By the machine's id, or a phone's serial number."""
        return self._key

    def _check_key(self) -> None:
        """An address, or a cable, may lead to another device than before."""
        asked = self._link.call(["sh", "-c", KEY_AND_HOME], timeout_s=CALL_S)
        if _hash_of(asked.stdout.rpartition(b"\0")[0]) != self._key:
            raise self._steady.give_up(
                DeviceError(
                    f"{self.id.name}: another device answers in its place; what was measured is "
                    "kept"
                )
            )

    def vouch(self) -> None:
        """See `Target`. The lock may have been lost with the process of ours that holds it."""
        self.steadily(self._hold)
        if self._holder != self._holder_of_cell:
            raise CellLost(
                f"{self.id.name}: the device's lock was lost during the cell, so another campaign "
                "may have measured there"
            )
        for place in self._files.changed():
            raise DeviceError(f"{self.id.name}: {place}: changed on the device; {CHANGED}")

    def _start_heart(self) -> None:
        if self._heart is not None:
            self._heart.stop()
        argv = [str(self._installed_launcher()), "attend"]
        argv += ["--lock", str(self._campaign / CELL_LOCK)]
        argv += ["--beat-file", str(self._campaign / BEAT)]
        # a host that is cut off without a word is not attended for ever
        argv += ["--lease-s", f"{self._lease_s:g}"]
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

        pulse = self.steadily(ask)
        if pulse.beat_error is not None and not self._told_of_beats:
            self._told_of_beats = True
            self.say(
                f"{self.id.name}: our sign of life cannot be noted there ({pulse.beat_error}); the "
                f"device will end the cell {self._lease_s:g} s after the last one that could"
            )
        return pulse

    # --- when the link breaks ---

    def steadily(self, action: Callable[[], T]) -> T:
        """Do something on the link that may be done again; over every break, up to a limit."""
        return self._steady.do(action)

    def _tell(self, line: str) -> None:
        self.say(line)  # whatever that is by then

    def _drop_heart(self) -> None:
        if self._heart is not None:
            heart, self._heart = self._heart, None
            heart.stop()

    def _take_up(self) -> str:
        """On a new connection: the lock and the beat."""
        self._check_key()
        if self._owner is None or self._launcher is None:
            return ""
        boot = self.boot_id
        self._hold()
        self._start_heart()
        self._restarted = self._restarted or self.boot_id != boot
        return "restarted, and " if self._restarted else ""

    def _again(self) -> None:
        if self._restarted:
            self._restarted = False
            self.on_restart()

    def wait(self, seconds: float) -> None:
        """Nap; a stop is the end of all attempts, also of those to clean up there."""
        self._steady.wait(seconds)

    # --- files ---

    def transfer(self, source: Path, destination: str) -> None:
        """Copy a file there; a break is gone on from, where the link can."""
        farthest = 0

        def tell(done: int, total: int) -> None:
            nonlocal farthest
            if done > farthest > 0:
                self._steady.gets_on()
            farthest = max(done, farthest)
            self.on_transfer(source.name, done, total)

        self.steadily(lambda: self._link.put(source, destination, tell))

    def fetch(self, source: str, destination: Path) -> None:
        """Copy a file from there."""
        self.steadily(lambda: self._link.get(source, destination))

    def install(self, file: Path, sha256: str, beside: str | None = None) -> PurePath:
        """Where a file with this content is for good; it is put there when absent, and checked."""
        return self._files.install(
            file, sha256, beside or sha256, executable=os.access(file, os.X_OK)
        )

    def work_dir(self, cell_dir: Path) -> PurePath:
        """`cells/NN-name` of the campaign's directory becomes that of its directory there."""
        if self._owner is None:
            raise DeviceError(f"{self.id.name}: not claimed")
        return self._campaign / cell_dir.absolute().relative_to(self._owner.directory).as_posix()

    def put(self, source: Path, destination: PurePath) -> None:
        """Copy a small file, such as a prompt; its directory is made."""
        try:
            content = source.read_bytes()
        except OSError as e:
            raise DeviceError(f"cannot read {source}: {e.strerror}") from e
        self._files.send_bytes(content, PurePosixPath(destination))

    def get(self, source_dir: PurePath, destination_dir: Path) -> None:
        """Copy the files of a directory to here, each checked by its hash.

        Not over a restart: what a cell wrote last may not have come to the storage.
        """
        try:
            self._files.fetch_all(PurePosixPath(source_dir), destination_dir)
        except DeviceError:
            self._check_boot()
            raise
        self._check_boot()

    def _check_boot(self) -> None:
        if self.boot_id != self._boot_of_cell:
            raise CellLost(f"{self.id.name}: the device restarted before its files were here")

    def clear(self, directory: PurePath) -> None:
        """Remove a directory with all that is in it."""
        done = self.call(["rm", "-rf", "--", str(directory)])
        if done.code != 0:
            raise DeviceError(f"{self.id.name}: {directory} is not removed: {done.last_words}")

    def exists(self, path: PurePath) -> bool:
        """Is there something of that name?"""
        return self.call(["test", "-e", str(path)]).code == 0

    def _ensure_dir(self, directory: PurePath) -> None:
        done = self.call(["mkdir", "-p", "--", str(directory)])
        if done.code != 0:
            raise DeviceError(f"{self.id.name}: {directory} cannot be made: {done.last_words}")

    def free_bytes(self, directory: PurePath) -> int:
        """Space left for files below a directory that exists."""
        done = self.call(["stat", "-f", "-c", "%a %S", "--", str(directory)])
        try:
            blocks, size = map(int, done.stdout.split())
        except ValueError:
            raise DeviceError(
                f"{self.id.name}: the space left in {directory} is not known: {done.last_words}"
            ) from None
        return blocks * size

    def evict_page_cache(self, files: Iterable[PurePath]) -> PageCache:
        """Drop files from the page cache, so that a cell reads them from storage again."""
        answer = self.verb("evict", *map(str, files))
        return PageCache(answer.get("before_bytes"), answer.get("after_bytes"))

    # --- a cell ---

    def run(
        self,
        argv: Sequence[str],
        *,
        log: PurePath,
        lock: PurePath,
        tails: Mapping[PurePath, int],
    ) -> RemoteRunning:
        """Start the launcher, detached; its whole command line travels as a file."""
        launcher, verb, *rest = argv
        own = ["--detach", "--log", str(log), "--lock", str(lock)]
        own += ["--beat-file", str(self._campaign / BEAT), "--lease-s", f"{self._lease_s:g}"]
        work_dir = log.parent
        args = work_dir.with_name(f"{work_dir.name}.argv")
        content = b"".join(os.fsencode(arg) + b"\0" for arg in [verb, *own, *rest])
        self._files.send_bytes(content, PurePosixPath(args))
        self._tails = dict(tails)

        attempts = itertools.count()

        self.steadily(self._hold)
        self._holder_of_cell = self._holder

        def start() -> RemoteRunning:
            pid, self._boot_of_cell = None, self.boot_id
            # after a break: it may have been started, and may be about to
            again = next(attempts) > 0
            if not again or not (self.exists(work_dir / "result.json") or self.is_locked(lock)):
                done = self._link.call([launcher, "--args-file", str(args)], timeout_s=CALL_S)
                pid = self._answer("run", done, also=(EXIT_BUSY,)).get("pid")
            return RemoteRunning(self, work_dir, lock, pid, self.boot_id)

        running = self.steadily(start)
        self.steadily(self._start_heart)
        return running

    def is_locked(self, lock: PurePath) -> bool:
        """Does a program started with this lock still live?"""
        return bool(self.verb("locked", str(lock))["locked"])

    def end_holders(self, lock: PurePath) -> None:
        """Ask the programs that keep a lock to end (SIGTERM)."""
        self.verb("end", str(lock))

    def tail(self, path: PurePath, size: int) -> bytes:
        """The end of a file of what runs, as of the last beat."""
        pulse = None if self._heart is None else self._heart.pulse
        if pulse is None or path not in self._tails:
            return b""
        place = list(self._tails).index(path)
        return pulse.tails[place][-size:] if place < len(pulse.tails) else b""

    def keep(self) -> None:
        """Connect again where that is needed, before the device has given us up."""
        if self._heart is not None:
            self.steadily(lambda: None)

    def heed(self, nap: Callable[[float], None]) -> None:
        """Wait with `nap` for a device that is away."""
        self._steady.nap = nap

    def close(self) -> None:
        """Let the device go, and remove what was ours alone; not on a device that is away."""
        if self._heart is not None:
            self._heart.stop()
            self._heart = None
        if self._holder is not None and self._steady.given_up is None:
            with contextlib.suppress(HarnessError):
                try:
                    self._let_go()
                except LinkLost:  # it ends with a transfer that is interrupted
                    self._steady.reconnect_within(CLOSE_S)
                    self._let_go()
        self._link.close()

    def _let_go(self) -> None:
        """Release the lock, and clear away the campaign's files unless a cell still writes them."""
        assert self._owner is not None  # noqa: S101 - it holds
        self.verb(
            *("release", "--lock", self.device_lock, "--token", self._owner.token), retry=False
        )
        if not self.verb("locked", str(self._campaign / CELL_LOCK), retry=False)["locked"]:
            self._link.call(["rm", "-rf", "--", str(self._campaign)], timeout_s=CALL_S)


def _hash_of(key: bytes) -> str | None:
    """Without the number itself, which is nobody's business."""
    key = key.strip()
    return hashlib.sha256(key).hexdigest()[:16] if key else None
