"""A device behind a link: `Target` by means of the launcher that was put there.

A program that was started goes on when the link breaks, and a link that broke is made again; only
when the device stays away for `reconnect_s` does anything fail (`steady`). What is asked of it:
`remote_shell`, `remote_files`. That it is ours, and what ends there when we do: `remote_lease`.

On the device, below `dir`: `files/<sha256>/NAME` what was installed (engine, model, texts);
`campaigns/<id>/` the work directories of a campaign, its cells' lock and its beat.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePath, PurePosixPath

from harness.errors import DeviceError, HarnessError
from harness.records import TargetId
from harness.targets.link import Finished, Link, LinkLost
from harness.targets.remote_files import RemoteFiles
from harness.targets.remote_lease import EXIT_BUSY, RemoteLease
from harness.targets.remote_running import RemoteRunning
from harness.targets.remote_shell import CALL_S, RemoteShell
from harness.targets.steady import Steady
from harness.targets.target import CHANGED, CellLost, Owner, PageCache

# to connect once more for letting the device go; its lease does it otherwise
CLOSE_S = 3.0


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
        self.device_lock = device_lock
        self._boot_of_cell = ""
        self._holder_of_cell: int | None = None
        self._link = link
        self._steady = Steady(
            link,
            name,
            reconnect_s=reconnect_s,
            advice=f"the device ends what we started there {lease_s:g} s after it last heard from "
            "us; what was measured is kept",
            clock=clock,
        )
        self._steady.say = self._tell
        self._shell = RemoteShell(link, name, directory, self._steady)
        self._shell.on_transfer = self._tell_of_transfer
        self._lease = RemoteLease(
            self._shell, link, device_lock=device_lock, lease_s=lease_s, say=self._tell
        )
        self._steady.lost, self._steady.drop = self._lease.lost, self._lease.drop
        self._steady.take_up, self._steady.after = self._take_up, self._again
        self._files = RemoteFiles(self._shell)

    @property
    def home(self) -> PurePosixPath:
        """The directory of ours on the device."""
        return self._shell.home

    # --- what it tells ---

    def _tell(self, line: str) -> None:
        self.say(line)  # whatever that is by then

    def _tell_of_transfer(self, name: str, done: int, total: int) -> None:
        self.on_transfer(name, done, total)

    def _take_up(self) -> str:
        self._shell.check_key()
        self._lease.take_up()
        return "restarted, and " if self._lease.restarted else ""

    def _again(self) -> None:
        if self._lease.restarted:
            self._lease.restarted = False
            self.on_restart()

    # --- the device as a whole ---

    def call(
        self, argv: Sequence[str], *, timeout_s: float = CALL_S, stdin: bytes = b""
    ) -> Finished:
        """Run a short program to its end; after a break in the link it is run again."""
        return self._shell.call(argv, timeout_s=timeout_s, stdin=stdin)

    def claim(self, owner: Owner) -> None:
        """Take the device's lock, held there by a process of ours, and start to beat."""
        self._lease.claim(owner)

    def device_key(self) -> str | None:
        """By the machine's id, or a phone's serial number."""
        return self._shell.key

    def vouch(self) -> None:
        """See `Target`. The lock may have been lost with the process of ours that holds it."""
        self._shell.steadily(self._lease.hold)
        if self._lease.holder != self._holder_of_cell:
            raise CellLost(
                f"{self.id.name}: the device's lock was lost during the cell, so another campaign "
                "may have measured there"
            )
        for place in self._files.changed():
            raise DeviceError(f"{self.id.name}: {place}: changed on the device; {CHANGED}")

    def keep(self) -> None:
        """Connect again where that is needed, before the device has given us up."""
        self._lease.keep()

    def heed(self, nap: Callable[[float], None]) -> None:
        """Wait with `nap` for a device that is away."""
        self._steady.nap = nap

    def wait(self, seconds: float) -> None:
        """Nap; a stop is the end of all attempts, also of those to clean up there."""
        self._steady.wait(seconds)

    def close(self) -> None:
        """Let the device go, and remove what was ours alone; not on a device that is away."""
        self._lease.drop()
        if self._lease.holder is not None and self._steady.given_up is None:
            with contextlib.suppress(HarnessError):
                try:
                    self._lease.let_go()
                except LinkLost:  # it ends with a transfer that is interrupted
                    self._steady.reconnect_within(CLOSE_S)
                    self._lease.let_go()
        self._link.close()

    # --- files ---

    def install_launcher(self, file: Path, sha256: str) -> PurePath:
        """As `install`, for the program by which the rest is done; makes our directory."""
        made = self.call(["mkdir", "-p", "--", str(self.home)])
        if made.code != 0:
            raise DeviceError(
                f"{self.id.name}: {self.home} cannot be made there: {made.last_words}; "
                "choose another with target.dir=DIR"
            )
        self._shell.launcher = None
        place = self._files.place(file, sha256)
        if self.call([str(place), "--version"]).code != 0:
            self._files.send(file, place, executable=True)
        self._shell.launcher = place
        answer = self._files.digests(place)
        if answer.get(place.name) != sha256:
            self._files.send(file, place, executable=True)
            if self._files.digests(place).get(place.name) != sha256:
                raise DeviceError(f"{self.id.name}: {place} does not arrive there as it was sent")
        self._files.note(place)
        return place

    def install(self, file: Path, sha256: str, beside: str | None = None) -> PurePath:
        """Where a file with this content is for good; it is put there when absent, and checked."""
        return self._files.install(
            file, sha256, beside or sha256, executable=os.access(file, os.X_OK)
        )

    def transfer(self, source: Path, destination: str) -> None:
        """Copy a file there; a break is gone on from, where the link can."""
        self._shell.transfer(source, destination)

    def fetch(self, source: str, destination: Path) -> None:
        """Copy a file from there."""
        self._shell.fetch(source, destination)

    def work_dir(self, cell_dir: Path) -> PurePath:
        """`cells/NN-name` of the campaign's directory becomes that of its directory there."""
        if self._lease.owner is None:
            raise DeviceError(f"{self.id.name}: not claimed")
        here = Path(self._lease.owner.directory)
        return self._lease.campaign / cell_dir.absolute().relative_to(here).as_posix()

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
        if self._lease.boot_id != self._boot_of_cell:
            raise CellLost(f"{self.id.name}: the device restarted before its files were here")

    def clear(self, directory: PurePath) -> None:
        """Remove a directory with all that is in it."""
        self._shell.remove(directory)

    def free_bytes(self, directory: PurePath) -> int:
        """Space left for files below a directory that exists."""
        return self._shell.free_bytes(directory)

    def evict_page_cache(self, files: Iterable[PurePath]) -> PageCache:
        """Drop files from the page cache, so that a cell reads them from storage again."""
        answer = self._shell.verb("evict", *map(str, files))
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
        shell, lease = self._shell, self._lease
        launcher, verb, *rest = argv
        own = ["--detach", "--log", str(log), "--lock", str(lock), *lease.beat_flags]
        work_dir = log.parent
        args = work_dir.with_name(f"{work_dir.name}.argv")
        content = b"".join(os.fsencode(arg) + b"\0" for arg in [verb, *own, *rest])
        self._files.send_bytes(content, PurePosixPath(args))

        attempts = itertools.count()

        shell.steadily(lease.hold)
        self._holder_of_cell = lease.holder

        def start() -> RemoteRunning:
            pid, self._boot_of_cell = None, lease.boot_id
            # after a break: it may have been started, and may be about to
            again = next(attempts) > 0
            started = again and (shell.exists(work_dir / "result.json") or shell.is_locked(lock))
            if not started:
                done = shell.once([launcher, "--args-file", str(args)])
                pid = shell.answer("run", done, also=(EXIT_BUSY,)).get("pid")
            return RemoteRunning(shell, lease, work_dir, lock, pid)

        running = shell.steadily(start)
        lease.attend(tails)
        return running

    def is_locked(self, lock: PurePath) -> bool:
        """Does a program started with this lock still live?"""
        return self._shell.is_locked(lock)

    def end_holders(self, lock: PurePath) -> None:
        """Ask the programs that keep a lock to end (SIGTERM)."""
        self._shell.end_holders(lock)

    def tail(self, path: PurePath, size: int) -> bytes:
        """The end of a file of what runs, as of the last beat."""
        return self._lease.tail(path, size)
