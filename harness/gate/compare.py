"""Two campaigns, arm by arm and metric by metric: one case each. Pure.

What is compared, and what is refused: docs/gate.md.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.analysis.counters import drops
from harness.analysis.device_state import CpuSensor, cpu_sensor, states_in_order
from harness.analysis.usable import no_speed
from harness.gate.between import Between, Cell, Side, between
from harness.gate.comparable import matched, other_work, output_depends_on_timing, unlike
from harness.gate.metrics import METRICS, Metric
from harness.gate.nights import Night
from harness.gate.reading import clean_day_needed, measured_at_all, readable, time_problems
from harness.gate.result import OUTPUT
from harness.gate.rule import Case, GateOutcome, change_pct, good_log, interval_pct, read, worst_log
from harness.readings import ProbeResult
from harness.records import CellRecord
from harness.schema import VerdictConfig

# an arm is passed, or accused, wrongly at most so often, if the day-to-day spread is known
ALPHA = 0.05


@dataclass(frozen=True)
class Question:
    """`differences`: between earlier campaigns, by metric and arm. `arms`: None asks for all."""

    metrics: tuple[Metric, ...]
    margin_pct: float
    settings: VerdictConfig
    differences: Mapping[tuple[str, str], Sequence[float]]
    arms: tuple[str, ...] | None = None


def compare(baseline: Night, candidate: Night, question: Question) -> tuple[Case, ...]:
    """Every arm of the baseline is a case for each metric, and for its output."""
    arms = [a for a in baseline.arms if question.arms is None or a in question.arms]
    both = states_in_order([*baseline.records, *candidate.records])
    pair = _Pair(baseline, candidate, question, cpu_sensor([s for _, s in both]), max(len(arms), 1))
    cases = [case for arm in arms for case in pair.cases(arm)]
    absent = [m.name for m in question.metrics if all(c.metric != m.name for c in cases)]
    nowhere = ("was measured in no cell of either campaign",)
    return (*cases, *(Case("-", name, "none", reasons=nowhere) for name in absent))


@dataclass(frozen=True)
class _Read:
    """The cells of an arm that count; `timed`: the day is in them. `notes`: of those left out."""

    baseline: list[CellRecord]
    candidate: list[CellRecord]
    timed: bool
    notes: list[str]


@dataclass(frozen=True)
class _Pair:
    baseline: Night
    candidate: Night
    question: Question
    sensor: CpuSensor
    arms: int

    def cases(self, arm: str) -> Iterator[Case]:
        problems = unlike(arm, self.baseline, self.candidate)
        failed = self._failed(arm)
        nights = (self.baseline, self.candidate)
        problems += [w for n in nights if (w := n.mostly_lost(arm)) is not None]
        if not self.candidate.cells_of(arm) and not self.candidate.wrong:
            planned = any(c.arm == arm for c in self.candidate.plan.cells)
            problems += self.candidate.lost_of(arm) or [
                "none of its cells was measured"
                if planned
                else "it is not in the candidate campaign"
            ]
        for metric in self.question.metrics:
            if not measured_at_all(metric, arm, self.baseline, self.candidate):
                continue
            if problems:
                yield Case(arm, metric.name, "none", reasons=tuple(problems), failed=bool(failed))
            else:
                case = self._with_missing(self._case(arm, metric), metric)
                yield self._with_lost(self._with_failures(case, failed))
        if not problems and (output := self._output(arm)) is not None:
            yield self._with_lost(output)

    def _failed(self, arm: str) -> list[str]:
        """Cells of the candidate campaign that ended badly, where the baseline's have not all."""
        if not any(r.status == "ok" for r in self.baseline.cells_of(arm)):
            return []
        return [w for r in self.candidate.cells_of(arm) if not r.is_result for w in no_speed(r)]

    def _with_missing(self, case: Case, metric: Metric) -> Case:
        """What was not measured in a cell that ended well is no pass for it, as no output is.

        Of a limit the one cell that did not keep it may be the one that is not known.
        """
        without = [
            f"{r.cell} has no {metric.name} now: what was not measured did not pass"
            for r in self.candidate.cells_of(case.arm)
            if r.status == "ok" and metric.of(r) is None
        ]
        if not without or case.outcome != "pass":
            return case
        return replace(case, outcome="none", reasons=(*without, *case.reasons))

    @staticmethod
    def _with_failures(case: Case, failed: list[str]) -> Case:
        """What ended badly is no pass, whatever the others say."""
        if not failed or case.outcome == "regression":
            return case
        words = tuple(dict.fromkeys((*failed, *case.reasons)))
        return replace(case, outcome="none", failed=True, reasons=words)

    def _with_lost(self, case: Case) -> Case:
        """A record of the candidate that is lost may have been that of a cell that ended badly."""
        then = [f"then: {w}" for w in self.baseline.lost_of(case.arm)]
        now = [f"now: {w}" for w in self.candidate.lost_of(case.arm)]
        if now and case.outcome == "pass":
            return replace(
                case, outcome="none", reasons=tuple(dict.fromkeys((*now, *case.reasons, *then)))
            )
        return replace(case, reasons=tuple(dict.fromkeys((*case.reasons, *now, *then))))

    def _case(self, arm: str, metric: Metric) -> Case:
        b, why_b = readable(self.baseline, arm, metric)
        c, why_c = readable(self.candidate, arm, metric)
        notes = [f"then: {w}" for w in why_b] + [f"now: {w}" for w in why_c]
        timed = any(clean_day_needed(metric, r) for r in (*b, *c))
        if timed:
            problems = time_problems(self.baseline) + time_problems(self.candidate)
            if problems:
                return Case(arm, metric.name, "none", reasons=(*problems, *notes))
            before = len(b) + len(c)
            b, c, why = self._same_state(b, c)
            if len(b) + len(c) < before:
                left_out = f"{before - len(b) - len(c)} of {before} cells left out"
                notes.append(f"{left_out}, as none of the other campaign began like them: {why}")
        if not b or not c:
            side = "baseline" if not b else "candidate"
            first = next(iter(why_c if b else why_b), None)
            nothing = f"no cell of the {side} campaign can be read"
            nothing += "" if first is None else f" ({first})"
            return Case(arm, metric.name, "none", cells=(len(b), len(c)), reasons=(nothing, *notes))
        if metric.kind in ("work", "result") and not timed:
            return _exact(arm, metric, b, c, self.question.margin_pct)
        if metric.name == "anon_within_limit":
            return _kept_within(arm, metric, b, c)
        return self._estimated(arm, metric, _Read(b, c, timed, notes))

    def _same_state(
        self, b: list[CellRecord], c: list[CellRecord]
    ) -> tuple[list[CellRecord], list[CellRecord], str | None]:
        return matched(b, c, self.sensor, self.question.settings) if b and c else (b, c, None)

    def _estimated(self, arm: str, metric: Metric, cells: _Read) -> Case:
        b, c, timed = cells.baseline, cells.candidate, cells.timed
        means = _mean(metric, b), _mean(metric, c)
        values = {metric.of(r) for r in (*b, *c)}
        if len(values) == 1:
            same = f"{means[0]:g} in all of them"
            return Case(
                arm, metric.name, "pass", *means, 0.0, (0.0, 0.0), (len(b), len(c)), (same,)
            )
        if min(v for v in values if v is not None) <= 0:
            zero = f"{metric.name} is 0 in some cells: no change in percent can be told"
            return Case(arm, metric.name, "none", *means, cells=(len(b), len(c)), reasons=(zero,))
        found = between(
            arm,
            self._side(self.baseline, metric, b, timed),
            self._side(self.candidate, metric, c, timed),
            self.question.differences.get((metric.name, arm), ()),
            timed=timed,
            alpha_low=ALPHA,
            alpha_high=ALPHA / self.arms,
        )
        worst = worst_log(metric, self.question.margin_pct)
        outcome, words = read(found.change, found.low, found.high, worst)
        return Case(
            arm,
            metric.name,
            outcome,
            *means,
            change_pct(metric, found.change),
            interval_pct(metric, found.low, found.high),
            (len(b), len(c)),
            (words, *_basis(found), *cells.notes, *self._work_differs(b[0], c[0])),
        )

    def _side(self, night: Night, metric: Metric, own: Sequence[CellRecord], timed: bool) -> Side:
        """The cells that are read, and those of other arms, which show the spread as well."""
        cells = [*own]
        for arm in night.arms:
            if arm != own[0].arm:
                cells += [r for r in readable(night, arm, metric)[0] if (metric.of(r) or 0) > 0]
        drift = night.verdict.drift.sentinel_change_pct if timed else None
        return Side(
            cells=tuple(
                Cell(r.arm, good_log(metric, value), _probes(r) if timed else {})
                for r in cells
                if (value := metric.of(r)) is not None
            ),
            drift=None if drift is None else good_log(_SPEED, 1 + drift / 100),
        )

    def _work_differs(self, b: CellRecord, c: CellRecord) -> tuple[str, ...]:
        """Under one configuration it is the build's doing, and said; it is no fault by itself."""
        differing = other_work(b, c, 0.1)
        return (f"the work differs: {'; '.join(differing)}",) if differing else ()

    def _output(self, arm: str) -> Case | None:
        """Whether what was generated, or its likelihood, is what it was."""
        b, c = (
            [r for r in n.cells_of(arm) if r.status == "ok"]
            for n in (self.baseline, self.candidate)
        )
        if not b or not c or output_depends_on_timing(b[0]) or output_depends_on_timing(c[0]):
            return None
        if drops(b[0]) and self.baseline.builds != self.candidate.builds:
            return None  # what is dropped depends on which experts each build keeps
        found = _same_results(b, c)
        if found is None:
            return None
        outcome, reasons = found
        return Case(arm, OUTPUT, outcome, cells=(len(b), len(c)), reasons=reasons)


def _same_results(
    b: list[CellRecord], c: list[CellRecord]
) -> tuple[GateOutcome, tuple[str, ...]] | None:
    """None where the baseline shows nothing to compare. What is missing now is not equal."""
    others: list[str] = []
    missing: list[str] = []
    known = False
    for words in _results(b[0]):
        then, now = ({_results(r)[words] for r in own} - {None} for own in (b, c))
        if not then:
            continue
        if len(then) > 1:
            why = f"{words} differed between the cells of the baseline campaign already"
            return "none", (why,)
        known = True
        without = [r.cell for r in c if _results(r)[words] is None]
        if without:
            which = ", ".join(without[:3]) + (", ..." if len(without) > 3 else "")
            missing.append(f"{words} of {which} was not recorded now, as it was then")
        if len(now) > 1:
            others.append(f"{words} differs between the cells of the candidate campaign")
        elif now and then != now:
            others.append(f"{words} is another: {_short(then)} then, {_short(now)} now")
    if others:
        return "regression", (*others, *missing)
    if missing:
        return "none", tuple(missing)
    return ("pass", ("the same",)) if known else None


_SPEED = METRICS["tok_s"]


def _basis(found: Between) -> list[str]:
    reasons = [f"the interval rests on {found.basis}"] if found.low is not None else [found.basis]
    for name, log in found.probes.items():
        reasons.append(
            f"the {name} probe says that the device became {abs(change_pct(_SPEED, log)):.1f} % "
            f"{'faster' if log > 0 else 'slower'} meanwhile: the interval holds the change with "
            "and without that"
        )
    return reasons


def _exact(
    arm: str, metric: Metric, b: list[CellRecord], c: list[CellRecord], margin_pct: float
) -> Case:
    """Work that does not depend on timing: equal in all cells of a campaign, or not to be read."""
    cells = (len(b), len(c))
    for words, own in (("baseline", b), ("candidate", c)):
        if len({metric.of(r) for r in own}) > 1:
            why = f"the cells of the {words} campaign did not do the same work"
            return Case(arm, metric.name, "none", cells=cells, reasons=(why,))
    then, now = _mean(metric, b), _mean(metric, c)
    exact = "counted, not timed: no interval, and no clean device needed"
    if then == now:
        return Case(arm, metric.name, "pass", then, now, 0.0, None, cells, (exact,))
    worse = now < then if metric.higher_is_better else now > then
    change = (now / then - 1) * 100 if then else None
    beyond = change is None or abs(change) > margin_pct
    outcome: GateOutcome = "regression" if worse and beyond else "pass"
    return Case(arm, metric.name, outcome, then, now, change, None, cells, (exact,))


def _kept_within(arm: str, metric: Metric, b: list[CellRecord], c: list[CellRecord]) -> Case:
    """A limit is kept or not; there is no margin to it."""
    then, now = (min(metric.of(r) or 0.0 for r in own) for own in (b, c))
    outcome: GateOutcome = "regression" if now < then else "pass"
    words = f"within the limit: {'yes' if then else 'no'} then, {'yes' if now else 'no'} now"
    return Case(arm, metric.name, outcome, then, now, None, None, (len(b), len(c)), (words,))


def _mean(metric: Metric, cells: Sequence[CellRecord]) -> float:
    return statistics.fmean(v for r in cells if (v := metric.of(r)) is not None)


def _probes(record: CellRecord) -> dict[str, float]:
    """ln of how fast each probe was, of its runs before and after the cell."""
    found: dict[str, float] = {}
    for name, field in (("compute", "compute_ms"), ("direct reads", "read_ms")):
        runs = [p for p in (record.probe.before, record.probe.after) if p is not None]
        times = [_time(p, field) for p in runs]
        known = [t for t in times if t is not None]
        if known:
            found[name] = -good_log(_SPEED, statistics.fmean(known))
    return found


def _time(probe: ProbeResult, field: str) -> float | None:
    value = getattr(probe, field)
    return value if value is not None and value > 0 else None


def _results(record: CellRecord) -> dict[str, object]:
    """What shows whether a cell computed the same as another."""
    return {
        "the text": record.output_sha256,
        "the likelihood of the text": record.metrics.nll,
        "the perplexity": None if record.perplexity is None else record.perplexity.nll,
    }


def _short(values: set[object]) -> str:
    (value,) = values
    return str(value)[:16]
