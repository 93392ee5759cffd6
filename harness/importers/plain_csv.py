"""`import csv`: a table of cells and one table of tokens for each. Reads the directory it is named.

`campaign.csv` has one row a cell in the order of the runs; needed are `cell`, `config` and `file`.
The files have one row a token; needed are `token` and `wall_ms`. What is not a number where one
belongs is refused with its file, line and column; an empty field was not measured.
"""

from __future__ import annotations

import csv
import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UsageError
from harness.importers import measures
from harness.importers.design import recognise
from harness.importers.measures import Row
from harness.importers.text import MIB, as_whole, decode, kib, natural, number, slug
from harness.importers.write import Imported, ImportedCell, is_truth, raw_names
from harness.planned import PlannedCell
from harness.readings import (
    BatteryState,
    CpufreqState,
    DeviceState,
    Peaks,
    ProbeResult,
    Probes,
    ThermalState,
)
from harness.records import CellRecord, Metrics, TargetId, Wait
from harness.words import counted

CAMPAIGN = "campaign.csv"
_NOT_MEASURED = ("", "nan", "na", "n/a", "null", "none", "-")
_CAP = re.compile(r"cap_(?:(?P<policy>\w+)_)?(?P<place>entry|exit)_khz")
# columns of a token, and what they are called elsewhere
_TOKEN_COLUMNS = {name: (name, 1.0) for name in measures.COLUMNS} | {
    "mgmt_ms": ("manage_ms", 1.0),
    "swap_mib": ("swap_bytes", float(MIB)),
    "mem_available_mib": ("mem_available_bytes", float(MIB)),
    "rss_mib": ("rss_bytes", float(MIB)),
    "rss_anon_mib": ("rss_anon_bytes", float(MIB)),
}
_MAY_BE_NEGATIVE = re.compile(r".*_c|t_start_s")


@dataclass(frozen=True)
class _Table:
    """Header and rows of a file; `lines`: where each row stands in it."""

    path: Path
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lines: tuple[int, ...]
    torn: bool  # the last line had no end, and too few fields: left out

    def records(self) -> Iterator[tuple[int, Mapping[str, str]]]:
        for line, row in zip(self.lines, self.rows, strict=True):
            yield line, dict(zip(self.header, row, strict=True))


def read_csv_campaign(
    directory: Path, *, name: str | None, baseline: str | None, design: str | None
) -> Imported:
    """The campaign in `directory`. Raises UsageError: file, line and column of what is wrong."""
    path = directory / CAMPAIGN
    if not path.exists():
        raise UsageError(
            f"{path}: there is no such file; `import csv` needs one (a session of BigMoeOnEdge is "
            "imported by `import bmoe`)"
        )
    table = _read_table(path, ("cell", "config", "file"))
    if not table.rows:
        raise UsageError(f"{path}: no cell in it; nothing to import")
    rows = list(table.records())
    _check_rows(path, rows)
    notes: list[str] = [f"{path}: its last line is cut and left out"] if table.torn else []
    starts = [_field(path, line, row, "t_start_s") for line, row in rows]
    if all(s is not None for s in starts) and starts != sorted(s for s in starts if s is not None):
        rows = [r for _, r in sorted(zip(starts, rows, strict=True), key=lambda p: p[0] or 0.0)]
        notes.append(f"{path}: the cells are put in the order of t_start_s")
    arms = [row["config"] for _, row in rows]
    numbers = [_field(path, line, row, "pair") for line, row in rows]
    pairs = [int(n) for n in numbers if n is not None]
    if pairs and len(pairs) < len(rows):
        raise UsageError(f"{path}: column pair: empty in some lines; fill it in all, or in none")
    found = recognise(arms, baseline=baseline, design=design, where=str(path), pairs=pairs or None)
    if found.baseline_guessed and found.plan.design in ("pairs", "abba"):
        # a coin decided who led the first pair; it must not decide the sign of an effect
        raise UsageError(
            f"{path}: which of {', '.join(dict.fromkeys(arms))} is the baseline? Call it so, or "
            "name it with --baseline"
        )
    cells = tuple(
        _cell(directory, path, line, row, planned)
        for (line, row), planned in zip(rows, found.plan.cells, strict=True)
    )
    return Imported(
        name=slug(name or directory.resolve().name),
        plan=found.plan,
        cells=cells,
        facts={
            "kind": "csv",
            "source": str(directory.resolve()),
            "design": found.plan.design,
            "baseline": found.plan.baseline,
            "order": "as in campaign.csv",
        },
        files={CAMPAIGN: path},
        notes=(*notes, *found.notes),
    )


def _check_rows(path: Path, rows: list[tuple[int, Mapping[str, str]]]) -> None:
    seen: dict[str, dict[str, int]] = {"cell": {}, "file": {}}
    for line, row in rows:
        for column in ("cell", "config", "file"):
            value = row[column]
            if not value or not value.isprintable():
                raise UsageError(
                    f"{path}: line {line}, column {column}: found {value!r}; needs a name"
                )
            first = seen.get(column, {}).setdefault(value, line)
            if column in seen and first != line:
                raise UsageError(
                    f"{path}: line {line}, column {column}: {value!r} is that of line {first} too; "
                    "every cell needs its own"
                )


# --- a cell --------------------------------------------------------------------------------------


def _cell(
    directory: Path, campaign: Path, line: int, row: Mapping[str, str], planned: PlannedCell
) -> ImportedCell:
    path = directory / row["file"]
    if not path.resolve().is_relative_to(directory.resolve()):
        raise UsageError(
            f"{campaign}: line {line}, column file: {row['file']!r} is outside {directory}"
        )
    if is_truth(path):
        raise UsageError(
            f"{campaign}: line {line}, column file: {row['file']!r}: a simulation's ground truth "
            "is never read"
        )

    def value(name: str) -> float | None:
        return _field(campaign, line, row, name)

    tokens, torn = _read_tokens(path)
    from_rows = measures.counters(tokens)
    read_bytes = as_whole(value("read_bytes_total"))
    dropped = as_whole(value("dropped"))
    hit_pct = value("hit_pct")
    waited_s = value("waited_s")
    notes = [f"{path.name}: its last line is cut and left out"] if torn else []
    record = CellRecord(
        cell=planned.name,
        arm=planned.arm,
        role=planned.role,
        index=planned.index,
        status="ok" if tokens else "failed",
        exit_code=None,
        argv=(),
        target=TargetId("imported", "unknown"),
        entry=_state(campaign, line, row, "entry"),
        exit=_state(campaign, line, row, "exit"),
        probe=Probes(_probe(value("probe_entry_ms")), _probe(value("probe_exit_ms"))),
        counters=dataclasses.replace(
            from_rows,
            read_bytes=from_rows.read_bytes if read_bytes is None else read_bytes,
            dropped=from_rows.dropped if dropped is None else dropped,
        ),
        metrics=measures.known(
            measures.metrics(tokens) if tokens else Metrics(),
            Metrics(hit_rate=None if hit_pct is None else hit_pct / 100),
        ),
        wait=None if waited_s is None else Wait(waited_s, "as recorded"),
        peaks=Peaks(cpu_temp_max_c=value("cpu_max_c")),
        status_detail=None if tokens else f"{path.name} has no row",
        notes=tuple(notes),
    )
    return ImportedCell(record, tokens, raw_names([path], directory))


def _probe(ms: float | None) -> ProbeResult | None:
    return ProbeResult(compute_ms=ms) if ms else None  # nothing takes no time


def _state(path: Path, line: int, row: Mapping[str, str], place: str) -> DeviceState | None:
    """The columns of the entry, or of the exit; None where all of them are empty."""

    def value(name: str) -> float | None:
        return _field(path, line, row, name)

    caps = []
    for name in row:
        match = _CAP.fullmatch(name)
        khz = as_whole(value(name)) if match and match["place"] == place else None
        if match and khz is not None:
            caps.append(CpufreqState(match["policy"] or "policy0", scaling_max_khz=khz))
    cpu_c, battery_c = value(f"cpu_{place}_c"), value(f"batt_{place}_c")
    state = DeviceState(
        mem_available_bytes=kib(value(f"mem_avail_{place}_kb")),
        cpufreq=tuple(sorted(caps, key=lambda c: natural(c.policy))),
        thermal=() if cpu_c is None else (ThermalState("cpu", "cpu", cpu_c),),
        battery=None if battery_c is None else BatteryState(temp_c=battery_c),
    )
    return None if state == DeviceState() else state


def _read_tokens(path: Path) -> tuple[tuple[Row, ...], bool]:
    """The rows of a cell's file, and whether its last one was cut."""
    table = _read_table(path, ("token", "wall_ms"))
    used = [(n, *_TOKEN_COLUMNS[n]) for n in table.header if n in _TOKEN_COLUMNS]
    rows: list[dict[str, float | None]] = []
    for line, text in table.records():
        row: dict[str, float | None] = {}
        for name, ours, scale in used:
            value = _field(path, line, text, name)
            row[ours] = None if value is None else value * scale
        if not row["wall_ms"]:
            raise UsageError(
                f"{path}: line {line}, column wall_ms: found {text['wall_ms']!r}; "
                "needs a number above 0"
            )
        before = rows[-1]["token"] if rows else None
        if row["token"] is None or (before is not None and row["token"] != before + 1):
            raise UsageError(
                f"{path}: line {line}, column token: found {text['token']!r}; needs "
                f"{'a number' if before is None else f'{before + 1:g}, the one after {before:g}'}"
            )
        rows.append(row)
    return _with_stall(rows), table.torn


def _with_stall(rows: list[dict[str, float | None]]) -> tuple[Row, ...]:
    """Where reading and the other parts add up to the wall time, compute waited for every read.

    That is what `stall_ms` is (docs/engine.md); a file that has it already is left as it is.
    """
    has_it = any(row.get("stall_ms") is not None for row in rows)
    if has_it or not measures.reading_adds_up(rows):
        return tuple(rows)
    return tuple({**row, "stall_ms": row["io_ms"]} for row in rows)


# --- tables --------------------------------------------------------------------------------------


def _read_table(path: Path, needed: tuple[str, ...]) -> _Table:
    try:
        text = decode(path.read_bytes())
    except OSError as e:
        raise UsageError(f"{path}: cannot be read: {e.strerror}") from None
    if "\0" in text:
        raise UsageError(f"{path}: holds a zero byte; not a text file")
    reader = csv.reader(text.split("\n"), strict=False)
    rows: list[tuple[int, list[str]]] = []
    try:
        for fields in reader:
            if any(f.strip() for f in fields) and not fields[0].startswith("#"):
                rows.append((reader.line_num, [f.strip() for f in fields]))
    except csv.Error as e:
        raise UsageError(f"{path}: line {reader.line_num}: {e}") from None
    if not rows:
        raise UsageError(f"{path}: empty; needs a header with {', '.join(needed)}")
    (first, header), *body = rows
    torn = bool(body) and not text.endswith("\n") and len(body[-1][1]) < len(header)
    body = body[:-1] if torn else body
    for name in needed:
        if name not in header:
            raise UsageError(f"{path}: line {first}: no column {name}; needs {', '.join(needed)}")
    doubled = sorted(n for n in set(header) if n and header.count(n) > 1)
    if doubled:
        raise UsageError(f"{path}: line {first}: two columns are called {doubled[0]}")
    for line, fields in body:
        if len(fields) != len(header):
            raise UsageError(
                f"{path}: line {line}: {counted(len(fields), 'field')}, "
                f"the header has {len(header)}"
            )
    return _Table(
        path,
        tuple(header),
        tuple(tuple(fields) for _, fields in body),
        tuple(line for line, _ in body),
        torn,
    )


def _field(path: Path, line: int, row: Mapping[str, str], name: str) -> float | None:
    """A number of a column that need not be there; None where it is absent or empty."""
    text = row.get(name)
    if text is None:
        return None
    value = number(text)
    if value is None:
        if text.lower() in _NOT_MEASURED:
            return None
        raise UsageError(f"{path}: line {line}, column {name}: found {text!r}; needs a number")
    if value < 0 and name == "hit_pct":  # there was no cache
        return None
    if value < 0 and not _MAY_BE_NEGATIVE.fullmatch(name):
        raise UsageError(f"{path}: line {line}, column {name}: {text} is negative")
    return value
