"""Tables for the terminal: what an arm was asked, and numbers as people read them. `-`: nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import PurePath

from rich.table import Table
from rich.text import Text

from harness.analysis.tables import Data, Value
from harness.planned import Arm

MIB = 2**20
GOOD, BAD, UNSURE = "green", "red", "yellow"
STYLES = {
    "stable": GOOD,
    "win": GOOD,
    "provisional_win": GOOD,
    "equivalent": GOOD,
    "loss": BAD,
    "provisional_loss": BAD,
    "identical": GOOD,
    "differs": BAD,
    "ok": GOOD,
    "PASS": GOOD,
    "FAIL (refused)": BAD,
    "KILLED": BAD,
    "failed": BAD,
    "killed": BAD,
    "refused": BAD,
}
_WORDS = (
    *("cell", "arm", "role", "status", "predictor", "policy", "output", "level", "result"),
    "first difference, or why not shown",
    *("candidate", "part", "in the wall time", "effect", "baseline cells", "candidate cells"),
    *("decided", "reasons", "notes", "note"),
    *("campaign", "what it found", "drift", "directory"),
)
# sentences, which may take several lines
SENTENCE_WIDTH = 24  # narrower than that it cannot be read
LONG = ("reasons", "notes", "note", "campaign", "what it found")


_OF_PAGING = ("io threads", "direct io", "dense")


def empty_table(*columns: str) -> Table:
    """Words to the left, numbers to the right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(
            column,
            justify="left" if column in _WORDS else "right",
            no_wrap=column not in LONG,
            overflow="fold" if column in LONG else "ellipsis",
        )
    return table


def table_of(data: Data, without: tuple[str, ...] = ()) -> Table:
    """Every column but those whose keys are in `without`."""
    shown = [i for i, column in enumerate(data.columns) if column.key not in without]
    table = empty_table(*(data.columns[i].title for i in shown))
    for row in data.rows:
        table.add_row(*(_cell(row[i], data.columns[i].form) for i in shown))
    return table


def rows_of(data: Data, without: tuple[str, ...]) -> list[str]:
    """Every row as a line, what is there of it: `cell 0 baseline, tok/s 247.66, ...`."""
    return [
        ", ".join(
            f"{column.title} {_cell(value, column.form).plain}".strip()
            for column, value in zip(data.columns, row, strict=True)
            if column.key not in without and value is not None
        )
        for row in data.rows
    ]


def sentences_of(data: Data, keys: tuple[str, ...]) -> list[str]:
    """The columns `keys` of every row as lines of their own, by the first of its other values."""
    name = next(i for i, column in enumerate(data.columns) if column.key not in keys)
    lines = []
    for row in data.rows:
        for column, value in zip(data.columns, row, strict=True):
            if column.key in keys and value is not None:
                lines.append(f"  {row[name]} {column.title}: {value}")
    return lines


def _cell(value: Value, form: str) -> Text:
    if value is None:
        return Text("-")
    text = format(value, form)
    return Text(text, "" if form else STYLES.get(text, ""))


def settings_of(arm: Arm) -> dict[str, str]:
    """What an arm asks of the engine, by title; `-`: left to the engine, off or unlimited.

    A streaming arm always has a cache size; while its model is not made it may not be known. Nor is
    a level then.
    """
    engine = arm.engine
    cache = "unknown" if engine.cache_mb is None else str(engine.cache_mb)
    if engine.ram_budget_mb is not None or arm.level is not None:
        cache = "the rest"
    unlimited = "-" if arm.level is None and arm.limit_share is None else "unknown"
    return {
        "cache MiB": cache if engine.moe_stream else "mmap",
        "io threads": _text(engine.io_threads),
        "direct io": "-" if engine.direct_io is None else _yes_no(engine.direct_io),
        "dense": engine.dense_weights or "-",
        **_mechanisms(arm),
        "top-k": _text(engine.expert_used),
        "threads": str(engine.threads),
        "n_ctx": str(engine.n_ctx),
        "n_batch": str(engine.n_batch),
        "tokens": "-" if arm.perplexity is not None else str(arm.n_predict),
        "repack": _yes_no(engine.repack),
        "no_eog": _yes_no(engine.no_eog),
        "prompt": f"{len(arm.prompt)} characters",
        "limit MiB": _mib(arm.data_limit_bytes, unlimited),
    }


def _mechanisms(arm: Arm) -> dict[str, str]:
    """Only what is on: there are many, and a campaign is about few of them."""
    e = arm.engine
    ahead = "-" if e.prefetch is None else f"previous {e.prefetch}"
    if e.predict_prefetch:
        horizon = "" if e.predict_horizon is None else f", l+{e.predict_horizon}"
        most = "" if e.predict_spec_max is None else f" {e.predict_spec_max}"
        ahead = f"predict{most}{horizon}"
    drop = "-" if e.drop_cold_experts is None else f"{e.drop_cold_experts:g}"
    if e.drop_cold_experts is not None:
        drop += "" if e.drop_renorm else " no renorm"
        drop += " prefill" if e.drop_in_prefill else ""
    traces = [kind for kind in ("route", "io", "compute") if getattr(e, f"{kind}_trace")]
    traces += ["stats"] if e.stats else []
    # a level's budget is its limit
    budget = None if arm.level is not None else e.ram_budget_mb
    bounds = [
        f"{name} {value}"
        for name, value in (("floor", e.cache_floor_mb), ("ceiling", e.cache_ceil_mb))
        if value is not None
    ]
    return {
        "overlap": "yes" if e.overlap else "-",
        "read ahead": ahead,
        "drop": drop,
        "predict log": "yes" if e.predict_log else "-",
        "RAM budget MiB": _text(budget),
        "reserve MiB": _text(e.reserve_mb),
        "evict": e.evict or "-",
        "cgroup": "-" if arm.cgroup_limit_bytes is None else arm.cgroup_mode,
        "cache bounds": ", ".join(bounds) or "-",
        "force cache": "yes" if e.force_cache else "-",
        "load all": "yes" if e.load_all else "-",
        "traces": "+".join(traces) or "-",
        "forced routes": e.forced_routes or "-",
        "text": _text_of(arm),
        "engine": _engine_of(arm),
    }


def _engine_of(arm: Arm) -> str:
    """Builds have the same name as a rule, so the beginning of the hash."""
    if arm.binary is None:
        return "-"
    return f"{PurePath(arm.binary.path).name} {arm.binary.sha256[:8]}"


def _text_of(arm: Arm) -> str:
    if arm.perplexity is not None:
        return f"scored {PurePath(arm.perplexity.path).name}"
    return "-" if arm.text is None else PurePath(arm.text.path).name


def differing_settings(arms: Iterable[Arm]) -> list[str]:
    """Titles in which arms differ; what is about paging is compared between arms that page."""
    values: dict[str, set[str]] = {}
    for arm in arms:
        for title, text in settings_of(arm).items():
            if arm.engine.moe_stream or title not in _OF_PAGING:
                values.setdefault(title, set()).add(text)
    return [title for title, texts in values.items() if len(texts) > 1]


def said_of_all(arms: Collection[Arm], differing: Collection[str]) -> str:
    """What all arms have in common, in one line; mechanisms that are off are not mentioned."""
    arm = next((a for a in arms if a.engine.moe_stream), next(iter(arms)))
    off = {title for title, text in _mechanisms(arm).items() if text == "-"}
    only = "" if all(a.engine.moe_stream == arm.engine.moe_stream for a in arms) else " (paging)"
    return ", ".join(
        f"{title} {text}{only if title in _OF_PAGING else ''}"
        for title, text in settings_of(arm).items()
        if title not in {*differing, *off}
    )


def _mib(value: int | None, otherwise: str) -> str:
    return otherwise if value is None else f"{value / MIB:g}"


def _yes_no(value: bool) -> str:
    return "yes" if value else "no"


def _text(value: int | str | None) -> str:
    return "-" if value is None else str(value)
