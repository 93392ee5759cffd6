"""A device from its own A/A campaign: what is read off it, and what is simulated on it."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from harness.analysis.device_noise import MIN_CELLS, DeviceNoise, device_of, simulate_device
from harness.analysis.series import Array
from harness.analysis.simulate import WARMUP_TOKENS, Campaign, simulate
from harness.readings import ProbeResult, Probes
from harness.records import CellRecord

# simulations, drawings, fuzzing: seconds each; CI runs them all
pytestmark = pytest.mark.slow


def device(scenario: str, seed: int = 1) -> DeviceNoise:
    _, records, series = simulate(scenario, seed=seed)
    return device_of(records, series)


def steady_log(campaign: Campaign) -> Array:
    _, records, series = campaign
    return np.log([series[r.index].wall_ms[WARMUP_TOKENS:].mean() for r in records])


def probes_ms(records: list[CellRecord]) -> Array:
    found = [(r.probe.before, r.probe.after) for r in records]
    return np.array([[p.compute_ms for p in both if p is not None] for both in found])


# --- what is read off ----------------------------------------------------------------------------


def test_a_drift_is_found_and_does_not_count_as_spread() -> None:
    for seed in range(4):
        quiet, day = device("none", seed), device("day40", seed)
        assert abs(quiet.drift_log) < 0.05
        assert day.drift_log > 0.35
        assert day.between_cells_log_sd < 0.06 < np.std(steady_log(simulate("day40", seed=seed)))
        assert quiet.between_cells_log_sd < 0.035


def test_a_noisier_device_has_the_larger_spread() -> None:
    quiet, storm = (np.mean([device(s, k).between_cells_log_sd for k in range(4)]) for s in DAYS)
    assert storm > 3 * quiet


DAYS = ("none", "storm")


@pytest.mark.parametrize("scenario", ["none", "ramp17", "day40"])
def test_what_is_left_of_a_drift_is_the_spread_of_a_device_without(scenario: str) -> None:
    """Neither narrowed by what is fitted nor widened by what is not; over many campaigns."""
    ratios = []
    for seed in range(30):
        _, records, series = simulate(scenario, seed=seed, pairs=12)
        spread = np.std(steady_log(simulate("none", seed=seed, pairs=12)), ddof=1)
        ratios.append(device_of(records, series).between_cells_log_sd / spread)
    assert np.median(ratios) == pytest.approx(1.0, abs=0.15)


def test_probe_tokens_and_clock_are_read_off() -> None:
    d = device("none")
    assert d.probe_log_sd is not None and 0.004 < d.probe_log_sd < 0.02
    assert d.within_cell_log_sd == pytest.approx(0.035, abs=0.004)
    assert d.spacing_s == 30.0 and d.gap_s == pytest.approx(0.0, abs=0.01)
    assert 40 < d.cell_s < 60


def test_what_passes_between_cells_beside_the_spacing_is_kept() -> None:
    _, records, series = simulate("none", seed=1)
    later = [
        dataclasses.replace(
            r,
            started_unix_s=r.started_unix_s + 7.0 * r.index,
            ended_unix_s=r.ended_unix_s + 7.0 * r.index,
        )
        for r in records
    ]
    d = device_of(later, series)
    assert d.gap_s == pytest.approx(7.0, abs=0.01)
    _, simulated, _ = simulate_device(d, seed=1, pairs=2)
    for a, b in itertools.pairwise(simulated):
        assert b.started_unix_s - a.ended_unix_s == pytest.approx(37.0, abs=0.02)


def test_a_log_without_clock_and_probe_serves_as_well() -> None:
    _, records, series = simulate("none", seed=1)
    bare = [
        dataclasses.replace(r, started_unix_s=None, ended_unix_s=None, probe=Probes())
        for r in records
    ]
    d = device_of(bare, series)
    assert d.probe_log_sd is None
    assert d.cell_s == pytest.approx(np.median([s.wall_ms.sum() / 1e3 for s in series.values()]))
    _, simulated, _ = simulate_device(d, seed=1)
    assert all(r.probe == Probes() for r in simulated)
    assert simulated[1].started_unix_s == pytest.approx(simulated[0].ended_unix_s + 30.0)


def test_cells_that_did_not_end_well_are_left_out_and_too_few_are_refused() -> None:
    _, records, series = simulate("none", seed=1, pairs=5)
    records[0] = dataclasses.replace(records[0], status="failed", exit_code=1)
    del series[records[1].index]
    d = device_of(records, series)
    assert [r.index for r in d.records] == list(range(2, 10))
    assert len(d.records) == MIN_CELLS
    with pytest.raises(ValueError, match="7 of its cells"):
        device_of(records[:-1], series)


# --- what is simulated ---------------------------------------------------------------------------


def test_every_simulated_cell_is_a_measured_one_moved_and_scaled() -> None:
    _, records, series = simulate("bursts", seed=5, pairs=8)
    d = device_of(records, series)
    measured = {np.round(np.log(s.wall_ms / s.wall_ms[0]), 6).tobytes() for s in series.values()}
    plan, simulated, traces = simulate_device(d, seed=3, effect_pct=-5.0)
    assert [r.arm for r in simulated] == [c.arm for c in plan.cells]
    for r in simulated:
        trace = traces[r.index]
        assert np.round(np.log(trace.wall_ms / trace.wall_ms[0]), 6).tobytes() in measured
        assert trace.wall_ms == pytest.approx(trace.io_ms + trace.compute_ms, rel=1e-3)
        assert r.counters == records[0].counters
        lasted_s = r.ended_unix_s - r.started_unix_s
        assert lasted_s > trace.wall_ms.sum() / 1e3


def test_neighbours_stay_neighbours_and_all_cells_are_as_likely() -> None:
    _, records, series = simulate("none", seed=5, pairs=10)
    d = device_of(records, series)
    mem = [r.entry.mem_available_bytes for r in records]  # tells the cells apart
    followed, counts = 0, np.zeros(len(records))
    for seed in range(60):
        _, simulated, _ = simulate_device(d, seed=seed)
        sources = [mem.index(r.entry.mem_available_bytes) for r in simulated]
        counts += np.bincount(sources, minlength=len(records))
        followed += sum((b - a) % len(records) == 1 for a, b in itertools.pairwise(sources))
    assert followed / (60 * 35) > 0.7
    assert counts.min() > 0.6 * counts.mean() and counts.max() < 1.4 * counts.mean()


def test_cells_in_which_the_drift_moves_keep_their_places() -> None:
    """A cell that throttled within its first tokens is no neighbour of the campaign's end."""
    _, records, series = simulate("ramp17", seed=9, pairs=12)
    mem = [r.entry.mem_available_bytes for r in records]  # tells the cells apart
    d = device_of(records, series)
    fast = np.flatnonzero(d.drift.moving)
    assert 0 < len(fast) < 10 and fast[0] == 0
    for seed in range(20):
        _, simulated, _ = simulate_device(d, seed=seed)
        sources = [mem.index(r.entry.mem_available_bytes) for r in simulated]
        assert all(sources[i] == i for i in fast)
        assert not set(sources[len(records) :]) & set(fast)


def test_the_effect_is_the_candidates_alone() -> None:
    d = device("none")
    same, slower = (steady_log(simulate_device(d, seed=2, effect_pct=e)) for e in (0.0, -20.0))
    _, records, _ = simulate_device(d, seed=2)
    for i, r in enumerate(records):
        wanted = 0.0 if r.arm == "B" else np.log(1.25)
        assert slower[i] - same[i] == pytest.approx(wanted, abs=0.02)
    with pytest.raises(ValueError, match="leaves no speed"):
        simulate_device(d, seed=2, effect_pct=-100.0)


def test_the_drift_comes_again_in_speed_and_probe_then_stays() -> None:
    d = device("day40")
    medians = np.median([steady_log(simulate_device(d, seed=s)) for s in range(9)], axis=0)
    assert medians[-1] - medians[0] == pytest.approx(d.drift_log, abs=0.06)
    _, records, _ = simulate_device(d, seed=1)
    probes = np.log(probes_ms(records).mean(axis=1))
    assert np.mean(probes[-4:]) - np.mean(probes[:2]) > 0.3
    longer = np.median([steady_log(simulate_device(d, seed=s, pairs=40)) for s in range(9)], axis=0)
    assert np.median(longer[60:]) - np.median(longer[32:40]) == pytest.approx(0.0, abs=0.03)


def test_the_spread_of_simulated_cells_is_the_devices() -> None:
    d = device("reclaim")
    spread = []
    for seed in range(40):
        campaign = simulate_device(d, seed=seed)
        at_s = np.array([r.started_unix_s for r in campaign[1]])
        rest = steady_log(campaign) - d.drift.at(at_s)
        spread.append(np.var(rest))
    assert np.sqrt(np.mean(spread)) == pytest.approx(d.between_cells_log_sd, rel=0.15)


def test_a_seed_gives_one_campaign() -> None:
    d = device("storm")
    a, b, c = (simulate_device(d, seed=s, pairs=4) for s in (7, 7, 8))
    assert a[1] == b[1] and np.array_equal(steady_log(a), steady_log(b))
    assert a[1] != c[1]


def test_the_drift_is_monotone_and_single_cells_do_not_bend_it() -> None:
    _, records, series = simulate("none", seed=1, pairs=6)
    walls = [1.0, 1.0, 1.0, 9.0, 1.0, 1.0, 4.0, 4.0, 3.0, 3.0, 4.0, 4.0]
    wanted = np.array([1.0] * 5 + [10 / 3] * 3 + [4.0] * 4)
    for sign in (1, -1):
        shaped = {
            r.index: dataclasses.replace(series[r.index], wall_ms=np.full(96, np.exp(sign * w)))
            for r, w in zip(records, walls, strict=True)
        }
        assert device_of(records, shaped).drift.log == pytest.approx(sign * wanted)


def test_a_reading_probe_is_left_as_it_was() -> None:
    _, records, series = simulate("day40", seed=1)
    reads = ProbeResult(read_ms=3.0)
    d = device_of([dataclasses.replace(r, probe=Probes(reads, reads)) for r in records], series)
    assert d.probe_log_sd is None
    _, simulated, _ = simulate_device(d, seed=1, pairs=2)
    assert all(r.probe == Probes(reads, reads) for r in simulated)
