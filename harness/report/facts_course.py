"""What happened on a campaign's way: what was left out, what failed, what was waited for. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from harness.device.gates import outcome_in_words
from harness.journal import ended_as
from harness.records import CellRecord
from harness.report.contents import Contents
from harness.report.device_words import excursion_in_words
from harness.report.shown import Cell, Rows, Shown, number, spans, tone_of
from harness.words import counted

_FINAL = ("win", "loss", "equivalent")


def left_out(contents: Contents) -> Shown:
    """Pairs, cells and plans that no verdict rests on, and why; a damaged cell is named."""
    verdict = contents.verdict
    table = Rows("", ("what", "state", "cells", "why"))
    for pair in verdict.pairs:
        if pair.status != "clean":
            numbers = spans((*pair.baseline_cells, *pair.candidate_cells))
            what = f"pair {pair.block + 1} of {pair.candidate}"
            table.add(what, _state(pair.status), numbers, _joined(pair.reasons))
    for cell in verdict.cells:
        if cell.status in ("contaminated", "unusable"):
            table.add(
                f"cell {cell.cell}", _state(cell.status), str(cell.index), _joined(cell.reasons)
            )
    for index, wrong in sorted(contents.damaged.items()):
        name = next((c.name for c in contents.plan.cells if c.index == index), "of another plan")
        table.add(f"cell {name}", Cell("damaged", tone="bad"), str(index), wrong)
    read = {i for p in verdict.pairs for i in (*p.baseline_cells, *p.candidate_cells)}
    later = [r.index for r in contents.records if read and r.index not in read]
    if later:
        table.add(
            counted(len(later), "later cell"),
            Cell("not read", tone="unsure"),
            spans(later),
            "every verdict had fallen before",
        )
    known = {r.index for r in contents.records} | set(contents.damaged)
    missing = [c for c in contents.plan.cells if c.index not in known]
    if missing:
        table.add(
            counted(len(missing), "planned cell"),
            Cell("not run", tone="unsure"),
            spans([c.index for c in missing]),
            _why_not_run(contents),
        )
    return table.shown()


def _state(status: str) -> Cell:
    return Cell(status, tone=tone_of(status))


def _why_not_run(contents: Contents) -> str:
    verdicts = contents.verdict.verdicts
    end = ended_as(contents.events)
    if end == "campaign_finished":
        decided = bool(verdicts) and all(v.outcome in _FINAL for v in verdicts)
        return "decided before: not needed" if decided else "the campaign ended without them"
    if end is not None:
        how = end.removeprefix("campaign_")
        return f"{how}: {contents.events[-1].data.get('reason') or 'no reason recorded'}"
    return "the campaign has not come to its end"


def _joined(reasons: tuple[str, ...]) -> str:
    return "; ".join(reasons) or "no reason recorded"


# --- failures, excursions, what was odd ----------------------------------------------------------


def troubles(contents: Contents) -> Shown:
    """Cells that failed, sensors beyond limits, conditions that did not come, breaks."""
    table = Rows("", ("where", "what", "detail"))
    for where, what, detail in (*_of_cells(contents), *_of_journal(contents)):
        table.add(where, Cell(what, tone="bad" if what in _BAD else "unsure"), detail)
    return table.shown()


_BAD = ("failed", "killed")


def _of_cells(contents: Contents) -> Iterator[tuple[str, str, str]]:
    for r in contents.records:
        where = f"cell {r.index} {r.cell}"
        if r.status != "ok":
            code = "" if r.exit_code is None else f"exit code {r.exit_code}: "
            yield where, r.status, code + (r.status_detail or "no reason given")
        for excursion in r.excursions or ():
            yield where, "beyond a limit", excursion_in_words(excursion)
        for gate in r.wait.gates if r.wait else ():
            if gate.outcome != "met":
                yield where, "gate", outcome_in_words(gate)
        if r.predictor_disarmed is not None:
            disarmed = r.predictor_disarmed
            yield (
                where,
                "predictor disarmed",
                f"the control read {disarmed.control:.1%} after {disarmed.after_slots} slots",
            )
        for note in r.notes:
            yield where, "note", note
    for cell in contents.verdict.cells:
        for note in cell.notes:
            yield f"cell {cell.index} {cell.cell}", "note", note


def _of_journal(contents: Contents) -> Iterator[tuple[str, str, str]]:
    for e in contents.of("cell_repeated", "campaign_interrupted", "campaign_resumed"):
        if e.event == "cell_repeated":
            where = f"cell {e.data.get('index')} {e.data.get('cell')}"
            yield where, "run again", f"its first attempt does not count: {e.data.get('reason')}"
        elif e.event == "campaign_interrupted":
            yield "campaign", "interrupted", str(e.data.get("reason") or "no reason recorded")
        else:
            again = e.data.get("again")
            words = [f"cell {i}: {why}" for i, why in again.items()] if again else []
            yield "campaign", "resumed", "; ".join(words) or "with the next cell"


# --- waits ---------------------------------------------------------------------------------------


def waits(contents: Contents) -> Shown:
    """The pause before each cell, and what it waited for besides."""
    waited = [r for r in contents.records if r.wait is not None]
    table = Rows("", ("cell", "pause s", "why", "conditions"), numeric=("pause s",))
    for r in waited:
        table.add(f"{r.index} {r.cell}", _pause(r), r.wait.reason if r.wait else "", _gates(r))
    return table.shown()


def _pause(r: CellRecord) -> Cell:
    return number(r.wait.seconds if r.wait else None, ".1f")


def _gates(r: CellRecord) -> Cell:
    gates = r.wait.gates if r.wait else ()
    if not gates:
        return Cell("none", absent=True)
    return Cell("; ".join(outcome_in_words(g) for g in gates))
