"""From a campaign's directory to what a tracking store takes: parameters, metrics, tags, files.

Reads the campaign's directory, writes nothing, knows no store. The same directory gives the same
data, so a campaign can be logged again later.
What a cell's parameters and metrics are called, and why: `tracking_cells`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from harness import rundir
from harness.analysis import tables
from harness.analysis.found import finding_tables
from harness.analysis.identity import identity_in_words, identity_verdict
from harness.analysis.levels import levels_in_words
from harness.analysis.verdict_words import headline, numbers_in_words
from harness.collect import cell_dir_of
from harness.configure import to_yaml
from harness.engines.native import TOKENS, read_tokens
from harness.journal import RECORD, ended_as
from harness.records import CellRecord, CellStatus
from harness.rundir import PLOTS
from harness.tracking_cells import (
    Point,
    cell_colour,
    cell_name,
    cell_order,
    cell_params,
    cell_points,
)
from harness.tracking_inputs import Input, inputs
from harness.tracking_read import Stored, measuring_again, read_stored
from harness.tracking_text import (
    CAMPAIGN,
    KIND,
    NOTE,
    OVERRIDES,
    SWEEP,
    SWEEP_COUNT,
    SWEEP_INDEX,
    TAG_CHARS,
    cut,
    flatten,
    name_for_store,
    without_secrets,
)
from harness.verdicts import CampaignVerdict
from harness.words import counted

RunStatus = Literal["RUNNING", "FINISHED", "FAILED", "KILLED"]

# Part of every cell's digest: raise it when the same files are to be logged differently.
LAYOUT = "5"

# of environment.json, which is logged as it is: lists that nobody compares by eye
_LONG = ("packages", "preflight", "settings")

_CELL_STATUS: dict[CellStatus, RunStatus] = {
    "ok": "FINISHED",
    "failed": "FAILED",
    "refused": "FAILED",  # but where the limit is what is asked for: see `_cell_run`
    "killed": "KILLED",
}


@dataclass(frozen=True)
class RunData:
    """What one run of the store holds. `digest` names the content of a cell's files.

    `read_points` reads the series when asked: of most cells they are in the store already.
    """

    name: str
    status: RunStatus
    start_ms: int
    end_ms: int | None
    params: dict[str, str]
    tags: dict[str, str]
    read_points: Callable[[], Iterable[Point]]
    files: tuple[Path, ...]
    digest: str = ""
    plots: tuple[Path, ...] = ()
    inputs: tuple[Input, ...] = ()


@dataclass(frozen=True)
class CampaignData:
    """The parent run, and one run a cell in their order. `config_yaml` is without secrets.

    `tables`: of the whole campaign, by the name of their file in the store.
    """

    campaign: str
    parent: RunData
    cells: tuple[RunData, ...]
    config_yaml: str | None
    tables: dict[str, tables.Data]
    sweep: rundir.Sweep | None = None


def read_campaign(
    directory: Path, *, running: bool = False, standing: str | None = None
) -> CampaignData:
    """Everything to log of the campaign in `directory`.

    `running`: it is under way, and `standing` is what can be said so far. Raises DeviceError
    naming the file that is damaged. Files that are not there are not logged.
    """
    stored = replace(read_stored(directory), running=running, standing=standing)
    cells = tuple(
        _cell_run(stored, record, cell_dir_of(directory, record)) for record in stored.records
    )
    config = without_secrets(stored.config)
    return CampaignData(
        campaign=directory.name,
        parent=_parent_run(stored, cells),
        cells=cells,
        config_yaml=to_yaml(config) if config else None,
        tables=campaign_tables(stored.records, stored.verdict),
        sweep=stored.sweep,
    )


def campaign_tables(
    records: Sequence[CellRecord], verdict: CampaignVerdict | None
) -> dict[str, tables.Data]:
    """The result of every cell, what predictors scored, and what the cells found together."""
    found = {"results.json": tables.results(records)} if records else {}
    for name, of in (
        ("predictors.json", tables.predictors),
        ("predictors_by_layer.json", tables.predictors_by_layer),
    ):
        scored = [(r.cell, of(r.prediction)) for r in records if r.prediction is not None]
        if scored:
            found[name] = tables.Data(
                (tables.Column("cell", "cell"), *scored[0][1].columns),
                tuple((cell, *row) for cell, data in scored for row in data.rows),
            )
    if verdict is not None:
        found |= {f"{name}.json": data for name, data in finding_tables(verdict).items()}
    return found


# --- the parent ----------------------------------------------------------------------------------


def _parent_run(stored: Stored, cells: Sequence[RunData]) -> RunData:
    params = flatten(without_secrets(stored.config))
    environment = {k: v for k, v in stored.environment.values.items() if k not in _LONG}
    if isinstance(cpu := environment.get("cpu"), dict):
        environment["cpu"] = {k: v for k, v in cpu.items() if k != "flags"}
    params |= flatten(without_secrets(environment), "env.")
    tags = {CAMPAIGN: stored.directory.name, KIND: "campaign"}
    if stored.sweep is not None:
        tags[SWEEP] = stored.sweep.id
        tags[SWEEP_INDEX] = str(stored.sweep.index)
        # those of other names have an experiment of their own, and never come to this one
        tags[SWEEP_COUNT] = str(stored.sweep.alike or stored.sweep.count)
        tags[OVERRIDES] = cut(" ".join(stored.sweep.overrides), TAG_CHARS)
    points: list[Point] = []
    start_ms = min((c.start_ms for c in cells), default=0)
    end_ms = max((c.end_ms for c in cells if c.end_ms is not None), default=None)
    if stored.verdict is not None:
        tags["verdict.drift"] = stored.verdict.drift.verdict
        for v in stored.verdict.verdicts:
            tags[name_for_store(f"verdict.{v.candidate}")] = v.outcome
            if v.output is not None:
                tags[name_for_store(f"verdict.{v.candidate}.output")] = v.output
        if stored.verdict.identity:
            tags["verdict.identity"] = identity_verdict(stored.verdict.identity)
        points = [
            Point(name_for_store(key), value, end_ms or start_ms, 0)
            for key, value in _verdict_numbers(stored.verdict)
            if value is not None
        ]
    status = _campaign_status(stored)
    tags["harness.order"] = stored.directory.name
    tags["harness.outcomes"] = cut(_in_short(stored.verdict), TAG_CHARS)
    tags["harness.verdict"] = cut(_in_a_sentence(stored, status), TAG_CHARS)
    tags[NOTE] = cut(_campaign_note(stored, status), TAG_CHARS)
    names = (
        *(rundir.PLAN, rundir.ENVIRONMENT, rundir.SWEEP),
        *(() if stored.verdict is None else (rundir.VERDICT,)),
        *("journal.jsonl", "report.html"),
    )
    return RunData(
        name=stored.directory.name,
        status=status,
        start_ms=start_ms,
        end_ms=end_ms or start_ms,
        params=params,
        tags=tags,
        read_points=lambda: points,
        inputs=inputs(
            stored.environment.values, () if stored.plan is None else stored.plan.arms.values()
        ),
        files=tuple(p for n in names if (p := stored.directory / n).is_file()),
        plots=tuple(sorted((stored.directory / PLOTS).glob("*.svg"))),
    )


def _campaign_status(stored: Stored) -> RunStatus:
    """FINISHED: every planned cell ran and is a result. KILLED: it did not come to its end."""
    if stored.running:
        return "RUNNING"
    end = ended_as(stored.events)
    planned = len(stored.plan.cells) if stored.plan is not None else len(stored.records)
    whole = len(stored.records) + len(stored.damaged) >= planned
    if end == "campaign_interrupted":
        return "KILLED"
    if end == "campaign_stopped" or not all(r.is_result for r in stored.records):
        return "FAILED"
    if end is None and (not whole or measuring_again(stored.events)):
        return "KILLED"
    # FINISHED also when it was decided before all cells had run
    return "FAILED" if stored.damaged else "FINISHED"


def _verdict_numbers(verdict: CampaignVerdict) -> Iterator[tuple[str, float | None]]:
    yield "sentinel_change_pct", verdict.drift.sentinel_change_pct
    for v in verdict.verdicts:
        yield f"effect_pct.{v.candidate}", v.effect_pct
        yield f"typical_token_effect_pct.{v.candidate}", v.typical_token_effect_pct
        low, high = v.ci_pct or (None, None)
        yield f"ci_low_pct.{v.candidate}", low
        yield f"ci_high_pct.{v.candidate}", high
        yield f"p.{v.candidate}", v.p
        yield f"clean_pairs.{v.candidate}", v.clean_pairs
        yield f"disturbed_pairs.{v.candidate}", v.disturbed_pairs or None


def _in_short(verdict: CampaignVerdict | None) -> str:
    """`retention inconclusive -1.8 %, spec2 unreadable`, for a column of a table."""
    if verdict is None:
        return "no verdict"
    if not verdict.verdicts:
        return "no speeds are compared"
    return ", ".join(
        f"{v.candidate} {v.outcome.replace('_', ' ')}"
        + ("" if v.effect_pct is None else f" {v.effect_pct:+.1f} %")
        for v in verdict.verdicts
    )


def _in_a_sentence(stored: Stored, status: RunStatus) -> str:
    """For a table of campaigns; the note says it at length."""
    if stored.verdict is not None:
        return headline(stored.verdict)
    cells = counted(len(stored.records), "cell")
    if status == "RUNNING":
        return f"running, {cells} measured" + (
            "" if not stored.standing else f": {stored.standing}"
        )
    if stored.damaged:
        cells = f"{counted(len(stored.damaged), 'cell')} damaged, {cells}"
    return f"no verdict, {cells} measured"


def _campaign_note(stored: Stored, status: RunStatus) -> str:
    """The verdict in words, as Markdown: it heads the run's page."""
    planned = len(stored.plan.cells) if stored.plan is not None else len(stored.records)
    lines = []
    if status == "RUNNING":
        lines.append(f"**running**: {len(stored.records)} of {planned} cells measured")
        lines += [] if stored.standing is None else [f"\nso far: {stored.standing}"]
    if status == "KILLED":
        lines.append(f"**interrupted**: {len(stored.records)} of {planned} cells measured")
    for index, wrong in sorted(stored.damaged.items()):
        lines.append(f"**{_cell_at(stored, index)} is damaged, and left out**: {wrong}")
    if stored.environment.wrong is not None:
        lines.append(f"**environment not known**: {stored.environment.wrong}")
    if stored.outdated and status != "RUNNING":
        words = f"`python -m harness report {stored.directory.name}` judges what is left"
        lines.append(f"no verdict is shown, as the last one was of other cells; {words}")
    for r in stored.records:
        if r.status != "ok":
            lines.append(f"**{r.cell} {r.status}**: {r.status_detail or 'no reason given'}")
    if stored.verdict is not None:
        lines.insert(0, f"**{headline(stored.verdict)}**\n")
        drift = stored.verdict.drift
        lines += [f"**drift: {drift.verdict}**", *(f"- {r}" for r in drift.reasons)]
        for v in stored.verdict.verdicts:
            lines.append(f"\n**{v.candidate}: {v.outcome}**{numbers_in_words(v)}")
            lines += [f"- {v.effect_carried_by}"] if v.effect_carried_by else []
            lines += [f"- {r}" for r in v.reasons]
        lines += [f"\n**{line}**" for line in levels_in_words(stored.verdict.levels)]
        if stored.verdict.identity:
            lines.append(f"\n**{identity_in_words(stored.verdict.identity)}**")
    return "\n".join(lines) or "nothing measured"


def _cell_at(stored: Stored, index: int) -> str:
    cells = () if stored.plan is None else stored.plan.cells
    return next((c.name for c in cells if c.index == index), f"cell {index}")


# --- a cell --------------------------------------------------------------------------------------


def _cell_run(stored: Stored, record: CellRecord, cell_dir: Path) -> RunData:
    campaign = stored.directory.name
    arms = {} if stored.plan is None else stored.plan.arms
    arm = arms.get(record.arm)
    tokens = cell_dir / TOKENS
    content = tokens.read_bytes() if tokens.is_file() else b""
    digest = hashlib.sha256(LAYOUT.encode())
    for part in ((cell_dir / RECORD).read_bytes(), content):
        digest.update(hashlib.sha256(part).digest())
    start_ms = round((record.started_unix_s or 0.0) * 1e3)
    end_ms = start_ms if record.ended_unix_s is None else round(record.ended_unix_s * 1e3)
    tags = {
        CAMPAIGN: campaign,
        KIND: "cell",
        "harness.order": cell_order(record, campaign),
        "harness.status": record.status,
        "harness.timing": _timing(stored, record),
        NOTE: cut(_cell_note(record), TAG_CHARS),
        "mlflow.runColor": cell_colour(record, list(arms), campaign),
    }
    return RunData(
        name=cell_name(record, campaign),
        # a refusal that was asked for is no failure, and must not look like one among the others
        status="FINISHED" if record.is_result else _CELL_STATUS[record.status],
        start_ms=start_ms,
        end_ms=end_ms,
        params=cell_params(record, arm),
        tags=tags,
        read_points=partial(_read_points, record, cell_dir / TOKENS, start_ms),
        inputs=inputs(stored.environment.values, () if arm is None else (arm,)),
        files=tuple(p for p in sorted(cell_dir.iterdir()) if p.is_file() and p.name[0] != "."),
        digest=digest.hexdigest(),
    )


def _read_points(record: CellRecord, tokens: Path, start_ms: int) -> Iterator[Point]:
    content = tokens.read_bytes() if tokens.is_file() else b""
    return cell_points(record, read_tokens(content), start_ms)


def _timing(stored: Stored, record: CellRecord) -> str:
    """Whether the cell's speed is its arm's: clean, contaminated, unusable, unknown."""
    cells = () if stored.verdict is None else stored.verdict.cells
    return next((c.status for c in cells if c.index == record.index), "unknown")


def _cell_note(record: CellRecord) -> str:
    if record.status != "ok":
        return f"**{record.status}**: {record.status_detail or 'no reason given'}"
    return (
        f"{record.role} of arm {record.arm}. Series by token: the running value of the metric of "
        "the same name, so their last value is the cell's; `token/...` are the single tokens."
    )
