"""The crash-safe store of a campaign: journal, records, resume. Touches its directory only.

`journal.jsonl` holds one JSON event a line, appended and fsynced; a record is written whole
(temporary file, fsync, rename, fsync of the directory) *before* the event that names it. So
whatever the journal says is finished is on disk, whenever the process or the machine dies.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import itertools
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from harness.errors import DeviceError, UsageError
from harness.jsonable import from_json, to_json
from harness.records import CellRecord

JOURNAL = "journal.jsonl"
RECORD = "record.json"
# how a session ends, other than by being killed
ENDS = ("campaign_finished", "campaign_interrupted", "campaign_stopped")
# what is judged of a cell beside its record; traces, which can be large, are not
JUDGED = ("tokens.csv", "device.csv", "telemetry.jsonl", "stdout.txt")
# without these an event says nothing; only a damaged or an edited line lacks them
_NEEDED: dict[str, dict[str, type]] = {
    "cell_started": {"index": int},
    "cell_finished": {"index": int, "record": str, "sha256": str},
}
# a look whether a campaign runs may stand in the way of running it; whoever looks may be held up
TRIES, LOOKED_AT_S = 5, 0.1


@dataclass(frozen=True)
class Event:
    """One line of the journal; `data` is what the event carries beside the three fixed keys."""

    seq: int
    unix_s: float
    event: str
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Finished:
    """Sound records by cell index, and for finished cells that are not sound what is wrong."""

    records: dict[int, CellRecord]
    damaged: dict[int, str]


# --- reading -------------------------------------------------------------------------------------


def parse_journal(content: bytes, where: str = JOURNAL) -> tuple[tuple[Event, ...], bytes]:
    """The events in `content`, and `content` repaired so that more events can be appended.

    A last line without its newline is what a crash leaves behind: it is kept when it is a whole
    event, else it is left out. Raises DeviceError when any other line is damaged.
    """
    *lines, tail = content.split(b"\n")
    events = [_event(line, seq, where) for seq, line in enumerate(lines)]
    if tail:
        with contextlib.suppress(DeviceError):
            events.append(_event(tail, len(lines), where))
            lines.append(tail)
    return tuple(events), b"".join(line + b"\n" for line in lines)


def _event(line: bytes, seq: int, where: str) -> Event:
    try:
        data = json.loads(line)
        if not isinstance(data, dict) or data.pop("seq") != seq:
            raise ValueError("not the event expected here")
        found = Event(seq, float(data.pop("unix_s")), str(data.pop("event")), data)
        for key, kind in _NEEDED.get(found.event, {}).items():
            if type(data.get(key)) is not kind:
                raise ValueError(f"{found.event} has no {key}")
        return found
    except (ValueError, KeyError, TypeError) as e:
        raise DeviceError(f"{where}: line {seq + 1} is damaged ({e})") from e


def read_journal(campaign_dir: Path) -> tuple[Event, ...]:
    """A campaign's events, without locking it. Raises DeviceError when absent or damaged."""
    path = campaign_dir / JOURNAL
    with _named(path):
        content = path.read_bytes()
    return parse_journal(content, str(path))[0]


def is_running(campaign_dir: Path) -> bool:
    """Whether a process, this one or another, holds the campaign's journal open."""
    try:
        fd = os.open(campaign_dir, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as e:
        return e.errno in (errno.EWOULDBLOCK, errno.EACCES)
    finally:
        os.close(fd)
    return False


def finished_cells(campaign_dir: Path, events: Iterable[Event]) -> Finished:
    """The cells whose `cell_finished` event exists; sound when the record has the hash it names."""
    found = Finished({}, {})
    for event in events:
        if event.event != "cell_finished":
            continue
        index = event.data["index"]
        found.records.pop(index, None)
        found.damaged.pop(index, None)
        path = campaign_dir / event.data["record"]
        try:
            content = path.read_bytes()
        except OSError as e:
            found.damaged[index] = f"{path}: {e.strerror}"
            continue
        if hashlib.sha256(content).hexdigest() != event.data["sha256"]:
            found.damaged[index] = f"{path}: changed since it was written"
            continue
        try:
            record = from_json(CellRecord, json.loads(content), str(path))
        except ValueError as e:  # of another version of the harness
            found.damaged[index] = str(e)
            continue
        if record.index == index:
            found.records[index] = record
        else:  # it would count twice, and this one not at all
            found.damaged[index] = f"{path}: is of cell {record.index}"
    return found


def altered_cells(campaign_dir: Path, events: Iterable[Event]) -> dict[int, str]:
    """Finished cells of which a file is not what the record was made from, and which; by index.

    Older versions kept no hashes of these: of their cells nothing is said here.
    """
    last = {e.data["index"]: e.data for e in events if e.event == "cell_finished"}
    found: dict[int, str] = {}
    for index, data in last.items():
        cell_dir = (campaign_dir / data["record"]).parent
        then = files if isinstance(files := data.get("files"), dict) else {}
        try:
            now = hashes_of(cell_dir)
        except DeviceError as e:
            found[index] = str(e)
            continue
        for name in JUDGED:
            if name in then and now.get(name) != then[name]:
                how = "changed since it was written" if name in now else "is gone"
                found.setdefault(index, f"{cell_dir / name}: {how}")
    return found


def hashes_of(cell_dir: Path) -> dict[str, str]:
    """SHA-256 of what is judged of a cell beside its record; of the files that are there."""
    found = {}
    for path in (cell_dir / name for name in JUDGED):
        if path.is_file():
            with _named(path), path.open("rb") as file:
                found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def ended_as(events: Sequence[Event]) -> str | None:
    """The event that a campaign ended with; None where it goes on, or was killed.

    That is its last one: what it was resumed after is not its end any more.
    """
    last = events[-1].event if events else None
    return last if last in ENDS else None


def json_sha256(data: Any) -> str:
    """Of plain data, as the journal knows a plan by; of what its file holds it is the same."""
    return hashlib.sha256(json.dumps(data).encode()).hexdigest()


def load_records(campaign_dir: Path) -> list[CellRecord]:
    """The sound records of a campaign on disk, in order. Raises DeviceError as `read_journal`."""
    records = finished_cells(campaign_dir, read_journal(campaign_dir)).records
    return [records[index] for index in sorted(records)]


# --- writing -------------------------------------------------------------------------------------


class Journal:
    """The journal of one campaign, held open under an exclusive lock of its directory.

    `Journal.open` creates the directory and the file when absent, and repairs a torn last line.
    Every method raises DeviceError naming the path when the disk is full or fails; after that the
    journal is still readable and the campaign can be resumed.
    """

    def __init__(self, campaign_dir: Path, lock_fd: int, fd: int, events: list[Event]) -> None:
        """Use `Journal.open`."""
        self.campaign_dir = campaign_dir
        self.events = events
        self._lock_fd = lock_fd
        self._fd = fd

    @classmethod
    def open(cls, campaign_dir: Path) -> Journal:
        """Raises UsageError when another process runs this campaign, DeviceError when damaged."""
        path = campaign_dir / JOURNAL
        with contextlib.ExitStack() as undo:
            with _named(campaign_dir):
                campaign_dir.mkdir(parents=True, exist_ok=True)
                lock_fd = os.open(campaign_dir, os.O_RDONLY | os.O_DIRECTORY)
                undo.callback(os.close, lock_fd)
                _lock(lock_fd, campaign_dir)
            with _named(path):
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
                undo.callback(os.close, fd)
                content = path.read_bytes()
                events, repaired = parse_journal(content, str(path))
                _repair(fd, content, repaired)
                os.fsync(fd)
                os.fsync(lock_fd)
                _fsync_path(campaign_dir.parent)
            undo.pop_all()
            return cls(campaign_dir, lock_fd, fd, list(events))

    def append(self, event: str, **data: Any) -> Event:
        """Write one event; when this returns it is on disk."""
        entry = Event(len(self.events), time.time(), event, to_json(data))
        head = {"seq": entry.seq, "unix_s": entry.unix_s, "event": event}
        line = json.dumps(head | entry.data).encode() + b"\n"
        size = os.fstat(self._fd).st_size
        with _named(self.campaign_dir / JOURNAL):
            try:
                _write_all(self._fd, line)
                os.fsync(self._fd)
                self.events.append(entry)
            except BaseException:
                # a part of the line may be there; what follows must not be glued to it
                os.ftruncate(self._fd, size)
                del self.events[entry.seq :]
                raise
        return entry

    def free_bytes(self) -> int:
        """Space left for us on the campaign's filesystem."""
        with _named(self.campaign_dir):
            stat = os.statvfs(self.campaign_dir)
        return stat.f_bavail * stat.f_frsize

    def make_cell_dir(self, name: str) -> Path:
        """A new, empty directory `cells/<name>`.

        What an earlier attempt left there is moved to `<name>.aborted-K`, never deleted; its
        record, if any, is renamed, as it does not count.
        """
        cell_dir = self.campaign_dir / "cells" / name
        with _named(cell_dir):
            if cell_dir.exists():
                old = next(
                    path
                    for k in itertools.count(1)
                    if not (path := cell_dir.with_name(f"{name}.aborted-{k}")).exists()
                )
                cell_dir.rename(old)
                if (old / RECORD).exists():
                    (old / RECORD).rename(old / f"aborted-{RECORD}")
            cell_dir.mkdir(parents=True)
            _fsync_path(cell_dir.parent)
            _fsync_path(self.campaign_dir)
        return cell_dir

    def write_record(self, cell_dir: Path, record: CellRecord) -> None:
        """Store a cell: its files and `record.json` first, then the `cell_finished` event."""
        path = cell_dir / RECORD
        for measured in sorted(cell_dir.iterdir()):
            with _named(measured):
                _fsync_path(measured)
        content = _dump(record)
        write_atomically(path, content)
        self.append(
            "cell_finished",
            index=record.index,
            cell=record.cell,
            status=record.status,
            record=path.relative_to(self.campaign_dir).as_posix(),
            sha256=hashlib.sha256(content).hexdigest(),
            files=hashes_of(cell_dir),
        )

    def close(self) -> None:
        """Release the file and the lock."""
        os.close(self._fd)
        os.close(self._lock_fd)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def write_json(path: Path, value: Any) -> None:
    """Store `value` (plain data or dataclasses) as JSON, whole or not at all."""
    write_atomically(path, _dump(value))


def write_atomically(path: Path, content: bytes) -> None:
    """Replace `path` by `content`, on disk when this returns. Raises DeviceError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with _named(path):
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            try:
                _write_all(fd, content)
                os.fsync(fd)
            finally:
                os.close(fd)
            temporary.rename(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        _fsync_path(path.parent)


def _fsync_path(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _dump(value: Any) -> bytes:
    return json.dumps(to_json(value), indent=1).encode() + b"\n"


def _write_all(fd: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


def _repair(fd: int, content: bytes, repaired: bytes) -> None:
    """Either the torn tail goes, or the newline that the last whole event lacks comes."""
    if len(repaired) < len(content):
        os.ftruncate(fd, len(repaired))
    else:
        _write_all(fd, repaired[len(content) :])


def _lock(fd: int, campaign_dir: Path) -> None:
    for tries_left in reversed(range(TRIES)):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as e:
            if e.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            if tries_left == 0:
                raise UsageError(f"{campaign_dir}: another process is running this campaign") from e
        time.sleep(LOOKED_AT_S)  # it may be one that only looks: `is_running`


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Turns an OSError into a DeviceError of one line that names the path."""
    try:
        yield
    except OSError as e:
        raise DeviceError(f"{path}: {e.strerror or e}") from e
