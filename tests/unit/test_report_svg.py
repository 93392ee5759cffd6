"""Small drawings: scales that do not lie, gaps that stay gaps, text that stays text."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from report_parts import throttled_four_cells, throttled_pairs

from harness.report.shown import spans
from harness.report.svg import Drawing, Scale, padded, polyline, steps
from harness.report.svg_effects import attribution, effects
from harness.report.trace_columns import traces_of
from harness.verdicts import AttributionRow, CampaignVerdict, CandidateVerdict, Drift, PairRow

NONE = Drift("unknown", None)


def drawn(drawing: Drawing | None) -> ET.Element:
    """Read as XML, which finds what is not closed or not escaped."""
    assert drawing is not None
    return ET.fromstring(drawing.svg())  # noqa: S314


def words(drawing: Drawing | None) -> str:
    return " ".join(t.text or "" for t in drawn(drawing).iter("text"))


# --- scales --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (-3.2, 7.9), (1e-6, 2e-6), (250, 251), (-1e9, 1e9), (0, 0)]
)
def test_ticks_are_round_within_and_enough_to_tell_a_distance(low: float, high: float) -> None:
    scale = Scale(low, high, 0, 300)
    ticks = scale.ticks(3)
    assert all(low - 1e-9 * abs(low) <= t <= high + 1e-9 * abs(high) for t in ticks)
    assert len(ticks) >= (2 if high > low else 0)
    assert len(ticks) <= 12


@pytest.mark.parametrize(("low", "high"), [(190, 720), (1, 1000), (3.1, 3.2), (0.02, 50_000)])
def test_ticks_of_a_logarithmic_scale_are_two_at_least(low: float, high: float) -> None:
    ticks = Scale(low, high, 200, 0, log=True).ticks(6)
    assert len(ticks) >= 2
    assert all(low <= t <= high for t in ticks)


def test_equal_ratios_are_equally_far_apart_on_a_logarithmic_scale() -> None:
    scale = Scale(1, 100, 0, 100, log=True)
    assert scale(10) == pytest.approx(50)
    assert scale.all(np.array([1.0, 10.0, 100.0])) == pytest.approx([0, 50, 100])


def test_a_range_around_equal_values_is_not_empty() -> None:
    for values in ([5.0, 5.0], [0.0], [], [math.nan]):
        low, high = padded(values)
        assert low < high


def test_a_line_has_a_gap_where_nothing_was_measured() -> None:
    x = np.arange(5.0)
    assert polyline(x, np.array([0, 1, np.nan, 3, 4])).count("M") == 2
    assert polyline(x, np.full(5, np.nan)) == ""
    assert polyline(np.array([1.0]), np.array([2.0])) == "M1 2"


def test_a_line_comes_out_where_it_went_in() -> None:
    """Rounding is of each point, it does not add up along the line."""
    rng = np.random.default_rng(1)
    x, y = np.cumsum(rng.uniform(0, 1, 500)), rng.uniform(0, 100, 500)
    start, _, rest = polyline(x, y).partition("l")
    at = np.array([float(n) for n in start[1:].split()])
    moves = np.array([float(n) for n in rest.split()]).reshape(-1, 2)
    end = at + moves.sum(axis=0)
    assert end == pytest.approx([x[-1], y[-1]], abs=0.06)


def test_a_cap_stays_until_another_is_seen() -> None:
    x, y = steps(np.array([0.0, 1.0, 2.0]), np.array([9.0, 5.0, 5.0]))
    assert list(zip(x, y, strict=True)) == [(0, 9), (1, 9), (1, 5), (2, 5), (2, 5)]


def test_indices_are_told_in_spans() -> None:
    assert spans([3, 0, 1, 2, 7, 9, 10]) == "0 to 3, 7, 9 10"
    assert spans([]) == ""


# --- drawings ------------------------------------------------------------------------------------


def candidate(outcome: str = "win", **changes: object) -> CandidateVerdict:
    values: dict[str, object] = {"effect_pct": 5.0, "ci_pct": (3.0, 7.0)}
    return CandidateVerdict("c<&", "b", outcome, **(values | changes))  # type: ignore[arg-type]


def test_effects_are_drawn_with_their_interval_against_the_margin() -> None:
    verdict = CampaignVerdict("x", NONE, (candidate(),))
    for width in (380.0, 1000.0):
        said = words(effects(verdict, 3.0, width))
        assert "+5.0 % (+3.0 to +7.0)" in said and "within 3 %" in said and "▲ c<&" in said


def test_an_effect_that_is_nobodys_is_not_drawn() -> None:
    """It was measured, but it is not the candidate's."""
    silent = candidate("contaminated")
    assert effects(CampaignVerdict("x", NONE, (silent,)), 3.0, 1000.0) is None
    both = effects(CampaignVerdict("x", NONE, (candidate(), silent)), 3.0, 1000.0)
    assert "no effect can be read (+5.0 % measured)" in words(both)
    points = [p for p in drawn(both).iter("path") if "point" in (p.get("class") or "")]
    assert len(points) == 1


def test_parts_without_a_time_have_no_bar() -> None:
    rows = [
        AttributionRow("c", "waiting", True, 3.0, 1.8, (1.5, 2.1), carries=True),
        AttributionRow("c", "computing", True, 1.0, 0.1, None),
        AttributionRow("c", "faulting", False, None, None, None),
    ]
    said = words(attribution("c", rows, 1000.0))
    assert "carries it: +1.8 ms" in said and "page faults" not in said
    assert attribution("c", rows[2:], 1000.0) is None


def test_pairs_are_compared_token_by_token_so_that_a_drift_falls_out() -> None:
    """The device slows by 40 %; within every pair the candidate is slower by its own 8 % or so."""
    made = throttled_pairs(pairs=8, tokens=96)
    blocks = {c.index: c.block for c in made.plan.cells}
    rows = tuple(
        PairRow(
            "spec2",
            block,
            tuple(r.index for r in made.records if (blocks[r.index], r.arm) == (block, "baseline")),
            tuple(r.index for r in made.records if (blocks[r.index], r.arm) == (block, "spec2")),
            "clean" if block else "replaced",
        )
        for block in range(8)
    )
    verdict = CampaignVerdict(
        "x", NONE, (CandidateVerdict("spec2", "baseline", "loss"),), pairs=rows
    )
    traces = traces_of(verdict, made.plan, made.records, made.series)
    assert traces is not None and traces.compared
    found = traces.columns[0].paired_percent()
    assert [counts for _, counts in found] == [False, *[True] * 7]
    middle = [float(np.median(percent[16:])) for percent, counts in found if counts]
    speeds = [r.metrics.tok_s or 0 for r in made.records if r.arm == "baseline"]
    assert max(speeds) / min(speeds) > 1.3, "the device did slow down"
    assert 3 < np.median(middle) < 20


def test_without_pairs_a_cell_is_compared_with_the_baseline_cells_beside_it() -> None:
    made = throttled_four_cells(tokens=64)
    used = CandidateVerdict("spec2", "baseline", "provisional_loss", cells_used=(2, 3))
    other = CandidateVerdict("retention", "baseline", "unreadable")
    verdict = CampaignVerdict("x", NONE, (other, used))
    traces = traces_of(verdict, made.plan, made.records, made.series)
    assert traces is not None
    retention, spec2 = (column.pairs for column in traces.columns)
    assert [(p.baseline, p.candidate, p.counts) for p in retention] == [((0,), (1,), False)]
    assert [(p.baseline, p.candidate, p.counts) for p in spec2] == [((3,), (2,), True)]
