"""The other engine's per-token CSV: preamble, rows by column name, one summary for each turn.

Touches nothing; never fails: what cannot be read is left out, and said. Every generation of the
header is read by name, unknown columns are passed over. What becomes of its numbers:
docs/import.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harness.importers import measures
from harness.importers.measures import RATE_TOLERANCE, Row
from harness.importers.text import MIB, decode, number, pairs
from harness.words import counted

_SUMMARY = "# summary"
NO_SUMMARY = "without a summary"
# a value reaches to the next key: names of models may hold spaces
_SETTING = re.compile(r"(\w+)=((?:(?!\s\w+=).)*)")
# their column, ours, factor
_COLUMNS: tuple[tuple[str, str, float], ...] = (
    ("wall_ms", "wall_ms", 1.0),
    ("io_ms", "io_ms", 1.0),
    ("compute_ms", "compute_ms", 1.0),
    ("stall_ms", "stall_ms", 1.0),
    ("mgmt_ms", "manage_ms", 1.0),
    ("read_bytes", "read_bytes", 1.0),
    ("majflt", "majflt", 1.0),
    ("cpu_ms", "cpu_ms", 1.0),
    ("swap_mib", "swap_bytes", MIB),
    ("mem_available_mib", "mem_available_bytes", MIB),
    ("rss_mib", "rss_bytes", MIB),
    ("rss_anon_mib", "rss_anon_bytes", MIB),
    ("turn", "turn", 1.0),
)
_WHOLE = {"read_bytes", "majflt", "swap_bytes", "mem_available_bytes", "rss_bytes"}
_WHOLE |= {"rss_anon_bytes", "turn"}
_READING = ("io_ms", "stall_ms", "manage_ms", "read_bytes")
# what a group of tokens from one decode shares out (mtp_batch)
_SHARED = (
    *("wall_ms", "io_ms", "compute_ms", "stall_ms", "manage_ms", "read_bytes"),
    *("majflt", "cpu_ms"),
)
# counted by the system, which Windows does not: zeros throughout
_OF_THE_SYSTEM = (
    *("majflt", "cpu_ms", "rss_bytes", "rss_anon_bytes", "swap_bytes"),
    "mem_available_bytes",
)


@dataclass(frozen=True)
class Turn:
    """Rows `first` to `last - 1`, and what the engine's summary says of them."""

    first: int
    last: int
    summary: Mapping[str, str]


@dataclass(frozen=True)
class TokenFile:
    """One run. `settings`: of the preamble. `hit_pct`: the last cumulative one, None: no cache.

    `problems`: why it is not a whole run. `notes`: what is to be known besides.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()
    turns: tuple[Turn, ...] = ()
    budget_mib: float | None = None
    hit_pct: float | None = None
    streamed: bool | None = None
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def summary(self) -> Mapping[str, str]:
        """Of the only turn; empty where there are several, or none."""
        return self.turns[0].summary if len(self.turns) == 1 else {}


def is_token_file(content: bytes) -> bool:
    """By content, whatever the extension: a header with `wall_ms` and `step` after `#` lines."""
    return _header(decode(content[:65536]).split("\n")) is not None


def _header(lines: Sequence[str]) -> int | None:
    for i, line in enumerate(lines):
        if line.startswith("#") or not line.strip():
            continue
        return i if _is_header(line.split(",")) else None
    return None


def _is_header(fields: Sequence[str]) -> bool:
    return {"step", "wall_ms"} <= {name.strip() for name in fields}


def read_token_file(content: bytes) -> TokenFile:
    """Everything of a file for which `is_token_file` holds; of another, nothing."""
    text = decode(content)
    lines = text.split("\n")
    start = _header(lines)
    if start is None:
        return TokenFile(problems=("no header with step and wall_ms",))
    settings: dict[str, str] = {}
    for line in lines[:start]:
        settings |= {m[1]: m[2].strip() for m in _SETTING.finditer(line)}
    names = tuple(name.strip() for name in lines[start].split(","))
    body = _Body(names)
    for i, line in enumerate(lines[start + 1 :], start + 2):
        body.take(line, i, torn=i == len(lines) and bool(line))
    return body.finish(settings)


class _Body:
    """Rows and summaries, line by line."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.raw: list[dict[str, float | None]] = []
        self.turns: list[Turn] = []
        self.problems: list[str] = []

    def take(self, line: str, number_of: int, *, torn: bool) -> None:
        """One line after the header; `torn`: the file ends inside it."""
        if line.startswith(_SUMMARY):
            # without its newline the last number may be shorter than it was
            said = pairs(line.rpartition(" ")[0] if torn else line)
            if torn and "tok/s" not in said:
                self.problems.append(f"line {number_of}: the summary is cut")
                return
            first = self.turns[-1].last if self.turns else 0
            self.turns.append(Turn(first, len(self.raw), said))
        elif line.strip() and not line.startswith("#"):
            self._take_row(line.split(","), number_of, torn=torn)

    def _take_row(self, fields: list[str], number_of: int, *, torn: bool) -> None:
        if not torn and _is_header(fields):  # runs that were written one after the other
            self.names = tuple(name.strip() for name in fields)
            return
        row: dict[str, float | None] = {}
        wrong = "is cut" if torn else None
        if wrong is None and len(fields) != len(self.names):
            wrong = f"has {counted(len(fields), 'field')}, the header {len(self.names)}"
        if wrong is None:
            row = dict(zip(self.names, map(number, fields), strict=True))
            wall_ms = row["wall_ms"]
            if wall_ms is None or wall_ms < 0:
                wrong = "has no wall time"
        if wrong is not None:
            self.problems.append(f"line {number_of} {wrong} and is left out")
            return
        self.raw.append(row)

    def finish(self, settings: Mapping[str, str]) -> TokenFile:
        """The file that the lines were."""
        notes: list[str] = []
        rows = [_ours(row) for row in self.raw]
        _share_out(self.raw, rows, notes)
        streamed = _streamed(self.raw, settings)
        if streamed is False:
            _drop(rows, _READING)  # a mapped file is read unseen
        _drop(rows, _unmeasured(rows))
        if streamed:
            _as_ours(rows, settings)
        hits = [v for row in self.raw if (v := row.get("cache_hit_pct")) is not None]
        budgets = [v for row in self.raw if (v := row.get("cache_budget_mib")) is not None]
        problems = list(self.problems)
        for i, turn in enumerate(self.turns):
            problem, note = _check(turn, rows, f"turn {i}" if len(self.turns) > 1 else "")
            problems += problem
            notes += note
        last = self.turns[-1].last if self.turns else 0
        if last < len(rows):
            problems.append(
                f"{counted(len(rows) - last, 'row')} {NO_SUMMARY}: the run was ended, "
                "or the file is cut"
            )
        if not rows:
            problems.append("no row")
        if any(not row.get("wall_ms") for row in rows):
            notes.append("a token took no time at all: there is no series of tokens")
        return TokenFile(
            settings=settings,
            rows=tuple(rows),
            turns=tuple(self.turns),
            budget_mib=budgets[-1] if budgets and budgets[-1] > 0 else None,
            hit_pct=hits[-1] if hits and hits[-1] >= 0 else None,
            streamed=streamed,
            problems=tuple(problems),
            notes=tuple(notes),
        )


def _ours(row: Mapping[str, float | None]) -> dict[str, float | None]:
    ours: dict[str, float | None] = {}
    for name, own, factor in _COLUMNS:
        value = row.get(name)
        if value is None or value < 0:
            continue
        ours[own] = float(round(value * factor)) if own in _WHOLE else value * factor
    return ours


def _share_out(
    raw: Sequence[Mapping[str, float | None]],
    rows: Sequence[dict[str, float | None]],
    notes: list[str],
) -> None:
    """A decode that gave several tokens stands in the row of the first: each gets its share.

    So the sum, and with it tok/s, stays what it was, and no token takes no time.
    """
    i = groups = 0
    while i < len(rows):
        end = i + 1
        if (raw[i].get("mtp_batch") or 0) > 1:
            while end < len(rows) and raw[end].get("wall_ms") == 0:
                end += 1
        if end > i + 1:
            groups += 1
            for name in _SHARED:
                values = [row.get(name) for row in rows[i:end]]
                if any(v is not None for v in values):
                    shares = _shares(math.fsum(v for v in values if v is not None), end - i, name)
                    for row, share in zip(rows[i:end], shares, strict=True):
                        row[name] = share
        i = end
    if groups:
        notes.append(
            f"{counted(groups, 'decode')} gave several tokens at once: "
            "each token has its share of the decode"
        )


def _shares(total: float, n: int, name: str) -> list[float]:
    """`total` in `n` equal parts; of what is counted, in parts that differ by one at most."""
    if name not in _WHOLE:
        return [total / n] * n
    least, more = divmod(int(total), n)
    return [float(least + (i < more)) for i in range(n)]


def _streamed(
    raw: Sequence[Mapping[str, float | None]], settings: Mapping[str, str]
) -> bool | None:
    """Whether experts were paged: as the preamble says, else by whether anything was read."""
    said = settings.get("moe_stream")
    if said in ("0", "1"):
        return said == "1"
    seen = [row.get(name) for row in raw for name in ("io_ms", "read_bytes")]
    if not raw or all(v is None for v in seen):
        return None
    hits = any((row.get("cache_hit_pct") or -1.0) >= 0 for row in raw)
    return hits or any(v for v in seen)


def _as_ours(rows: Sequence[dict[str, float | None]], settings: Mapping[str, str]) -> None:
    """Reading and waiting as `tokens.csv` means them.

    Without overlap compute waits for every read, which this engine does not call a stall. With
    overlap its `io_ms` sums what all lanes were busy, which may be more than the wall time.
    """
    said = settings.get("overlap")
    stalled = measures.total(rows, "stall_ms")
    if said in ("0", "1"):
        serial = said == "0"
    elif stalled is None:
        serial = measures.reading_adds_up(rows)
    else:
        serial = stalled == 0
    if serial:
        for row in rows:
            row["stall_ms"] = row.get("io_ms")
    elif said == "1" or stalled:
        for row in rows:
            row["lane_busy_ms"] = row.pop("io_ms", None)


def _unmeasured(rows: Sequence[Row]) -> tuple[str, ...]:
    """Counters of the system that are 0 throughout where nothing of the system was counted.

    A token without a fault is one; a run without CPU time, or a process without memory, is not.
    """
    none = [n for n in _OF_THE_SYSTEM if not any(row.get(n) for row in rows)]
    if "cpu_ms" not in none and any("cpu_ms" in row for row in rows):
        none = [n for n in none if n != "majflt"]
    if "rss_bytes" not in none and any("rss_bytes" in row for row in rows):
        none = [n for n in none if n not in ("swap_bytes", "rss_anon_bytes")]
    return tuple(none)


def _drop(rows: Sequence[dict[str, float | None]], names: Sequence[str]) -> None:
    for row in rows:
        for name in names:
            row.pop(name, None)


def _check(turn: Turn, rows: Sequence[Row], which: str) -> tuple[list[str], list[str]]:
    """What the summary says that its rows do not bear out: problems, and notes."""
    of = f"{which}: " if which else ""
    own = rows[turn.first : turn.last]
    problems = []
    tokens, said = number(turn.summary.get("tokens")), number(turn.summary.get("tok/s"))
    if tokens is not None and tokens != len(own):
        problems.append(
            f"{of}the summary says {tokens:g} tokens, the file has {counted(len(own), 'row')}"
        )
    return problems, rate_note(said, own, f"{of}the summary")


def rate_note(said: float | None, rows: Sequence[Row], who: str) -> list[str]:
    """Where tok/s as somebody says it is not rows / sum of wall times, to three decimals."""
    rate = measures.tok_s(rows)
    if said is None:
        return [f"{who} does not say tok/s: the rows cannot be checked"]
    if rate is None or abs(rate - said) > RATE_TOLERANCE:
        have = "none" if rate is None else f"{rate:.3f}"
        return [f"tok/s from the rows is {have}, {who} says {said:g}"]
    return []
