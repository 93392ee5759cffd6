"""Randomised blocks: what the coins decide, and what must hold whatever they decide."""

from __future__ import annotations

from collections import Counter

import pytest
from cell_parts import Numbers
from hypothesis import given
from hypothesis import strategies as st

from harness.configure import check, compose
from harness.errors import UsageError
from harness.jsonable import from_json, to_json
from harness.looks import look_schedule
from harness.plan import make_plan, toss
from harness.planned import GivenText, Plan

TEXTS = {"heldout": GivenText("/held/out.txt", "e" * 64)}


def planned(*overrides: str, experiment: str = "sequential_pairs") -> Plan:
    config = check(compose([f"+experiment={experiment}", *overrides]))
    return make_plan(config, Numbers(), 4, TEXTS)


def blocks(plan: Plan) -> list[list[str]]:
    found: dict[int | None, list[str]] = {}
    for cell in plan.cells:
        found.setdefault(cell.block, []).append(cell.arm)
    assert list(found) == list(range(len(found)))
    return list(found.values())


def test_each_pair_is_one_cell_of_each_arm_in_the_order_drawn() -> None:
    plan = planned("design.seed=3")
    assert plan.design == "pairs" and plan.coins is not None
    assert len(blocks(plan)) == 18
    assert [tuple(b) for b in blocks(plan)] == list(plan.coins.orders)
    assert {tuple(sorted(b)) for b in blocks(plan)} == {("baseline", "candidate")}
    assert {tuple(b) for b in blocks(plan)} == {
        ("baseline", "candidate"),
        ("candidate", "baseline"),
    }


def test_cells_are_called_after_arm_and_block() -> None:
    plan = planned("design.seed=3", "design.pairs=2")
    assert sorted(c.name for c in plan.cells) == [
        *("baseline_01", "baseline_02"),
        *("candidate_01", "candidate_02"),
    ]
    assert [c.index for c in plan.cells] == [0, 1, 2, 3]
    assert [c.wait_s for c in plan.cells] == [0, 30, 30, 30]
    assert {(c.arm, c.role) for c in plan.cells} == {
        ("baseline", "baseline"),
        ("candidate", "candidate"),
    }


def test_an_abba_block_runs_forth_and_back() -> None:
    plan = planned("design=abba", "design.seed=5")
    for block in blocks(plan):
        assert block == block[::-1]
        assert Counter(block) == {"baseline": 2, "candidate": 2}
    assert {c.name for c in plan.cells if c.block == 0} == {
        *("baseline_01a", "baseline_01b"),
        *("candidate_01a", "candidate_01b"),
    }


def test_several_candidates_share_every_block() -> None:
    plan = planned("design=pairs", "design.seed=1", experiment="matched_pair")
    assert {tuple(sorted(b)) for b in blocks(plan)} == {("baseline", "retention", "spec2")}
    assert len(blocks(plan)) == look_schedule(2).blocks


@given(st.integers(0, 2**63 - 1), st.integers(2, 5), st.integers(1, 40))
def test_a_seed_gives_the_same_orders_again(seed: int, arms: int, n: int) -> None:
    names = [f"a{i}" for i in range(arms)]
    coins = toss(names, n, seed)
    assert coins == toss(names, n, seed)
    assert len(coins.orders) == n
    assert all(sorted(order) == names for order in coins.orders)
    # more blocks of the same seed begin with the same orders
    assert toss(names, n + 3, seed).orders[:n] == coins.orders


def test_coins_are_fair() -> None:
    orders = toss(["b", "c"], 4000, 7).orders
    heads = sum(o[0] == "b" for o in orders)
    assert abs(heads - 2000) < 4 * 1000**0.5  # four standard deviations
    threes = Counter(toss(["b", "c", "d"], 6000, 7).orders)
    assert len(threes) == 6
    assert all(abs(n - 1000) < 4 * (6000 * 5 / 36) ** 0.5 for n in threes.values())


def test_without_a_seed_campaigns_differ_and_say_which_they_drew() -> None:
    seeds = {planned().coins.seed for _ in range(5)}  # type: ignore[union-attr]
    assert len(seeds) == 5


def test_the_coins_survive_the_plans_file() -> None:
    plan = planned("design.seed=9", "design.pairs=3")
    assert from_json(Plan, to_json(plan)) == plan


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("design.pairs=0", "design.pairs: 0 is out of range"),
        ("design.pairs=19", "design.pairs: 19 is more than the looks of the verdict use"),
        ("design.seed=-1", "design.seed: -1 is out of range"),
        ("design.seed=x", "design.seed: found 'x'; needs a whole number"),
        ("design.baseline=null", "design.baseline: null; name the cell"),
        ("design.stop_when_decided=null", "design.stop_when_decided: null; use true or false"),
    ],
)
def test_what_cannot_be_is_refused(override: str, words: str) -> None:
    with pytest.raises(UsageError, match="^" + words.replace(".", r"\.")):
        planned(override)


@pytest.mark.parametrize("key", ["pairs=9", "seed=9", "stop_when_decided=true"])
def test_settings_of_pairs_are_refused_where_there_are_none(key: str) -> None:
    with pytest.raises(UsageError, match=r"^design\.\w+: a four_cell has no pairs"):
        planned(f"design.{key}", experiment="matched_pair")


def test_any_comparing_experiment_can_be_run_as_pairs() -> None:
    plan = planned("design=pairs", experiment="io_lanes")
    assert plan.baseline == "lanes_1"
    assert plan.candidates == ("lanes_2", "lanes_4", "lanes_8")


def test_cells_too_short_to_be_judged_are_refused() -> None:
    with pytest.raises(UsageError, match=r"^cells\.baseline\.n_predict: 40 is too short"):
        planned("cell.n_predict=40")
    assert planned("cell.n_predict=64").arms["baseline"].n_predict == 64
