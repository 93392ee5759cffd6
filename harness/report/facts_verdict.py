"""A verdict as the parts of a report: what stands first, tables, reasons. Touches nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis import tables
from harness.analysis.attribution_words import IN_WORDS, attribution_table
from harness.analysis.evidence import looks_table
from harness.analysis.found import finding_tables
from harness.analysis.identity import identity_in_words
from harness.analysis.levels import details_in_words, levels_in_words
from harness.analysis.verdict_labels import DRIFT_WORDS, FINDING_WORDS, OUTCOME_WORDS
from harness.analysis.verdict_words import numbers_in_words
from harness.records import CellRecord
from harness.report.contents import Contents
from harness.report.shown import (
    NOT_MEASURED,
    Cell,
    Rows,
    Shown,
    Tone,
    number,
    spans,
    table_of,
    tone_of,
    without_empty_columns,
)
from harness.report.svg_effects import symbol
from harness.verdicts import CampaignVerdict, CandidateVerdict
from harness.words import counted

# what other parts of a report tell
_APART = ("cells", "pairs", "looks", "attribution")
_SENTENCES = {"levels": ("detail",)}


@dataclass(frozen=True)
class Said:
    """One candidate's verdict in words; `carried_by`: what carries the effect.

    `cells`: on which it rests, empty where on none.
    """

    head: str
    symbol: str
    tone: Tone
    carried_by: str | None
    cells: str
    reasons: tuple[str, ...]


def overall_tone(verdict: CampaignVerdict) -> Tone:
    """Of all candidates, if they agree; what is provisional is nothing to rely on."""
    tones = {
        "unsure" if v.outcome.startswith("provisional") else tone_of(v.outcome)
        for v in verdict.verdicts
    }
    return tones.pop() if len(tones) == 1 else "unsure" if tones else ""


def chips(c: Contents) -> list[Cell]:
    """What a reader must know beside the sentence: drift, failures, what is missing."""
    drift = c.verdict.drift
    change = drift.sentinel_change_pct
    by = "" if change is None else f" {change:+.1f} %"
    # where nothing is compared it cannot be known, and matters to nobody
    tone: Tone = tone_of(drift.verdict) if c.verdict.verdicts else ""
    made = [Cell(f"drift: {_spaced(drift.verdict)}{by}", tone=tone)]
    failed = sum(not r.is_result for r in c.records)
    if failed:
        made.append(Cell(f"{counted(failed, 'cell')} did not end well", tone="bad"))
    if c.damaged:
        made.append(Cell(f"{counted(len(c.damaged), 'cell')} damaged", tone="bad"))
    if c.verdict.pairs:
        out = sum(p.status in ("replaced", "confounded") for p in c.verdict.pairs)
        made.append(Cell(f"{out} of {counted(len(c.verdict.pairs), 'pair')} left out"))
    else:
        dirty = sum(v.status == "contaminated" for v in c.verdict.cells)
        if dirty:
            words = f"{dirty} of {counted(len(c.verdict.cells), 'cell')} contaminated"
            made.append(Cell(words, tone="unsure"))
    if c.imported is not None:
        made.append(Cell(f"imported ({c.imported.get('kind')})"))
    return made


def candidates(c: Contents) -> list[Said]:
    """Every candidate's verdict with what only it has for reasons."""
    shared = shared_reasons(c.verdict.verdicts)
    return [
        Said(
            f"{v.candidate} against {v.baseline}: {OUTCOME_WORDS[v.outcome]}{numbers_in_words(v)}",
            symbol(v.outcome).strip(),
            tone_of(v.outcome) or "unsure",
            v.effect_carried_by,
            spans(v.cells_used),
            tuple(r for r in v.reasons if r not in shared),
        )
        for v in c.verdict.verdicts
    ]


def shared_reasons(verdicts: Sequence[CandidateVerdict]) -> tuple[str, ...]:
    """The reasons that every one of several candidates has."""
    if len(verdicts) < 2:
        return ()
    rest = [set(v.reasons) for v in verdicts[1:]]
    return tuple(r for r in verdicts[0].reasons if all(r in other for other in rest))


def effects_table(verdict: CampaignVerdict) -> Shown:
    """A row a candidate."""
    numeric = (
        *("change of tok/s", "interval from", "interval to"),
        *("change of the typical token", "p", "clean pairs", "disturbed pairs"),
    )
    # only between builds of the engine
    output = ("greedy output",) if any(v.output is not None for v in verdict.verdicts) else ()
    table = Rows("", ("candidate", "against", "verdict", *numeric, *output), numeric)
    for v in verdict.verdicts:
        low, high = v.ci_pct or (None, None)
        table.add(
            v.candidate,
            v.baseline,
            Cell(f"{symbol(v.outcome)}{_spaced(v.outcome)}", tone=tone_of(v.outcome)),
            _percent(v.effect_pct),
            _percent(low),
            _percent(high),
            _percent(v.typical_token_effect_pct),
            number(v.p, ".4f"),
            number(v.clean_pairs, "d"),
            number(v.disturbed_pairs or None, "d"),
            *(Cell(v.output or "one engine", tone=tone_of(v.output or "")) for _ in output),
        )
    return without_empty_columns(table.shown())


def _percent(value: float | None) -> Cell:
    return Cell(NOT_MEASURED, absent=True) if value is None else Cell(f"{value:+.1f} %")


def drift_in_words(verdict: CampaignVerdict) -> str:
    change = verdict.drift.sentinel_change_pct
    by = "" if change is None else f" ({change:+.1f} %)"
    return f"{DRIFT_WORDS[verdict.drift.verdict]}{by}"


def findings(verdict: CampaignVerdict) -> list[Shown]:
    """What cells found beside speed: every table that a terminal shows of it."""
    return [
        without_empty_columns(table_of(data, FINDING_WORDS[name], without=_SENTENCES.get(name, ())))
        for name, data in finding_tables(verdict, brief=True).items()
        if name not in _APART
    ]


def finding_lines(verdict: CampaignVerdict) -> list[str]:
    """Sentences of the same."""
    lines = [*levels_in_words(verdict.levels), *details_in_words(verdict.levels)]
    return lines + ([identity_in_words(verdict.identity)] if verdict.identity else [])


def looks(verdict: CampaignVerdict) -> Shown:
    return table_of(looks_table(verdict.looks), FINDING_WORDS["looks"])


def attribution(verdict: CampaignVerdict) -> Shown:
    data = attribution_table(verdict.attribution)
    notes = [f"{r.candidate}, {IN_WORDS[r.part]}: {r.note}" for r in verdict.attribution if r.note]
    table = table_of(data, FINDING_WORDS["attribution"], without=("note",), notes=notes)
    return without_empty_columns(table)


def predictions(records: Sequence[CellRecord]) -> list[Shown]:
    """Of cells that logged predictors: what those scored, over all and by layer."""
    made = []
    for r in records:
        if r.prediction is None:
            continue
        notes = [f"routings that the stale gate could not rank: {r.prediction.unscored_routings}"]
        control = tables.control_share(r.prediction)
        if control is None or control < tables.CONTROL_AT_LEAST:
            read = "was not scored" if control is None else f"reads {control:.2%}"
            notes.append(
                f"warning: the control {read}, {tables.CONTROL_AT_LEAST:.1%} is the least: the "
                "scores above are not of this model's router"
            )
        words = f"{r.cell}: predictors against the router; the speed of a probed run says nothing"
        made.append(table_of(tables.predictors(r.prediction), words, notes=notes))
        by_layer = tables.predictors_by_layer(r.prediction)
        made.append(table_of(by_layer, f"{r.cell}: slot overlap by layer"))
    return [table for table in made if table]


def _spaced(word: str) -> str:
    return word.replace("_", " ")
