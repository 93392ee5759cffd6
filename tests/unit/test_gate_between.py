"""The interval of a change between two days, and the rule that reads it."""

from __future__ import annotations

import dataclasses
import math
import random
import statistics
from itertools import pairwise

import pytest

from harness.gate.between import (
    DAYS_LOG,
    Cell,
    Side,
    between,
    spread_of_days,
    student_t,
)
from harness.gate.metrics import METRICS, OF_THE_SURROUNDINGS
from harness.gate.rule import change_pct, good_log, interval_pct, read, worst_log
from harness.records import Metrics

NO_HISTORY: tuple[float, ...] = ()


def side(*values: float, drift: float | None = 0.0, probe: float | None = None) -> Side:
    probes = {} if probe is None else {"compute": probe}
    return Side(tuple(Cell("B", v, probes) for v in values), drift)


def interval(
    baseline: Side, candidate: Side, differences: tuple[float, ...] = NO_HISTORY
) -> tuple[float, float]:
    found = between(
        "B", baseline, candidate, differences, timed=True, alpha_low=0.05, alpha_high=0.05
    )
    assert found.low is not None and found.high is not None
    assert found.low < found.change < found.high
    return found.low, found.high


@pytest.mark.parametrize(
    ("alpha", "freedom", "value"),
    [
        (0.05, 1, 6.314),
        (0.05, 10, 1.812),
        (0.025, 2, 4.303),
        (0.025, 30, 2.042),
        (0.05, 9999, 1.645),
    ],
)
def test_students_t_is_that_of_the_tables(alpha: float, freedom: int, value: float) -> None:
    assert student_t(alpha, freedom) == pytest.approx(value, abs=0.001)


def test_the_spread_of_days_is_found_though_an_engine_changed_once() -> None:
    rng = random.Random(1)  # noqa: S311
    found = []
    for _ in range(300):
        levels = [rng.gauss(0, 0.01) + (0.2 if day > 5 else 0.0) for day in range(12)]
        found.append(spread_of_days([b - a for a, b in pairwise(levels)])[0])
    # sqrt 2, as it is of differences
    assert 0.9 < statistics.fmean(found) / (0.01 * math.sqrt(2)) < 1.25


def test_what_widens_the_interval() -> None:
    then, now = side(0.0, 0.01), side(-0.05, -0.04)
    low, high = interval(then, now)
    drifted = interval(side(0.0, 0.01, drift=0.2), now)
    assert drifted[0] < low and drifted[1] > high
    restless = interval(then, now, (0.2, -0.2, 0.2))
    assert restless[0] < low and restless[1] > high
    calm = interval(then, now, (0.001, -0.001, 0.001))
    assert calm[1] < high, "two days are known to be alike here"
    assert interval(side(0.0, 0.0), side(-0.05, -0.05))[1] == pytest.approx(
        -0.05 + DAYS_LOG * 1.645, abs=1e-4
    )


def test_a_probe_that_moved_is_no_engine() -> None:
    then, now = side(0.0, 0.01, probe=0.0), side(-0.10, -0.09, probe=-0.1)
    low, high = interval(then, now, (0.001, -0.001, 0.001))
    assert low < -0.1 and high > -0.01
    faster = side(-0.10, -0.09, probe=0.1)
    assert interval(then, faster)[0] < -0.2, "it should have become faster"


def test_without_a_repeated_cell_or_a_history_nothing_is_bounded() -> None:
    found = between(
        "B", side(0.0), side(0.0), NO_HISTORY, timed=True, alpha_low=0.05, alpha_high=0.05
    )
    assert found.low is None and found.high is None
    assert read(found.change, found.low, found.high, -0.03)[0] == "none"
    assert interval(side(0.0), side(0.0), (0.01, -0.01, 0.01))


@pytest.mark.parametrize(
    ("change", "low", "high", "outcome"),
    [
        (-0.05, -0.07, -0.03, "regression"),
        (-0.02, -0.04, -0.01, "pass"),
        (0.00, -0.02, 0.02, "pass"),
        (0.05, 0.03, 0.07, "pass"),
        (0.00, -0.05, 0.05, "none"),
        (-0.05, -0.10, 0.01, "none"),
    ],
)
def test_the_rule(change: float, low: float, high: float, outcome: str) -> None:
    assert read(change, low, high, math.log(0.97))[0] == outcome


@pytest.mark.parametrize(("name", "worse"), [("tok_s", 97.0), ("load_s", 103.0)])
def test_worse_is_lower_or_higher_as_the_metric_has_it(name: str, worse: float) -> None:
    metric = METRICS[name]
    log = good_log(metric, worse) - good_log(metric, 100.0)
    assert log == pytest.approx(worst_log(metric, 3.0))
    assert change_pct(metric, log) == pytest.approx(worse - 100)
    found = interval_pct(metric, log - 0.01, log + 0.01)
    assert found is not None and found[0] < worse - 100 < found[1]


def test_every_metric_of_a_record_is_known_or_refused() -> None:
    recorded = {f.name for f in dataclasses.fields(Metrics)}
    ours = METRICS.keys() | set(OF_THE_SURROUNDINGS)
    assert recorded <= ours
    assert ours - recorded == {"given_perplexity", "perplexity"}
