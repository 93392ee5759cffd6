"""Readers of foreign files on arbitrary and damaged input: no crash, no silent zero."""

from __future__ import annotations

import dataclasses
import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.importers import bmoe_device, bmoe_logs
from harness.importers.bmoe import read_sessions
from harness.importers.bmoe_tokens import is_token_file, read_token_file
from harness.importers.plain_csv import read_csv_campaign
from harness.importers.text import decode, number
from harness.importers.write import Imported
from harness.jsonable import from_json, to_json
from harness.records import CellRecord

# simulations, drawings, fuzzing: seconds each; CI runs them all
pytestmark = pytest.mark.slow

SAMPLES = Path(__file__).parents[1] / "data" / "bmoe"
TOKEN_FILES = [
    SAMPLES / "v0" / "qwen_c4000_l4.csv",
    SAMPLES / "v1" / "gemma_sg_ov.csv",
    SAMPLES / "v1b" / "gptoss.metrics",
    SAMPLES / "v2" / "qwen-lru_a.csv",
    SAMPLES / "v3" / "session.csv",
]
TEXTS = [
    *(SAMPLES / "v0").glob("*.log"),
    *(SAMPLES / "v0").glob("*.metrics"),
    *(SAMPLES / "v2").glob("*.log"),
    SAMPLES / "v1" / "gemma_sg_ov.log",
    SAMPLES / "v1b" / "gptoss.state",
]
FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
_DIGIT = re.compile(rb"\d")


@contextmanager
def directory_of(**files: bytes) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:
        path = Path(made) / "session"
        path.mkdir()
        for name, content in files.items():
            (path / name.replace("__", ".")).write_bytes(content)
        yield path


def numbers_of(value: Any) -> list[float]:
    """Every number in plain data, but for places in the order and counts of rows."""
    if isinstance(value, dict):
        skipped = ("index", "tokens", "block", "wait_s")
        return [n for k, v in value.items() if k not in skipped for n in numbers_of(v)]
    if isinstance(value, list):
        return [n for v in value for n in numbers_of(v)]
    return [] if isinstance(value, bool) or not isinstance(value, int | float) else [value]


def check(imported: Imported) -> None:
    """Records are whole: they survive JSON, and their numbers are finite."""
    for cell in imported.cells:
        stored = json.dumps(to_json(cell.record), allow_nan=False)
        assert from_json(CellRecord, json.loads(stored)) == cell.record
        if cell.record.status == "ok":
            assert cell.record.metrics.tok_s is None or cell.record.metrics.tok_s > 0
        else:
            assert cell.record.status_detail
    json.dumps(
        to_json([dict(row) for cell in imported.cells for row in cell.rows]), allow_nan=False
    )


def import_bmoe(**files: bytes) -> list[Imported]:
    with directory_of(**files) as path:
        try:
            found = read_sessions(path, name=None, baseline=None, design=None)
        except UsageError as e:
            assert str(path) in str(e) and "\n" not in str(e)
            return []
    for imported in found:
        check(imported)
    return found


def mutated(samples: list[Path]) -> st.SearchStrategy[bytes]:
    """A real file with a stretch of bytes put in place of another."""

    @st.composite
    def make(draw: st.DrawFn) -> bytes:
        data = draw(st.sampled_from(samples)).read_bytes()
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + 40)))
        return data[:start] + draw(st.binary(max_size=20)) + data[end:]

    return make()


# --- the other engine ----------------------------------------------------------------------------


@FUZZ
@given(st.binary(max_size=400))
def test_any_bytes_under_any_name(data: bytes) -> None:
    import_bmoe(a__csv=data, a__metrics=data, a__state=data, a__log=data, driver__log=data)


@FUZZ
@given(mutated(TOKEN_FILES), mutated(TEXTS), mutated(TEXTS), mutated(TEXTS))
def test_damaged_files_of_a_session(run: bytes, log: bytes, sidecar: bytes, state: bytes) -> None:
    import_bmoe(a__csv=run, a__log=log, a__metrics=sidecar, a__state=state, driver__log=log)


@pytest.mark.parametrize("path", TOKEN_FILES, ids=lambda p: p.parent.name)
def test_a_run_cut_at_any_byte_keeps_what_is_whole(path: Path) -> None:
    whole = path.read_bytes()
    rows = read_token_file(whole).rows
    for end in range(len(whole)):
        cut = whole[:end]
        if not is_token_file(cut):
            continue
        found = read_token_file(cut)
        assert len(found.rows) <= len(rows)
        # the last number of a cut line is never taken for whole
        for i, row in enumerate(found.rows):
            assert row["wall_ms"] == pytest.approx(rows[i]["wall_ms"]) or b"mtp_batch" in whole
        ends_a_turn = bool(found.turns) and found.turns[-1].last == len(found.rows)
        assert found.problems or ends_a_turn


@FUZZ
@given(mutated(TOKEN_FILES), st.sampled_from(["utf-16-le", "utf-32", "cp037"]))
def test_another_encoding_is_no_run(data: bytes, encoding: str) -> None:
    other = decode(data).encode(encoding, "replace")
    assert read_token_file(other).rows == ()
    import_bmoe(a__csv=other)


@FUZZ
@given(mutated(TEXTS + TOKEN_FILES))
def test_without_a_digit_there_is_no_number(data: bytes) -> None:
    """What is not in the input as a number is null, never 0."""
    bare = _DIGIT.sub(b"x", data)
    for imported in import_bmoe(a__csv=bare, a__log=bare, a__metrics=bare, a__state=bare):
        for cell in imported.cells:
            assert cell.rows == ()
            assert numbers_of(to_json(cell.record)) == []
    text = decode(bare)
    for read in (bmoe_device.read_sidecar, bmoe_device.read_state):
        assert numbers_of(to_json(read(text))) == []
    assert numbers_of(to_json(bmoe_device.read_moment(text))) == []
    assert numbers_of(to_json(dataclasses.replace(bmoe_logs.read_log(text), said={}))) == []


@FUZZ
@given(st.sampled_from(TOKEN_FILES), st.data())
def test_a_number_that_is_gone_is_null_in_its_row(path: Path, data: st.DataObject) -> None:
    lines = path.read_bytes().split(b"\n")
    start = next(i for i, line in enumerate(lines) if line.startswith(b"step,"))
    names = lines[start].decode().split(",")
    of = {"majflt": "majflt", "read_bytes": "read_bytes", "compute_ms": "compute_ms"}
    name = data.draw(st.sampled_from([n for n in of if n in names]))
    which = data.draw(st.integers(start + 1, start + 4))
    fields = lines[which].split(b",")
    fields[names.index(name)] = data.draw(st.sampled_from([b"", b"nan", b"-nan", b"x", b"-"]))
    lines[which] = b",".join(fields)
    content = b"\n".join(lines)
    rows = read_token_file(content).rows
    if b"mtp_batch" not in content:  # there a group shares out what is left
        assert rows[which - start - 1].get(of[name]) is None
        others = [r.get(of[name]) for i, r in enumerate(rows) if i != which - start - 1]
        assert all(v is not None for v in others)
    (imported,) = import_bmoe(a__csv=content)
    if name == "read_bytes" and b"mtp_batch" not in content:
        said = b"read_MiB=" in content
        assert (imported.cells[0].record.counters.read_bytes is None) or said


@FUZZ
@given(st.text(max_size=30))
def test_a_number_is_what_is_written_as_one(text: str) -> None:
    value = number(text)
    if value is not None:
        assert value == float(text) and re.search(r"[0-9]", text)


@FUZZ
@given(
    st.sampled_from(TOKEN_FILES), st.lists(st.floats().map(repr), min_size=1, max_size=5), st.data()
)
def test_absurd_numbers_overflow_nothing(path: Path, puts: list[str], data: st.DataObject) -> None:
    lines = path.read_bytes().split(b"\n")
    for put in puts:
        which = data.draw(st.integers(0, len(lines) - 1))
        words = re.split(rb"([,= ])", lines[which])
        words[data.draw(st.integers(0, len(words) - 1))] = put.encode()
        lines[which] = b"".join(words)
    sidecar = b"peak_rss_kb=%s\ncpu_temp_max_mC=%s\n" % (puts[0].encode(), puts[-1].encode())
    import_bmoe(a__csv=b"\n".join(lines), a__metrics=sidecar)


# --- plain tables --------------------------------------------------------------------------------

CAMPAIGN = (
    b"cell,config,file,t_start_s,cap_entry_khz,cap_exit_khz,batt_entry_c,probe_entry_ms,"
    b"mem_avail_entry_kb,waited_s,read_bytes_total,hit_pct,dropped\n"
    b"0,B,a.csv,0.0,2265600,2188800,30.3,100.40,7254782,0,300,76.86,0\n"
    b"1,C,b.csv,75.3,,2188800,-1.5,nan,7254782,0,300,-1,2\n"
)
TOKENS = (
    b"token,wall_ms,io_ms,compute_ms,read_bytes,majflt,hit_pct\n"
    b"0,306.391,206.679,99.712,100,3,34.69\n1,351.252,246.177,105.074,200,0,26.18\n"
)


def import_csv(campaign: bytes, tokens: bytes) -> Imported | None:
    with directory_of(campaign__csv=campaign, a__csv=tokens, b__csv=TOKENS) as path:
        try:
            imported = read_csv_campaign(path, name=None, baseline=None, design=None)
        except UsageError as e:
            assert str(path) in str(e) and "\n" not in str(e)
            return None
    check(imported)
    return imported


def test_the_whole_one_is_read() -> None:
    imported = import_csv(CAMPAIGN, TOKENS)
    assert imported is not None
    b, c = (cell.record for cell in imported.cells)
    assert b.metrics.hit_rate == 0.7686 and c.metrics.hit_rate is None
    assert b.entry is not None and b.entry.cpufreq[0].scaling_max_khz == 2265600
    assert c.entry is not None and c.entry.cpufreq == () and c.probe.before is None
    assert c.entry.battery is not None and c.entry.battery.temp_c == -1.5
    assert b.exit is not None and b.exit.mem_available_bytes is None
    assert (b.counters.dropped, c.counters.dropped) == (0, 2)
    assert b.metrics.majflt_per_token == 1.5 and b.metrics.stall_ms_per_token is not None


@FUZZ
@given(st.binary(max_size=300), st.binary(max_size=300))
def test_plain_tables_of_any_bytes(campaign: bytes, tokens: bytes) -> None:
    import_csv(campaign, tokens)
    import_csv(CAMPAIGN, tokens)


@FUZZ
@given(
    st.integers(0, len(CAMPAIGN)),
    st.integers(0, len(TOKENS)),
    st.binary(max_size=6),
    st.integers(0, 6),
)
def test_damaged_plain_tables(i: int, j: int, put: bytes, gone: int) -> None:
    import_csv(CAMPAIGN[:i] + put + CAMPAIGN[i + gone :], TOKENS)
    import_csv(CAMPAIGN, TOKENS[:j] + put + TOKENS[j + gone :])


def test_plain_tables_cut_at_any_byte() -> None:
    for end in range(len(TOKENS)):
        import_csv(CAMPAIGN, TOKENS[:end])
    for end in range(len(CAMPAIGN)):
        import_csv(CAMPAIGN[:end], TOKENS)


@FUZZ
@given(st.lists(st.floats().map(repr), min_size=1, max_size=5), st.data())
def test_absurd_numbers_in_plain_tables(puts: list[str], data: st.DataObject) -> None:
    tables = []
    for table in (CAMPAIGN, TOKENS):
        lines = [line.split(b",") for line in table.split(b"\n")]
        for put in puts:
            row = lines[data.draw(st.integers(1, 2))]
            row[data.draw(st.integers(0, len(row) - 1))] = put.encode()
        tables.append(b"\n".join(b",".join(line) for line in lines))
    import_csv(CAMPAIGN, tables[1])
    import_csv(tables[0], TOKENS)
