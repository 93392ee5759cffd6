"""The journal survives what a crash, a full disk or a second process can do to it."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import journal as journal_module
from harness.errors import DeviceError, UsageError
from harness.journal import (
    JOURNAL,
    JUDGED,
    Journal,
    altered_cells,
    finished_cells,
    load_records,
    parse_journal,
    read_journal,
    write_json,
)
from harness.records import CellRecord, TargetId

DATA = st.dictionaries(
    st.text(max_size=8).filter(lambda k: k not in ("seq", "unix_s", "event")),
    st.one_of(st.none(), st.integers(), st.text(), st.booleans(), st.lists(st.text(max_size=3))),
    max_size=3,
)


def lines(events: list[dict[str, object]]) -> bytes:
    return b"".join(
        json.dumps({"seq": i, "unix_s": 1.5 * i, "event": f"e{i}", **data}).encode() + b"\n"
        for i, data in enumerate(events)
    )


def make_record(index: int = 0, **changes: object) -> CellRecord:
    values: dict[str, object] = {
        "cell": "baseline",
        "arm": "baseline",
        "role": "baseline",
        "index": index,
        "status": "ok",
        "exit_code": 0,
        "argv": ("moe-engine",),
        "target": TargetId("local", "here"),
    }
    return CellRecord(**(values | changes))  # type: ignore[arg-type]


def store(journal: Journal, name: str = "00-baseline", index: int = 0) -> Path:
    cell_dir = journal.make_cell_dir(name)
    journal.write_record(cell_dir, make_record(index))
    return cell_dir


@given(st.lists(DATA, max_size=5), st.data())
def test_any_prefix_is_readable_and_loses_no_whole_event(
    events: list[dict[str, object]], data: st.DataObject
) -> None:
    content = lines(events)
    prefix = content[: data.draw(st.integers(0, len(content)))]
    found, repaired = parse_journal(prefix)
    whole = prefix.count(b"\n")
    assert len(found) in (whole, whole + 1)  # one more when only the newline is missing
    assert [e.data for e in found] == events[: len(found)]
    again, unchanged = parse_journal(repaired)
    assert (again, unchanged) == (found, repaired)
    assert content.startswith(repaired)


@given(st.lists(DATA, min_size=1, max_size=4), st.binary(max_size=20))
def test_any_torn_tail_costs_only_itself(events: list[dict[str, object]], tail: bytes) -> None:
    content = lines(events)
    found, repaired = parse_journal(content + tail.replace(b"\n", b""))
    assert len(found) == len(events)
    assert repaired == content


@pytest.mark.parametrize(
    "content",
    [
        b'not json\n{"seq": 1, "unix_s": 0, "event": "e"}\n',
        b'{"seq": 1, "unix_s": 0, "event": "the first is missing"}\n',
        b'{"seq": 0, "unix_s": 0}\n',
        b'{"seq": 0, "unix_s": 0, "event": "a"}\n{"seq": 0, "unix_s": 0, "event": "twice"}\n',
        b"\n",
        b"[]\n",
    ],
)
def test_damage_in_the_middle_is_an_error_that_names_the_line(content: bytes) -> None:
    with pytest.raises(DeviceError, match=r"where: line \d is damaged"):
        parse_journal(content, "where")


def test_events_come_back_as_written(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "c") as journal:
        journal.append("campaign_started", pid=1, text="ä\n")
        journal.append("cell_waiting", index=0)
        assert read_journal(tmp_path / "c") == tuple(journal.events)
    assert [e.seq for e in read_journal(tmp_path / "c")] == [0, 1]
    assert read_journal(tmp_path / "c")[0].data == {"pid": 1, "text": "ä\n"}


@pytest.mark.parametrize("cut", [1, 2, 10])
def test_a_torn_tail_is_repaired_before_anything_is_appended(tmp_path: Path, cut: int) -> None:
    with Journal.open(tmp_path) as journal:
        journal.append("one")
        journal.append("two")
    path = tmp_path / "journal.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    with Journal.open(tmp_path) as journal:
        journal.append("three")
    expected = ["one", "two", "three"] if cut == 1 else ["one", "three"]
    assert [e.event for e in read_journal(tmp_path)] == expected


def test_a_finished_cell_needs_its_record_with_the_same_hash(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:
        store(journal, "00-baseline", 0)
        changed = store(journal, "01-other", 1)
        gone = store(journal, "02-gone", 2)
        (changed / "record.json").write_text("{}")
        (gone / "record.json").unlink()
        found = finished_cells(tmp_path, journal.events)
    assert found.records == {0: make_record(0)}
    assert set(found.damaged) == {1, 2}
    assert "changed" in found.damaged[1]
    assert load_records(tmp_path) == [make_record(0)]


def test_a_record_of_another_version_is_damaged_not_a_crash(tmp_path: Path) -> None:
    content = b'{"cell": "baseline"}'
    (tmp_path / "record.json").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    with Journal.open(tmp_path) as journal:
        journal.append("cell_finished", index=0, record="record.json", sha256=digest)
        found = finished_cells(tmp_path, journal.events)
    assert found.records == {}
    assert "arm: missing" in found.damaged[0]


def test_the_record_is_on_disk_before_the_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Journal.open(tmp_path) as journal:

        def check(event: str, **data: object) -> None:
            assert event == "cell_finished"
            assert (tmp_path / str(data["record"])).is_file()

        monkeypatch.setattr(journal, "append", check)
        store(journal)


def test_an_earlier_attempt_is_moved_aside_and_its_record_does_not_count(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:
        for text in ("first", "second"):
            cell_dir = journal.make_cell_dir("00-baseline")
            (cell_dir / "stdout.txt").write_text(text)
        (cell_dir / "record.json").write_text("{}")
        journal.make_cell_dir("00-baseline")
    cells = tmp_path / "cells"
    assert (cells / "00-baseline.aborted-1" / "stdout.txt").read_text() == "first"
    assert (cells / "00-baseline.aborted-2" / "stdout.txt").read_text() == "second"
    assert not list(cells.glob("*/record.json"))
    assert not list((cells / "00-baseline").iterdir())


def test_a_second_process_is_refused_with_one_clear_line(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from harness.journal import Journal
Journal.open(Path({str(tmp_path)!r}))
"""
    with Journal.open(tmp_path):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        last = done.stderr.strip().splitlines()[-1]
        assert "another process is running this campaign" in last
        with pytest.raises(UsageError, match="another process"):
            Journal.open(tmp_path)
    with Journal.open(tmp_path):
        pass


def test_whoever_only_looks_does_not_stand_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(look, fcntl.LOCK_SH)
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:  # it was not running until now
            os.close(look)

    monkeypatch.setattr(journal_module, "time", SimpleNamespace(sleep=nap))
    with Journal.open(tmp_path):
        assert len(naps) == 3


def test_the_lock_is_not_inherited_by_programs_that_are_started(tmp_path: Path) -> None:
    with Journal.open(tmp_path):
        child = subprocess.Popen(["sleep", "60"])
    try:
        with Journal.open(tmp_path):
            pass
    finally:
        child.kill()
        child.wait()


def test_a_full_disk_leaves_the_journal_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Journal.open(tmp_path) as journal:
        journal.append("one")
        real = os.write

        def half(fd: int, data: bytes) -> int:
            if len(data) < 4:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(fd, data[: len(data) // 2])

        monkeypatch.setattr(os, "write", half)
        with pytest.raises(DeviceError, match=r"journal\.jsonl: No space left on device"):
            journal.append("two")
        with pytest.raises(DeviceError, match=r"record\.json: No space left on device"):
            journal_module.write_atomically(tmp_path / "record.json", b"x" * 100)
        monkeypatch.undo()
        assert sorted(p.name for p in tmp_path.iterdir()) == ["journal.jsonl"]
        journal.append("three")
    assert [e.event for e in read_journal(tmp_path)] == ["one", "three"]


def test_an_interrupt_while_appending_takes_the_event_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Journal.open(tmp_path) as journal:
        journal.append("one")

        def interrupt(_fd: int) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            journal.append("two")
        monkeypatch.undo()
        journal.append("campaign_interrupted")
    assert [e.event for e in read_journal(tmp_path)] == ["one", "campaign_interrupted"]


def test_writing_atomically_replaces_or_leaves(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_json(path, {"a": (1, 2)})
    write_json(path, make_record())
    assert json.loads(path.read_text())["cell"] == "baseline"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(DeviceError, match="absent"):
        write_json(tmp_path / "absent" / "x.json", {})


def test_an_absent_journal_is_named(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"journal\.jsonl: No such file"):
        read_journal(tmp_path)


@pytest.mark.parametrize("name", JUDGED)
@pytest.mark.parametrize("how", ["changed", "gone", "added"])
def test_what_is_judged_beside_a_record_is_known_by_its_hash(
    name: str, how: str, tmp_path: Path
) -> None:
    with Journal.open(tmp_path) as journal:
        cell_dirs = [journal.make_cell_dir(n) for n in ("00-cell", "01-other")]
        for index, cell_dir in enumerate(cell_dirs):
            if how != "added":
                (cell_dir / name).write_text("as it was")
            (cell_dir / "stderr.txt").write_text("nobody judges by it")
            journal.write_record(cell_dir, make_record(index))
    assert altered_cells(tmp_path, read_journal(tmp_path)) == {}
    path = cell_dirs[1] / name
    path.unlink(missing_ok=True)
    if how != "gone":
        path.write_text("as it is")
    (cell_dirs[0] / "stderr.txt").unlink()
    altered = altered_cells(tmp_path, read_journal(tmp_path))
    if how == "added":  # there was none, nor had it been kept by an older version
        assert altered == {}
        return
    assert altered == {
        1: f"{path}: {'is gone' if how == 'gone' else 'changed since it was written'}"
    }
    assert set(finished_cells(tmp_path, read_journal(tmp_path)).records) == {0, 1}


@pytest.mark.parametrize(
    ("event", "data"),
    [
        ("cell_started", {}),
        ("cell_started", {"index": "1"}),
        ("cell_finished", {"index": 0, "record": "r"}),
        ("cell_finished", {"index": 0, "sha256": "0"}),
        ("cell_finished", {"record": "r", "sha256": "0"}),
    ],
)
def test_an_event_without_what_it_says_is_a_damaged_line(
    event: str, data: dict[str, object], tmp_path: Path
) -> None:
    with Journal.open(tmp_path) as journal:
        journal.append("campaign_started")
        journal.append(event, **data)
    with pytest.raises(DeviceError, match=rf"{JOURNAL}: line 2 is damaged \({event} has no "):
        read_journal(tmp_path)


def test_a_record_of_another_cell_does_not_count_twice(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:
        for name, index in (("00-cell", 0), ("01-cell", 1)):
            store(journal, name, index)
        named = journal.events[0].data | {"index": 1}
        journal.append("cell_finished", **named)
        found = finished_cells(tmp_path, journal.events)
    assert set(found.records) == {0}
    assert "is of cell 0" in found.damaged[1]
