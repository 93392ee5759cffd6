"""The coin test: against its definition spelled out, exact error, symmetries, intervals."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.analysis.randomisation import (
    Q_GRID,
    CoinTest,
    estimate,
    joint_p_values,
    least_p,
)

ALPHA = 0.05


def pairs(coins: list[bool] | int, effect: float = 0.0, seed: int = 0, **of: float) -> Any:
    """y, x, units, probes of pairs; `of`: sd of the noise, of the device's steps, of probes."""
    rng = np.random.default_rng(seed)
    k = coins if isinstance(coins, int) else len(coins)
    first = rng.integers(0, 2, k) if isinstance(coins, int) else np.array(coins, int)
    x = np.column_stack([first, 1 - first]).ravel().astype(float)
    walk = np.cumsum(rng.normal(0, of.get("walk", 0.01), 2 * k))
    y = 5.0 + walk + rng.normal(0, of.get("noise", 0.01), 2 * k) + effect * x
    probe = 4.6 + walk + rng.normal(0, of.get("probe", 0.015), 2 * k)
    return y, x, np.repeat(np.arange(k), 2), probe


# --- against the definition ----------------------------------------------------------------------


def by_definition(y: Any, x: Any, units: Any, probe: Any, effect: float) -> float:
    """The p-value of `effect`, outcome by outcome, in the words of the published method."""
    n = len(y)
    z = y - effect * x
    if probe is not None:
        dz, dp = np.diff(z), np.diff(probe)
        b = np.clip((dz * dp).sum() / ((dp**2).sum() + (n - 1) * 0.015**2), 0, 1.2)
        z = z - b * (probe - probe.mean())
    design = np.column_stack([np.ones(n), np.arange(n)])
    best, p_matrix = np.inf, None
    for q in (0, 0.02, 0.1, 0.4, 1.5, 6, 30):
        v = np.eye(n) + q * np.array([[min(i, j) for j in range(n)] for i in range(n)])
        vi = np.linalg.inv(v)
        p = vi - vi @ design @ np.linalg.inv(design.T @ vi @ design) @ design.T @ vi
        reml = (
            (n - 2) * np.log(z @ p @ z)
            + np.linalg.slogdet(v)[1]
            + np.linalg.slogdet(design.T @ vi @ design)[1]
        )
        if reml < best:
            best, p_matrix = reml, p

    def t(labels: Any) -> float:
        beta = (labels @ p_matrix @ z) / (labels @ p_matrix @ labels)
        left = z @ p_matrix @ z - beta * (labels @ p_matrix @ z)
        return abs(beta * np.sqrt(labels @ p_matrix @ labels) / np.sqrt(left))

    names = list(dict.fromkeys(units))
    observed, count = t(x), 0
    outcomes = list(itertools.product((False, True), repeat=len(names)))
    for flips in outcomes:
        turned = np.array([flips[names.index(u)] for u in units])
        count += t(np.where(turned, 1 - x, x)) >= observed * (1 - 1e-9)
    return count / len(outcomes)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("effect", [0.0, 0.013, -0.4])
@pytest.mark.parametrize("probed", [False, True])
def test_p_is_that_of_the_definition(seed: int, effect: float, probed: bool) -> None:
    y, x, units, probe = pairs(5, 0.02, seed, walk=0.03 * (seed % 3))
    probe = probe if probed else None
    own = CoinTest(y, x, units, probe).p(effect)
    assert own == pytest.approx(by_definition(y, x, units, probe, effect), abs=1e-12)


def test_the_coin_of_a_block_turns_all_its_cells() -> None:
    rng = np.random.default_rng(3)
    blocks = [[0, 1, 1, 0], [1, 0, 0, 1], [1, 0, 0, 1], [0, 1, 1, 0], [0, 1, 1, 0]]
    x = np.array(blocks, float).ravel()
    units = np.repeat(range(5), 4)
    y = rng.normal(0, 0.01, 20) + 0.01 * x
    test = CoinTest(y, x, units, None)
    assert test.coins == 5
    assert test.p() == pytest.approx(by_definition(y, x, units, None, 0.0), abs=1e-12)


# --- exact error ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_over_all_outcomes_of_the_coins_the_error_is_what_it_says(seed: int) -> None:
    """Whatever the device did: of all orders that could have been drawn, few reject."""
    rng = np.random.default_rng(seed)
    y = 5 + np.cumsum(rng.standard_t(2, 12) * 0.05)  # nothing that the model assumes
    mean = y + rng.standard_t(1.5, 12) * 0.1
    noise = rng.uniform(1, 30, 12)
    probe = y + rng.normal(0, 0.02, 12)
    single, joint = [], []
    for coins in itertools.product((0, 1), repeat=6):
        x = np.array([[c, 1 - c] for c in coins], float).ravel()
        units = np.repeat(range(6), 2)
        tests = [CoinTest(v, x, units, probe, noise=noise) for v in (y, mean)]
        single.append(tests[0].p())
        joint.append(joint_p_values(tests, np.zeros(1))[0])
    for found in (single, joint):
        for level in (2 / 64, 0.05, 0.1, 0.25, 0.5):
            assert np.mean(np.array(found) <= level + 1e-9) <= level + 1e-9


# --- symmetries ----------------------------------------------------------------------------------

drawn = st.tuples(
    st.lists(st.booleans(), min_size=6, max_size=8),
    st.integers(0, 10_000),
    st.floats(-0.1, 0.1),
)


@given(drawn, st.floats(-3, 3))
@settings(max_examples=25, deadline=None)
def test_another_level_of_all_cells_changes_nothing(of: Any, shift: float) -> None:
    y, x, units, probe = pairs(of[0], of[2], of[1])
    a = estimate(y, x, units, probe, alpha=ALPHA)
    b = estimate(y + shift, x, units, probe + shift, alpha=ALPHA)
    assert a.p == b.p
    assert a.effect == pytest.approx(b.effect, abs=1e-8)
    for one, other in zip(a.interval, b.interval, strict=True):
        assert one == pytest.approx(other, abs=5e-5)


@given(drawn)
@settings(max_examples=25, deadline=None)
def test_exchanged_arms_turn_the_sign(of: Any) -> None:
    y, x, units, probe = pairs(of[0], of[2], of[1])
    a = estimate(y, x, units, probe, alpha=ALPHA)
    b = estimate(y, 1 - x, units, probe, alpha=ALPHA)
    assert a.p == b.p
    assert a.effect is not None and b.effect is not None
    assert a.effect == pytest.approx(-b.effect, abs=1e-8)
    for one, other in zip(a.interval, reversed(b.interval), strict=True):
        assert (one is None) == (other is None)
        assert one is None or other is None or one == pytest.approx(-other, abs=5e-5)


@given(drawn, st.floats(0.1, 10))
@settings(max_examples=25, deadline=None)
def test_another_unit_of_time_scales_the_effect(of: Any, scale: float) -> None:
    y, x, units, _ = pairs(of[0], of[2], of[1])
    a = estimate(y, x, units, None, alpha=ALPHA)
    b = estimate(y * scale, x, units, None, alpha=ALPHA)
    assert a.p == b.p
    assert a.effect is not None
    assert b.effect == pytest.approx(a.effect * scale, rel=1e-6, abs=1e-9)


def test_an_effect_put_in_comes_out() -> None:
    y, x, units, probe = pairs(10, 0.0, 4)
    a = estimate(y, x, units, probe, alpha=ALPHA)
    b = estimate(y + 0.07 * x, x, units, probe, alpha=ALPHA)
    assert a.effect is not None and b.effect is not None
    assert b.effect - a.effect == pytest.approx(0.07, abs=1e-8)
    for one, other in zip(a.interval, b.interval, strict=True):
        assert one is not None and other is not None
        assert other - one == pytest.approx(0.07, abs=6e-5)


# --- intervals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_the_ends_are_where_the_test_begins_to_reject(seed: int) -> None:
    y, x, units, probe = pairs(7 + seed % 4, 0.03, seed, walk=0.02)
    found = estimate(y, x, units, probe, alpha=ALPHA)
    test = CoinTest(y, x, units, probe)
    low, high = found.interval
    assert low is not None and high is not None and found.effect is not None
    assert low < found.effect < high
    just_inside = np.linspace(0, 5e-5, 11)
    for effects in (low + just_inside, high - just_inside):
        assert np.max(test.p_values(effects)) > ALPHA
    outside = np.concatenate([low - np.geomspace(1e-4, 3, 200), high + np.geomspace(1e-4, 3, 200)])
    assert np.all(test.p_values(outside) <= ALPHA)


def test_few_coins_bound_nothing() -> None:
    for k in (2, 3, 5):
        y, x, units, probe = pairs(k, 0.3, k)
        found = estimate(y, x, units, probe, alpha=ALPHA)
        assert found.interval == (None, None)
        assert found.p >= least_p(k) == 2 ** (1 - k)
    y, x, units, probe = pairs(6, 0.3, 6, walk=0)
    assert None not in estimate(y, x, units, probe, alpha=ALPHA).interval


@pytest.mark.parametrize("k", [0, 1])
def test_without_coins_there_is_no_effect_to_speak_of(k: int) -> None:
    y, x, units, probe = pairs(k, 0.3)
    found = estimate(y, x, units, probe, alpha=ALPHA)
    assert (found.effect, found.interval, found.p) == (None, (None, None), 1.0)


def test_many_coins_are_drawn_and_said_to_be() -> None:
    y, x, units, probe = pairs(20, 0.03, 1)
    found = estimate(y, x, units, probe, alpha=ALPHA)
    assert found.drawn
    assert found == estimate(y, x, units, probe, alpha=ALPHA)
    assert found.p <= 0.001
    assert not estimate(*pairs(14, 0.03, 1), alpha=ALPHA).drawn


def test_cells_that_are_all_alike_have_no_effect() -> None:
    _, x, units, _ = pairs(7, 0.0, 1)
    found = estimate(np.full(14, 5.0), x, units, None, alpha=ALPHA)
    assert found.p == 1.0
    assert found.effect == pytest.approx(0, abs=1e-9)


# --- the model -----------------------------------------------------------------------------------


def test_a_device_that_wanders_is_taken_for_one() -> None:
    calm = estimate(*pairs(12, 0.0, 5, walk=0.0)[:3], None, alpha=ALPHA)
    wandering = estimate(*pairs(12, 0.0, 5, walk=0.2)[:3], None, alpha=ALPHA)
    assert calm.q == 0.0
    assert wandering.q >= 1.5


def test_probes_that_follow_the_device_narrow_the_interval() -> None:
    y, x, units, probe = pairs(10, 0.0, 2, walk=0.1, probe=0.002)
    blind = estimate(y, x, units, None, alpha=ALPHA)
    seeing = estimate(y, x, units, probe, alpha=ALPHA)
    assert seeing.b == pytest.approx(0.9, abs=0.1)
    assert width(seeing) < width(blind) / 2


def test_a_cell_that_is_not_trusted_counts_less() -> None:
    y, x, units, _ = pairs(10, 0.0, 2, walk=0.0)
    y[7] += 0.5
    noise = np.ones(20)
    noise[7] = 2500
    assert width(estimate(y, x, units, None, alpha=ALPHA, noise=noise)) < (
        width(estimate(y, x, units, None, alpha=ALPHA)) / 2
    )


def width(found: Any) -> float:
    low, high = found.interval
    assert low is not None and high is not None
    return float(high - low)


def test_one_sided_values_are_halves_of_all_outcomes() -> None:
    y, x, units, probe = pairs(8, 0.05, 3)
    test = CoinTest(y, x, units, probe)
    assert test.p_beyond(0.2, above=False) == pytest.approx(1 / 256)
    assert test.p_beyond(-0.2, above=True) == pytest.approx(1 / 256)
    assert test.p_beyond(0.2, above=True) == 1.0


def test_a_given_walk_is_used() -> None:
    y, x, units, probe = pairs(8, 0.05, 3)
    assert {estimate(y, x, units, probe, alpha=ALPHA, q=q).q for q in Q_GRID} == set(Q_GRID)


@pytest.mark.parametrize("broken", ["short", "nan", "probe"])
def test_what_is_missing_is_refused(broken: str) -> None:
    y, x, units, probe = pairs(7, 0.0, 1)
    if broken == "short":
        y = y[:-1]
    elif broken == "nan":
        y[3] = np.nan
    else:
        probe[2] = np.inf
    with pytest.raises(ValueError, match="one finite value"):
        CoinTest(y, x, units, probe)
