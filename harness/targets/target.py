"""Where cells run: what a session needs of it. This machine (`local`), or a device that is reached
over a link (`remote`). Touches nothing.

Paths are the target's. A program that is started goes on by itself, and everything that it has to
say is in its files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Protocol

from harness.errors import DeviceError, HarnessError
from harness.records import TargetId
from harness.targets.link import Finished

# in the directory of a campaign: locked for as long as a launcher of its cells lives
CELL_LOCK = ".cell.lock"
# of an installed file, at the end of the line
CHANGED = "the cell that ran meanwhile does not count; restore the file, and resume"


class CellLost(HarnessError):  # noqa: N818 - nothing is wrong with the cell
    """The cell under way cannot be known any more (the device restarted, or did not hear from us
    for too long): it does not count, and is to be run again."""


class DeviceBusy(DeviceError):  # noqa: N818
    """Another campaign measures on the device; the message names it."""


@dataclass(frozen=True)
class Owner:
    """Who measures on a device. `token` tells one campaign from another; a resumed one keeps it."""

    token: str
    user: str
    host: str
    pid: int
    directory: str  # of the campaign, on `host`


@dataclass(frozen=True)
class PageCache:
    """Bytes of some files that were in the page cache before and after they were evicted.

    None: this system does not tell.
    """

    before_bytes: int | None
    after_bytes: int | None


class Running(Protocol):
    """A program on the target, from its start to its end."""

    def poll(self) -> int | None:
        """Exit code (negative: the signal), or None while it runs, or while nobody knows.

        Raises CellLost, or DeviceError when the target stays away.
        """

    def terminate(self) -> None:
        """Ask it to end (SIGTERM); does not wait."""

    def kill(self) -> None:
        """End it and whatever is left of its process group (SIGKILL), and wait for that."""


class Target(Protocol):
    """Put, get, run. All methods raise DeviceError, one line, for what goes wrong there."""

    id: TargetId

    def call(self, argv: Sequence[str], *, timeout_s: float, stdin: bytes = b"") -> Finished:
        """Run a short program there, to its end, without settings of the user's for engines."""

    def claim(self, owner: Owner) -> None:
        """Take the device for one campaign, until `close` or until the harness is gone.

        Raises DeviceBusy when another campaign has it.
        """

    def install(self, file: Path, sha256: str, beside: str | None = None) -> PurePath:
        """Where on the target a file with this content is for good; it is put there when absent.

        Files with the same `beside` (a hash over all of them) are in one directory.
        """

    def install_launcher(self, file: Path, sha256: str) -> PurePath:
        """As `install`, for the program by which a device does most of what is asked here."""

    def device_key(self) -> str | None:
        """What tells this device from others, as a hash; None where it shows nothing of the kind.

        The name does not: an address or a cable may lead to another device tomorrow.
        """

    def vouch(self) -> None:
        """After a cell: it ran what was installed, on a device that was ours alone.

        Raises CellLost where another campaign may have measured meanwhile, DeviceError where a file
        is not as it was installed.
        """

    def work_dir(self, cell_dir: Path) -> PurePath:
        """Where on the target the cell whose files shall end up in `cell_dir` is to run."""

    def put(self, source: Path, destination: PurePath) -> None:
        """Copy a file from here to the target, unless it is there already."""

    def get(self, source_dir: PurePath, destination_dir: Path) -> None:
        """Copy the files of a cell's directory on the target to here, whole and checked.

        Raises CellLost when they may not be what the cell wrote.
        """

    def clear(self, directory: PurePath) -> None:
        """Remove what a cell has left in its work directory, where that is not its directory here:
        before the cell, since an earlier attempt may have been killed, and once it is recorded.
        """

    def run(
        self,
        argv: Sequence[str],
        *,
        log: PurePath,
        lock: PurePath,
        tails: Mapping[PurePath, int],
    ) -> Running:
        """Start the launcher in a session of its own; its stdout and stderr go to `log`.

        `lock` is a file that stays locked for as long as the program lives, even when the harness
        is gone: see `is_locked`. `tails`: the files of which `tail` will be asked, and bytes.
        """

    def is_locked(self, lock: PurePath) -> bool:
        """Does a program started with this lock, or a descendant of one, still live?"""

    def end_holders(self, lock: PurePath) -> None:
        """Ask the programs that keep a lock to end (SIGTERM)."""

    def tail(self, path: PurePath, size: int) -> bytes:
        """The last `size` bytes of a file that may still grow, as far as they are known here.

        Of a device: of a file among the `tails` of what runs, as it was about a second ago.
        """

    def evict_page_cache(self, files: Iterable[PurePath]) -> PageCache:
        """Drop files from the page cache, so that a cell reads them from storage again."""

    def free_bytes(self, directory: PurePath) -> int:
        """Space left for files below a directory that exists."""

    def keep(self) -> None:
        """Keep hold of the device while nothing else is asked of it; to be called every second.

        Raises DeviceError when it stays away.
        """

    def heed(self, nap: Callable[[float], None]) -> None:
        """Wait with `nap` from now on: it sleeps, and raises when a stop was asked for."""

    def close(self) -> None:
        """Let go of it; never raises."""
