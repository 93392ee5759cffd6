"""Which cells of a campaign count for a metric, and why the others do not. Pure.

By the product's own rules of contamination and drift, those that its verdicts go by.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from harness.analysis.usable import no_speed
from harness.gate.comparable import depends_on_timing, output_depends_on_timing
from harness.gate.metrics import Metric
from harness.gate.nights import Night
from harness.gate.rule import good_log
from harness.records import CellRecord

# of designs that have no sentinel the drift is not known, and every cell stands for itself
_WITHOUT_SENTINEL = ("survey", "levels")


def time_problems(night: Night) -> list[str]:
    """Why no timing of the campaign can be held against another day's."""
    drift = night.verdict.drift
    if drift.verdict == "stable":
        return []
    if night.plan.design in _WITHOUT_SENTINEL and drift.verdict == "unknown":
        return []
    why = f" ({drift.reasons[-1]})" if drift.reasons else ""
    return [f"{night.id}: the drift is {drift.verdict.replace('_', ' ')}{why}"]


def readable(night: Night, arm: str, metric: Metric) -> tuple[list[CellRecord], list[str]]:
    """The arm's cells that count for the metric, and why the others do not."""
    kept: list[CellRecord] = []
    why: list[str] = []
    for record in night.cells_of(arm):
        problems = [] if metric.of(record) is not None else [f"{record.cell} has no {metric.name}"]
        if record.status != "ok":
            problems = no_speed(record)
        elif not problems and clean_day_needed(metric, record):
            verdict = night.examined.get(record.index)
            if verdict is None or verdict.status != "clean":
                state = "not examined" if verdict is None else verdict.status
                reasons = () if verdict is None else verdict.reasons[:1]
                problems = [f"{record.cell} is {state}" + "".join(f": {r}" for r in reasons)]
        why += problems
        if not problems:
            kept.append(record)
    return kept, why + night.lost_of(arm)


def clean_day_needed(metric: Metric, record: CellRecord) -> bool:
    """The device's day is in it: in times, and in the work of an arm whose work depends on them."""
    if metric.kind == "result":
        return output_depends_on_timing(record)
    return metric.kind == "time" or (metric.kind == "work" and depends_on_timing(record))


def measured_at_all(metric: Metric, arm: str, *nights: Night) -> bool:
    """False for an arm whose cells ended well and have no such metric: of a cell that scores a text
    there is no speed, say; or that was refused, as it was to be, in every night.
    """
    if all(n.cells_of(arm) and all(map(_refused_as_asked, n.cells_of(arm))) for n in nights):
        return False
    ended = [[r for r in n.cells_of(arm) if r.status == "ok"] for n in nights]
    return not all(ended) or any(metric.of(r) is not None for own in ended for r in own)


def _refused_as_asked(record: CellRecord) -> bool:
    """A ladder's level below what the engine needs: a result, with nothing to measure."""
    return record.status == "refused" and record.is_result


def sound(night: Night, metrics: Sequence[Metric], arms: Sequence[str] | None = None) -> list[str]:
    """Why the campaign cannot serve others as their baseline; empty where it can."""
    asked = night.arms if arms is None else arms
    if night.wrong is not None:
        return [f"{night.id}: {night.wrong}"]
    problems = [w for a in asked for r in night.cells_of(a) if not r.is_result for w in no_speed(r)]
    problems += [w for arm in asked for w in night.lost_of(arm)]
    for metric in metrics:
        for arm in asked:
            if not measured_at_all(metric, arm, night):
                continue
            cells, why = readable(night, arm, metric)
            if not cells:
                problems += [f"{arm} has no readable {metric.name}", *why]
            elif clean_day_needed(metric, cells[0]):
                problems += time_problems(night)
    return list(dict.fromkeys(problems))


def level(night: Night, arm: str, metric: Metric) -> float | None:
    """ln of the metric of the arm in this campaign, more is better; None: it is not to be read."""
    cells, _ = readable(night, arm, metric)
    values = [v for c in cells if (v := metric.of(c)) is not None]
    timed = bool(cells) and clean_day_needed(metric, cells[0])
    if night.wrong or not values or min(values) <= 0 or (timed and time_problems(night)):
        return None
    return statistics.fmean(good_log(metric, v) for v in values)
