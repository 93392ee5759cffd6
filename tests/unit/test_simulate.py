"""The drift simulator: the effect asked for is there, and each kind of day looks like itself."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import random
from collections.abc import Callable

import numpy as np
import pytest
from shared_data import DATA

from harness.analysis.counters import compare_work
from harness.analysis.scenarios import CAPS_KHZ, SCENARIOS
from harness.analysis.series import Array
from harness.analysis.simulate import WARMUP_TOKENS, Campaign, simulate
from harness.jsonable import from_json, to_json
from harness.planned import Plan
from harness.readings import DeviceState
from harness.records import CellRecord

# simulations, drawings, fuzzing: seconds each; CI runs them all
pytestmark = pytest.mark.slow

SHARED = DATA / "simulated"


def walls(campaign: Campaign) -> Array:
    _, records, series = campaign
    return np.array([series[r.index].wall_ms for r in records])


def log_speeds(campaign: Campaign) -> Array:
    return -np.log(walls(campaign)[:, WARMUP_TOKENS:].mean(axis=1))


def of_arm(campaign: Campaign, arm: str) -> list[int]:
    return [i for i, r in enumerate(campaign[1]) if r.arm == arm]


def part_ms(campaign: Campaign, arm: str, part: str) -> float:
    """Mean over the arm's cells and the tokens after the warm-up."""
    indices = of_arm(campaign, arm)
    of = [getattr(campaign[2][i], part)[WARMUP_TOKENS:] for i in indices]
    return float(np.mean(of))


def cap_khz(state: DeviceState | None) -> int:
    assert state is not None and state.cpufreq[0].scaling_max_khz is not None
    return state.cpufreq[0].scaling_max_khz


def probes_ms(record: CellRecord) -> tuple[float, float]:
    before, after = record.probe.before, record.probe.after
    assert before is not None and before.compute_ms is not None
    assert after is not None and after.compute_ms is not None
    return before.compute_ms, after.compute_ms


def mem_bytes(record: CellRecord) -> int:
    assert record.entry is not None and record.entry.mem_available_bytes is not None
    return record.entry.mem_available_bytes


# --- determinism, design -------------------------------------------------------------------------


def test_a_seed_gives_one_campaign_and_another_seed_another() -> None:
    a, b, c = (simulate("storm", seed=seed, pairs=3) for seed in (5, 5, 6))
    assert a[0] == b[0] and a[1] == b[1]
    assert np.array_equal(walls(a), walls(b))
    assert not np.array_equal(walls(a), walls(c))


def test_the_campaign_of_a_seed_does_not_change_with_platform_or_time() -> None:
    """All that a later version may change on purpose; then the figures of the docs change too."""
    campaign = simulate("storm", seed=11, pairs=2, tokens=20)
    assert walls(campaign)[3, :3].tolist() == PINNED_MS
    assert [r.arm for r in campaign[1]] == PINNED_ARMS


PINNED_MS = [244.155, 185.852, 173.292]
PINNED_ARMS = ["C", "B", "C", "B"]


def test_the_effect_does_not_change_what_else_happens() -> None:
    """Two campaigns of one seed differ in the candidate's speed alone, where heat does not act."""
    same, slower = (simulate("none", seed=3, effect_pct=e, pairs=4) for e in (0.0, -20.0))
    for i in of_arm(same, "B"):
        assert np.array_equal(walls(same)[i], walls(slower)[i])
    for i in of_arm(same, "C"):
        assert walls(slower)[i] / walls(same)[i] == pytest.approx(1.25, rel=1e-4)


def test_coins_come_again_from_their_seed() -> None:
    plan, records, _ = simulate("none", seed=9, pairs=18)
    assert plan.coins is not None and plan.coins.seed == 9
    coin = random.Random(9)  # noqa: S311
    assert plan.coins.orders == tuple(tuple(coin.sample(["B", "C"], 2)) for _ in range(18))
    assert [r.arm for r in records] == [arm for order in plan.coins.orders for arm in order]
    assert len(set(plan.coins.orders)) == 2


@pytest.mark.parametrize("design", ["pairs", "abba"])
def test_blocks_hold_every_arm_equally_often(design: str) -> None:
    plan, records, series = simulate(
        "none", seed=2, pairs=5, design=design, candidates=("C1", "C2")
    )
    each = 1 if design == "pairs" else 2
    for block in range(5):
        arms = [c.arm for c in plan.cells if c.block == block]
        assert sorted(arms) == sorted(["B", "C1", "C2"] * each)
        assert design == "pairs" or arms == arms[::-1]
    assert [c.index for c in plan.cells] == [r.index for r in records] == list(series)


def test_four_cells_close_with_the_sentinel_at_the_baselines_arm() -> None:
    plan, records, _ = simulate(
        "ramp17", seed=1, design="four_cell", candidates=("retention", "spec2"), tokens=128
    )
    assert [r.arm for r in records] == ["B", "retention", "spec2", "B"]
    assert records[-1].role == "sentinel" and plan.coins is None


def test_a_campaign_is_what_a_directory_can_hold() -> None:
    plan, records, series = simulate("day40", seed=4, pairs=2)
    assert from_json(Plan, to_json(plan)) == plan
    assert [from_json(CellRecord, to_json(r)) for r in records] == records
    for r in records:
        s = series[r.index]
        assert r.counters.read_bytes == int(np.sum(s.read_bytes))
        assert r.metrics.tok_s == pytest.approx(1e3 * len(s) / s.wall_ms.sum())
        assert np.allclose(s.wall_ms, s.io_ms + s.compute_ms, atol=2e-3)


def test_cells_follow_each_other_with_the_spacing_between() -> None:
    _, records, _ = simulate("none", seed=4, pairs=4, spacing_s=45.0)
    for a, b in itertools.pairwise(records):
        assert b.started_unix_s - a.ended_unix_s == pytest.approx(45.0, abs=0.01)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"scenario": "sunny"}, "no scenario; there are none, mild"),
        ({"tokens": 16}, "warm-up"),
        ({"pairs": 0}, "at least one block"),
        ({"design": "four_cell", "pairs": 3}, "no blocks"),
        ({"candidates": ()}, "are needed"),
        ({"candidates": ("B",)}, "are needed"),
        ({"effect_pct": (1.0, 2.0)}, "2 effects for 1"),
        ({"effect_pct": -100.0}, "leaves no speed"),
        ({"effect_pct": 400.0, "effect_on": "io"}, "than io"),
    ],
)
def test_what_cannot_be_simulated_is_said(change: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        simulate(**{"scenario": "none", "seed": 1} | change)  # type: ignore[arg-type]


# --- the effect ----------------------------------------------------------------------------------


@pytest.mark.parametrize("on", ["all", "io", "compute", "bytes"])
@pytest.mark.parametrize("effect_pct", [-10.0, 5.0])
def test_the_effect_is_there_in_the_part_that_carries_it(on: str, effect_pct: float) -> None:
    campaigns = [simulate("none", seed=s, effect_pct=effect_pct, effect_on=on) for s in range(6)]
    gains = []
    for c in campaigns:
        y = log_speeds(c)
        gains.append(np.median(y[of_arm(c, "C")]) - np.median(y[of_arm(c, "B")]))
    assert 100 * np.expm1(np.mean(gains)) == pytest.approx(effect_pct, abs=0.6)
    for part, carried_by in (("io_ms", ("all", "io", "bytes")), ("compute_ms", ("all", "compute"))):
        change = np.mean([part_ms(c, "C", part) / part_ms(c, "B", part) - 1 for c in campaigns])
        if on in carried_by:
            assert change * effect_pct < 0 and abs(change) > 0.03
        else:
            assert abs(change) < 0.01


def test_several_candidates_have_an_effect_each() -> None:
    c = simulate("none", seed=8, effect_pct=(-20.0, 10.0), candidates=("slow", "fast"))
    y = log_speeds(c)
    base = np.median(y[of_arm(c, "B")])
    assert np.expm1(np.median(y[of_arm(c, "slow")]) - base) == pytest.approx(-0.2, abs=0.02)
    assert np.expm1(np.median(y[of_arm(c, "fast")]) - base) == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_all_cells_do_equal_work_whatever_the_day(scenario: str) -> None:
    _, records, series = simulate(scenario, seed=12, effect_pct=-10.0, pairs=6)
    assert all(compare_work(records[0], r, 0.0).equal for r in records)
    first = series[0].read_bytes
    assert all(np.array_equal(first, s.read_bytes) for s in series.values())


def test_more_bytes_are_more_work_of_one_arm() -> None:
    c = simulate("none", seed=12, effect_pct=-10.0, effect_on="bytes", pairs=4)
    b, changed = c[1][of_arm(c, "B")[0]], c[1][of_arm(c, "C")[0]]
    assert not compare_work(b, changed, 0.1).equal
    assert all(compare_work(changed, c[1][i], 0.0).equal for i in of_arm(c, "C"))


# --- each kind of day ----------------------------------------------------------------------------


def residuals(campaign: Campaign) -> Array:
    """ln wall less the cell's median, less the median trace over cells; (cells, tokens)."""
    logs = np.log(walls(campaign)[:, WARMUP_TOKENS:])
    logs = logs - np.median(logs, axis=1, keepdims=True)
    return logs - np.median(logs, axis=0)


def steps_inside(campaign: Campaign) -> int:
    """Cells whose trace is best split, 24 tokens on both sides, into medians 6 % apart."""
    found = 0
    for r in residuals(campaign):
        gaps = [abs(np.median(r[:k]) - np.median(r[k:])) for k in range(24, len(r) - 24)]
        found += max(gaps) > 0.06
    return found


def typical(campaign: Campaign) -> Array:
    return np.median(np.log(walls(campaign)[:, WARMUP_TOKENS:]), axis=1)


def over_seeds(scenario: str, what: Callable[[Campaign], float], seeds: int = 8) -> Array:
    return np.array([what(simulate(scenario, seed=100 + s)) for s in range(seeds)])


def test_steps_are_inside_cells_on_the_day_of_steps_only() -> None:
    assert np.mean(over_seeds("step", steps_inside)) >= 2
    for quiet in ("none", "mild", "reclaim"):
        assert np.mean(over_seeds(quiet, steps_inside)) < 0.5


def test_steps_slow_computing_twice_as_much_as_reading() -> None:
    for seed in range(3):
        _, records, series = simulate("step", seed=seed)
        logs = {
            part: [np.log(np.median(getattr(series[r.index], part))) for r in records]
            for part in ("compute_ms", "io_ms")
        }
        slope = np.polyfit(logs["compute_ms"], logs["io_ms"], 1)[0]
        assert slope == pytest.approx(0.5, abs=0.15)


def test_tokens_stall_more_often_in_bursts() -> None:
    day = SCENARIOS["bursts"]
    assert day.bursts is not None
    calm, wild = (
        dataclasses.replace(day, bursts=dataclasses.replace(day.bursts, stall_factor=factor))
        for factor in (1.0, 20.0)
    )
    for seed in range(3):
        few, many = (np.mean(residuals(simulate(s, seed=seed)) > 0.5) for s in (calm, wild))
        assert many > 2 * few


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_cap_falls_where_the_day_has_trip_points_and_only_there(scenario: str) -> None:
    _, records, _ = simulate(scenario, seed=21)
    caps = [cap_khz(s) for r in records for s in (r.entry, r.exit)]
    assert set(caps) <= set(CAPS_KHZ)
    assert caps == sorted(caps, reverse=True)
    assert (caps[-1] < caps[0]) == bool(SCENARIOS[scenario].caps)


def test_the_ramp_throttles_within_the_first_cells_and_the_day_goes_on_slowing() -> None:
    def slower_after(a: int, b: int) -> Callable[[Campaign], float]:
        return lambda c: float(np.mean(typical(c)[b : b + 4]) - np.mean(typical(c)[a : a + 1]))

    assert np.all(over_seeds("ramp17", slower_after(0, 6)) > 0.03)
    assert np.all(np.abs(over_seeds("ramp17", slower_after(20, 30))) < 0.12)
    assert np.all(over_seeds("day40", slower_after(0, 30)) > 0.35)
    assert np.all(over_seeds("day40", slower_after(20, 30)) > 0.005)
    assert np.all(np.abs(over_seeds("none", slower_after(0, 30))) < 0.05)


def test_a_longer_pause_keeps_the_device_faster() -> None:
    for seed in range(4):
        short, long = (simulate("ramp17", seed=seed, spacing_s=s) for s in (30.0, 600.0))
        assert cap_khz(long[1][-1].entry) > cap_khz(short[1][-1].entry)
        assert typical(long)[-1] < typical(short)[-1] - 0.05
        # what a cell took from the cap, the pause gives back
        pairs = itertools.pairwise(long[1])
        assert any(cap_khz(b.entry) > cap_khz(a.exit) for a, b in pairs)


def test_the_probe_sees_what_slows_the_device_and_not_what_memory_does() -> None:
    def moved(c: Campaign) -> float:
        return sum(abs(np.log(b / a)) > 0.06 for a, b in map(probes_ms, c[1]))

    assert np.all(over_seeds("none", moved) == 0)
    assert np.mean(over_seeds("reclaim", moved)) < 0.5
    assert np.mean(over_seeds("bursts", moved)) > 2
    assert np.mean(over_seeds("step", moved)) > 2

    c = simulate("day40", seed=2)
    probes = [np.log(np.mean(probes_ms(r))) for r in c[1]]
    assert np.corrcoef(probes, typical(c))[0, 1] > 0.98


def test_memory_falls_faults_rise_and_tokens_stall_under_pressure() -> None:
    def stalled(c: Campaign) -> float:
        return float(np.mean(residuals(c)[-12:] > 0.3))

    assert np.all(over_seeds("none", stalled) < 0.02)
    for scenario in ("reclaim", "storm"):
        assert np.all(over_seeds(scenario, stalled) > 0.05)
        _, records, series = simulate(scenario, seed=3)
        assert mem_bytes(records[-1]) < mem_bytes(records[0]) - 1e9
        faults = [float(np.mean(series[k].majflt)) for k in (0, 1, 2, 33, 34, 35)]
        assert max(faults[:3]) < min(faults[3:])


def test_stalls_move_the_mean_and_leave_the_typical_token() -> None:
    c = simulate("reclaim", seed=3)
    assert np.std(log_speeds(c)) > 2 * np.std(typical(c))


def test_a_log_without_faults_has_none() -> None:
    with_faults, without = (simulate("storm", seed=1, pairs=2, majflt=m) for m in (True, False))
    assert np.array_equal(walls(with_faults), walls(without))
    assert all(s.majflt is None for s in without[2].values())
    assert all(r.metrics.majflt_per_token is None for r in without[1])
    assert all(s.majflt is not None for s in with_faults[2].values())


# --- against the published campaigns -------------------------------------------------------------


def figures(walls_ms: Array, probes: Array) -> dict[str, float]:
    """Of a campaign: shape of its traces, spread of its cells, noise and range of its probe."""
    scored = walls_ms[:, WARMUP_TOKENS:]
    logs = np.log(scored)
    residual = logs - np.median(logs, axis=1, keepdims=True)
    residual -= np.median(residual, axis=0)
    medians, p = np.median(logs, axis=1), np.log(probes.mean(axis=1))
    return {
        "cv": float(np.mean(scored.std(axis=1) / scored.mean(axis=1))),
        "lag1": float(np.mean([np.corrcoef(row[:-1], row[1:])[0, 1] for row in logs])),
        "token_sd": float(1.4826 * np.median(np.abs(residual))),
        "stalled": float(np.mean(residual > 0.3)),
        "typical_range": float(np.ptp(medians)),
        "probe_sd": float(np.std(np.diff(p)) / np.sqrt(2)),
        "probe_range": float(np.ptp(p)),
    }


@pytest.mark.skipif(not SHARED.is_dir(), reason="the published simulated campaigns are not here")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_figures_of_published_campaigns_are_among_ours(scenario: str) -> None:
    ours = []
    for seed in range(30):
        c = simulate(scenario, seed=seed, effect_pct=-5.0 * (seed % 2))
        ours.append(figures(walls(c), np.array([probes_ms(r) for r in c[1]])))
    for d in sorted(SHARED.glob(f"{scenario}-*")):
        with (d / "campaign.csv").open() as f:
            cells = list(csv.DictReader(f))
        rows = [np.genfromtxt(d / c["file"], delimiter=",", names=True) for c in cells]
        theirs = figures(
            np.array([r["wall_ms"] for r in rows]),
            np.array([[float(c["probe_entry_ms"]), float(c["probe_exit_ms"])] for c in cells]),
        )
        for name, value in theirs.items():
            low, high = min(o[name] for o in ours), max(o[name] for o in ours)
            slack = 0.5 * (high - low) + 0.002
            assert low - slack <= value <= high + slack, f"{d.name} {name}"
