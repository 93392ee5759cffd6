"""The sequential verdict of pairs: outcomes, looks, what is left out, and what must not matter."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from harness.analysis.pairs import PairSettings, pairs_verdict
from harness.analysis.series import series_of
from harness.analysis.simulate import simulate
from harness.analysis.standing import decided_candidates, standing_in_words, standings
from harness.analysis.verdict_words import numbers_in_words
from harness.looks import look_schedule
from harness.planned import Coins, Plan
from harness.readings import Probes
from harness.records import CellRecord, Counters, Metrics
from harness.verdicts import CampaignVerdict, CandidateVerdict

QUICK = PairSettings(interim=False)
DECIDED = {"win", "loss", "equivalent"}


@lru_cache(maxsize=64)
def campaign(scenario: str = "none", seed: int = 1, effect: Any = 0.0, **of: Any) -> Any:
    return simulate(scenario, seed=seed, effect_pct=effect, **of)


def judge(of: Any, settings: PairSettings = QUICK) -> CampaignVerdict:
    return pairs_verdict("campaign", *of, settings)


def only(verdict: CampaignVerdict) -> CandidateVerdict:
    (found,) = verdict.verdicts
    return found


def in_words(verdict: CandidateVerdict) -> str:
    return "\n".join(verdict.reasons)


def changed(of: Any, at: Sequence[int], **changes: Any) -> Any:
    """The campaign with these records changed."""
    plan, records, series = of
    return (
        plan,
        [dataclasses.replace(r, **changes) if r.index in at else r for r in records],
        series,
    )


def cells_of(of: Any, arm: str) -> list[int]:
    return [r.index for r in of[1] if r.arm == arm]


# --- outcomes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("effect", "outcome"), [(-10.0, "loss"), (10.0, "win"), (0.0, "equivalent")]
)
def test_a_quiet_device_tells_the_effect_at_the_first_look(effect: float, outcome: str) -> None:
    verdict = judge(campaign(effect=effect))
    v = only(verdict)
    assert v.outcome == outcome
    assert v.effect_pct == pytest.approx(effect, abs=2)
    assert v.ci_pct is not None and v.ci_pct[0] < effect < v.ci_pct[1]
    assert v.typical_token_effect_pct == pytest.approx(effect, abs=3)
    assert v.clean_pairs == 7
    assert v.cells_used == tuple(range(14))
    (look,) = verdict.looks
    assert (look.clean_pairs, look.alpha, look.decided) == (7, 0.0157, outcome)
    assert "11 later pairs not needed and not read" in in_words(v)


def test_the_drift_is_that_of_the_clean_baseline_cells_that_were_read() -> None:
    assert judge(campaign()).drift.verdict == "stable"
    drift = judge(campaign("day40", 3)).drift
    assert drift.verdict in ("throttled", "drifting")
    assert drift.sentinel_change_pct is not None and drift.sentinel_change_pct < -5


def test_stalls_that_hide_a_small_loss_from_the_mean_do_not_hide_it() -> None:
    found = [only(judge(campaign("reclaim", seed, -5.0))) for seed in range(4)]
    assert {v.outcome for v in found} == {"loss"}


def test_a_loss_that_lives_in_stalls_alone_is_found_on_the_mean() -> None:
    """Of the candidate's tokens one in ten takes four times as long; the typical one is as fast."""
    plan, records, series = campaign()
    slowed: dict[int, Any] = {}
    slow_records = []
    for r in records:
        s = series[r.index]
        if r.arm == "C":
            walls = s.wall_ms.copy()
            walls[20::10] *= 4
            s = dataclasses.replace(s, wall_ms=walls)
        slowed[r.index] = s
        tok_s = 1000 * len(s) / float(s.wall_ms.sum())
        slow_records.append(
            dataclasses.replace(r, metrics=dataclasses.replace(r.metrics, tok_s=tok_s))
        )
    v = only(judge((plan, slow_records, slowed)))
    assert v.outcome == "loss"
    assert v.effect_pct is not None and v.effect_pct < -15
    assert v.typical_token_effect_pct is not None and v.typical_token_effect_pct > -5
    assert "the effect lives in stalls" in in_words(v)


def test_a_device_too_restless_is_inconclusive_and_says_what_it_takes() -> None:
    plan, records, series = campaign()
    rng = np.random.default_rng(0)
    rough = {
        i: dataclasses.replace(s, wall_ms=s.wall_ms * np.exp(rng.normal(0, 0.08)))
        for i, s in series.items()
    }
    v = only(judge((plan, [dataclasses.replace(r, probe=Probes()) for r in records], rough)))
    assert v.outcome in ("inconclusive", "contaminated")
    if v.outcome == "inconclusive":
        assert "clean pairs would show an effect beyond" in in_words(v)


def test_the_margin_is_what_was_asked_for() -> None:
    narrow = dataclasses.replace(QUICK, margin_pct=0.05)
    assert only(judge(campaign(), narrow)).outcome != "equivalent"


# --- live is as imported -------------------------------------------------------------------------


@pytest.mark.parametrize(("scenario", "effect"), [("none", -5.0), ("bursts", 0.0), ("step", -3.0)])
def test_a_campaign_that_ran_on_gets_the_verdict_it_had(scenario: str, effect: float) -> None:
    plan, records, series = campaign(scenario, 5, effect)
    whole = only(judge((plan, records, series)))
    until = None
    for n in range(2, len(records) + 1, 2):
        so_far = judge((plan, records[:n], series))
        (standing,) = standings(plan, so_far)
        if standing.decided:
            until = n
            break
        assert only(so_far).outcome not in DECIDED
    assert until is not None
    live = only(judge((plan, records[:until], series)))
    for name in ("outcome", "effect_pct", "ci_pct", "p", "clean_pairs", "cells_used"):
        assert getattr(live, name) == getattr(whole, name)


def test_the_order_of_the_records_does_not_matter() -> None:
    plan, records, series = campaign("storm", 2, -5.0)
    shuffled = list(records)
    np.random.default_rng(4).shuffle(shuffled)  # type: ignore[arg-type]
    a, b = judge((plan, records, series)), judge((plan, shuffled, series))
    assert (a.verdicts, a.pairs, a.looks, a.drift) == (b.verdicts, b.pairs, b.looks, b.drift)


@pytest.mark.parametrize(("scenario", "effect"), [("none", -5.0), ("storm", 0.0), ("step", -10.0)])
def test_exchanged_arms_exchange_the_verdict(scenario: str, effect: float) -> None:
    plan, records, series = campaign(scenario, 7, effect)
    other = {"B": "C", "C": "B"}
    turned = dataclasses.replace(plan, baseline="C", candidates=("B",))
    a, b = judge((plan, records, series)), judge((turned, records, series))
    assert [(p.block, p.status, p.reasons) for p in a.pairs] == [
        (p.block, p.status, p.reasons) for p in b.pairs
    ]
    x, y = only(a), only(b)
    assert (x.p, x.clean_pairs, y.baseline) == (y.p, y.clean_pairs, other["B"])
    assert {x.outcome, y.outcome} in ({"win", "loss"}, {x.outcome})
    assert x.effect_pct is not None and y.effect_pct is not None
    assert (1 + x.effect_pct / 100) * (1 + y.effect_pct / 100) == pytest.approx(1, abs=1e-6)


def test_interim_estimates_decide_nothing() -> None:
    shown = judge(campaign("bursts", 3, -5.0), PairSettings())
    quick = judge(campaign("bursts", 3, -5.0))
    assert shown.verdicts == quick.verdicts
    assert [row for row in shown.looks if row.alpha is not None] == list(quick.looks)
    between = [row for row in shown.looks if row.alpha is None]
    assert between and {row.decided for row in between} == {None}
    assert [row.clean_pairs for row in shown.looks] == sorted(
        row.clean_pairs for row in shown.looks
    )


# --- pairs that are left out ---------------------------------------------------------------------


def test_a_cell_that_failed_costs_its_pair() -> None:
    of = changed(campaign(effect=-10.0), [3], status="failed", status_detail="engine: I/O error")
    verdict = judge(of)
    assert only(verdict).outcome == "loss"
    assert [p.status for p in verdict.pairs].count("replaced") == 1
    assert "failed (engine: I/O error)" in verdict.pairs[1].reasons[0]
    assert verdict.pairs[1].effect_pct is None
    assert len(verdict.pairs) == 8
    assert {2, 3}.isdisjoint(only(verdict).cells_used)


def test_a_cell_with_other_counters_costs_its_pair() -> None:
    of = campaign(effect=-10.0)
    counters = dataclasses.replace(of[1][4].counters, read_bytes=7)
    verdict = judge(changed(of, [4], counters=counters))
    assert verdict.pairs[2].status == "replaced"
    assert "counters differ: read_bytes" in "\n".join(verdict.pairs[2].reasons)
    assert only(verdict).outcome == "loss"


def test_an_arm_whose_cells_never_do_the_same_work_is_contaminated() -> None:
    plan, records, series = campaign(effect=-10.0)
    odd = [
        dataclasses.replace(r, counters=dataclasses.replace(r.counters, read_bytes=1000 + r.index))
        if r.arm == "C"
        else r
        for r in records
    ]
    v = only(judge((plan, odd, series)))
    assert v.outcome == "contaminated"
    assert "fewer than half" in in_words(v)
    assert (v.effect_pct, v.p) == (None, None)


def test_an_arm_that_drops_need_only_make_as_many_tokens() -> None:
    plan, records, series = campaign(effect=-10.0)
    dropping = [
        dataclasses.replace(
            r,
            counters=dataclasses.replace(
                r.counters, read_bytes=1000 + r.index, dropped=r.index + 1, routed=1000
            ),
        )
        if r.arm == "C"
        else r
        for r in records
    ]
    v = only(judge((plan, dropping, series)))
    assert "counters differ" not in in_words(v)


def test_a_break_inside_a_pair_costs_it() -> None:
    of = campaign(effect=-10.0)
    late = [r.index for r in of[1] if r.index >= 5]
    plan, records, series = of
    moved = [
        dataclasses.replace(
            r, started_unix_s=r.started_unix_s + 9000, ended_unix_s=r.ended_unix_s + 9000
        )
        if r.index in late
        else r
        for r in records
    ]
    verdict = judge((plan, moved, series))
    assert verdict.pairs[2].status == "replaced"
    assert "the campaign was interrupted between them" in verdict.pairs[2].reasons[0]


def test_a_pair_that_differs_in_what_nobody_asked_for_is_confounded_and_left_out() -> None:
    of = campaign(effect=-10.0)
    identity = dataclasses.replace(of[1][0].identity, direct_io=False)
    verdict = judge(changed(of, [2], identity=identity))
    assert verdict.pairs[1].status == "confounded"
    assert "direct_io" in verdict.pairs[1].reasons[0]
    assert only(verdict).outcome == "loss"


@pytest.mark.parametrize("field", ["model_sha256", "engine_build_id", "direct_io", "threads"])
def test_arms_that_differ_throughout_are_confounded(field: str) -> None:
    of = campaign(effect=-10.0)
    other = {"direct_io": False, "threads": 7}.get(field, "other")
    identity = dataclasses.replace(of[1][0].identity, **{field: other})
    v = only(judge(changed(of, cells_of(of, "C"), identity=identity)))
    assert v.outcome == "confounded"
    assert field in in_words(v)
    assert v.effect_pct is None


def test_if_every_pair_is_disturbed_a_null_is_contaminated_and_an_effect_is_found() -> None:
    """Every cell was throttled by a quota by another process: the rule does not know which arm."""
    for effect, outcome in ((0.0, "contaminated"), (-10.0, "loss")):
        plan, records, series = campaign(effect=effect)
        held = [
            dataclasses.replace(r, metrics=dataclasses.replace(r.metrics, cpu_throttled_share=0.3))
            for r in records
        ]
        verdict = judge((plan, held, series))
        v = only(verdict)
        assert v.outcome == outcome
        assert (v.clean_pairs, v.disturbed_pairs) == (0, 12)
        assert "0 clean pairs and 12 disturbed ones" in numbers_in_words(v)
        assert "the first 12 pairs of equal work are tested as they are" in in_words(v)
        assert verdict.looks[-1].alpha == 0.05


def test_a_cell_that_was_measured_again_costs_its_pair_even_in_the_last_resort() -> None:
    """What was drawn is the order of the places; it ran in another."""
    plan, records, series = campaign(effect=-10.0)
    last_s = max(r.ended_unix_s or 0.0 for r in records)
    again = changed((plan, records, series), [0], started_unix_s=last_s + 30.0, ended_unix_s=None)
    first, *others = judge(again).pairs
    assert first.status == "replaced" and "it was measured again" in " ".join(first.reasons)
    assert all(p.status == "clean" for p in others)
    everywhere = [dataclasses.replace(r, started_unix_s=last_s - r.index) for r in records]
    v = only(judge((plan, everywhere, series)))
    assert v.outcome == "contaminated" and v.effect_pct is None, "a clock that runs backwards"


@pytest.mark.parametrize("tokens", [72, 40])
def test_cells_of_another_task_say_nothing_however_few_pairs_are_clean(tokens: int) -> None:
    """Later tokens take longer in both arms; the candidate's cells stop early, or are all short."""
    plan, records, series = campaign()
    arms = ["C"] if tokens == 72 else ["B", "C"]
    cut = {r.index for r in records if r.arm in arms}
    growing = np.exp(0.006 * np.arange(96))
    slower = {
        i: series_of(
            [{"wall_ms": w} for w in (s.wall_ms * growing)[: tokens if i in cut else None]]
        )
        for i, s in series.items()
    }
    counted = [
        dataclasses.replace(r, counters=Counters(tokens=tokens if r.index in cut else 96))
        for r in records
    ]
    v = only(judge((plan, counted, {i: s for i, s in slower.items() if s is not None})))
    assert v.outcome == "contaminated"
    assert v.effect_pct is None
    assert v.clean_pairs == 0


# --- the design ----------------------------------------------------------------------------------


def without_coins(of: Any, firsts: Sequence[str] | None = None) -> Any:
    """The campaign as it is imported; `firsts`: which arm leads every pair instead."""
    plan, records, series = of
    plan = dataclasses.replace(plan, coins=None)
    if firsts is None:
        return plan, records, series
    return arranged(plan, records, series, firsts)


def arranged(plan: Plan, records: Any, series: Any, firsts: Sequence[str]) -> Any:
    places: dict[int, int] = {}
    for block, first in enumerate(firsts):
        own = [c for c in plan.cells if c.block == block]
        order = sorted(own, key=lambda c: c.arm != first)
        for place, cell in zip(sorted(c.index for c in own), order, strict=True):
            places[cell.index] = place
    cells = tuple(
        sorted(
            (
                dataclasses.replace(c, index=places[c.index])
                for c in plan.cells
                if c.index in places
            ),
            key=lambda c: c.index,
        )
    )
    at = {r.index: (r.started_unix_s, r.ended_unix_s) for r in records}
    moved: list[CellRecord] = []
    for r in records:
        if r.index in places:
            started, ended = at[places[r.index]]
            moved.append(
                dataclasses.replace(
                    r, index=places[r.index], started_unix_s=started, ended_unix_s=ended
                )
            )
    return (
        dataclasses.replace(plan, cells=cells),
        sorted(moved, key=lambda r: r.index),
        {places[i]: s for i, s in series.items() if i in places},
    )


def test_without_coins_a_random_order_is_assumed_and_said() -> None:
    v = only(judge(without_coins(campaign(effect=-10.0))))
    assert v.outcome == "loss"
    assert "no coins are recorded: the p-value assumes that the order was drawn" in in_words(v)


@pytest.mark.parametrize(
    ("firsts", "words"),
    [(["B"] * 8, "pairs ran in the same order"), (["B", "C"] * 4, "strictly alternates")],
)
def test_without_coins_a_fixed_order_is_a_broken_design(firsts: list[str], words: str) -> None:
    v = only(judge(without_coins(campaign(effect=-10.0), firsts)))
    assert v.outcome == "contaminated"
    assert words in in_words(v)
    assert v.effect_pct is None


def test_of_a_random_order_whose_first_pairs_happen_to_agree_all_pairs_tell() -> None:
    of = campaign(effect=-10.0)
    firsts = ["B"] * 7 + ["C", "C", "B"]
    v = only(judge(without_coins(of, firsts)))
    assert v.outcome == "loss"


def test_an_order_that_was_not_drawn_is_a_broken_design() -> None:
    plan, records, series = campaign(effect=-10.0)
    assert plan.coins is not None
    orders = list(plan.coins.orders)
    orders[2] = tuple(reversed(orders[2]))
    plan = dataclasses.replace(plan, coins=Coins(plan.coins.seed, tuple(orders)))
    v = only(judge((plan, records, series)))
    assert v.outcome == "contaminated"
    assert "block 2 did not run in the order that was drawn" in in_words(v)


# --- what is missing -----------------------------------------------------------------------------


def test_nothing_at_all_is_no_verdict() -> None:
    plan, records, series = campaign()
    v = only(judge((plan, [], {})))
    assert (v.outcome, v.effect_pct, v.cells_used) == ("inconclusive", None, ())
    no_blocks = tuple(dataclasses.replace(c, block=None) for c in plan.cells)
    v = only(judge((dataclasses.replace(plan, cells=no_blocks), records, series)))
    assert v.outcome == "unreadable"


@pytest.mark.parametrize("arm", ["B", "C"])
def test_one_arm_alone_is_no_verdict(arm: str) -> None:
    plan, records, series = campaign(effect=-10.0)
    v = only(judge((plan, [r for r in records if r.arm == arm], series)))
    assert (v.outcome, v.effect_pct, v.clean_pairs) == ("inconclusive", None, 0)


def test_without_token_times_whole_cells_are_compared() -> None:
    plan, records, _ = campaign(effect=-10.0)
    v = only(judge((plan, records, {})))
    assert v.outcome == "loss"
    assert "not every cell has its tokens' times" in in_words(v)
    assert v.typical_token_effect_pct is None


def test_without_probes_nothing_is_adjusted_and_it_is_said() -> None:
    plan, records, series = campaign(effect=-10.0)
    for probe in (Probes(), dataclasses.replace(records[0].probe, after=None)):
        bare = [dataclasses.replace(r, probe=probe if r.index == 3 else r.probe) for r in records]
        v = only(judge((plan, bare, series)))
        assert v.outcome == "loss"
    bare = [dataclasses.replace(r, probe=Probes()) for r in records]
    assert "not every cell was probed" in in_words(only(judge((plan, bare, series))))


@pytest.mark.parametrize("seed", range(6))
def test_no_gap_in_the_data_raises(seed: int) -> None:
    rng = np.random.default_rng(seed)
    plan, records, series = campaign("storm", seed, -5.0)
    gaps: list[dict[str, Any]] = [
        {"status": "failed"},
        {"probe": Probes()},
        {"entry": None},
        {"exit": None},
        {"counters": Counters()},
        {"metrics": Metrics()},
        {"started_unix_s": None},
        {"wait": None},
    ]
    holes = [
        dataclasses.replace(r, **gaps[rng.integers(len(gaps))]) if rng.random() < 0.4 else r
        for r in records
        if rng.random() < 0.9
    ]
    verdict = judge((plan, holes, {i: s for i, s in series.items() if rng.random() < 0.9}))
    assert len(verdict.verdicts) == 1
    assert len(verdict.cells) == len(holes)


# --- running -------------------------------------------------------------------------------------


def test_two_pairs_far_apart_are_provisional_and_never_final() -> None:
    plan, records, series = campaign(effect=-21.0)
    for n, provisional in ((2, False), (4, True), (8, True), (13, True), (14, False)):
        v = only(judge((plan, records[:n], series)))
        assert (v.outcome == "provisional_loss") == provisional
    assert v.outcome == "loss"
    small = campaign(effect=-8.0)
    assert only(judge((small[0], small[1][:4], small[2]))).outcome == "inconclusive"


def test_a_standing_says_what_is_still_needed() -> None:
    plan, records, series = campaign("none", 1, -3.0)
    (s,) = standings(plan, judge((plan, records[:10], series), PairSettings()))
    assert (s.decided, s.clean_pairs, s.next_look, s.missing_clean_pairs) == (False, 5, 7, 2)
    assert s.pairs_left == 13
    assert not s.tested
    assert s.least_effect_pct is not None and 0 < s.least_effect_pct < 10
    words = standing_in_words(s)
    assert "next look at 7 clean pairs, 2 to go" in words and "not a test yet" in words

    verdict = judge((plan, records[:14], series), PairSettings())
    (s,) = standings(plan, verdict)
    if s.decided:
        assert (s.next_look, s.pairs_left) == (None, 0)
        assert "no more cells needed" in standing_in_words(s)
    else:
        assert s.next_look == 9


# --- several candidates, forth and back ----------------------------------------------------------


def test_the_looks_at_several_candidates_share_one_error() -> None:
    for k in range(1, 9):
        schedule = look_schedule(k)
        assert sum(look.alpha for look in schedule.looks) * k == pytest.approx(0.05)
        for look in schedule.looks:
            assert 2.0 ** (1 - look.clean_pairs) <= look.alpha
        assert schedule.blocks >= schedule.looks[-1].clean_pairs * 1.5
    assert [(look.clean_pairs, look.alpha) for look in look_schedule(1).looks] == [
        (7, 0.0157),
        (9, 0.0118),
        (12, 0.0225),
    ]
    assert (look_schedule(1).blocks, look_schedule(2).looks[0].clean_pairs) == (18, 8)
    assert look_schedule(1).alpha_at_end(0.0157) == pytest.approx(0.0343)
    assert look_schedule(1).alpha_at_end(0.0275) == pytest.approx(0.0225)
    assert look_schedule(1).alpha_at_end(0.05) == 0
    with pytest.raises(ValueError, match="at least one"):
        look_schedule(0)


def test_every_candidate_gets_its_own_verdict() -> None:
    of = campaign("none", 3, (-10.0, 0.0), candidates=("C", "D"), pairs=20)
    verdict = judge(of)
    c, d = verdict.verdicts
    assert (c.candidate, c.outcome) == ("C", "loss")
    assert (d.candidate, d.outcome) == ("D", "equivalent")
    assert min(look.clean_pairs for look in verdict.looks) == 8
    assert decided_candidates(standings(of[0], verdict)) == {"C", "D"}


def test_cells_of_a_decided_candidate_need_not_run() -> None:
    plan, records, series = campaign("none", 3, (-10.0, -2.0), candidates=("C", "D"), pairs=20)
    without = [r for r in records if r.arm != "C" or r.index < 24]
    a, b = judge((plan, records, series)), judge((plan, without, series))
    assert a.verdicts[0].outcome == b.verdicts[0].outcome == "loss"
    assert a.verdicts[0].p == b.verdicts[0].p
    assert b.verdicts[1].outcome == a.verdicts[1].outcome


def test_blocks_forth_and_back_are_read_as_one_coin_each() -> None:
    of = campaign("ramp17", 3, -10.0, design="abba")
    verdict = judge(of)
    v = only(verdict)
    assert v.outcome == "loss"
    assert all(len(p.baseline_cells) == len(p.candidate_cells) == 2 for p in verdict.pairs)
    assert v.p is not None and v.p >= 2.0 ** (1 - (v.clean_pairs or 0))


# --- how often it errs ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "scenario", ["none", "mild", "ramp17", "day40", "step", "bursts", "reclaim", "storm"]
)
def test_false_and_right_verdicts_are_about_as_often_as_published(scenario: str) -> None:
    """12 campaigns: at a rate of 5 % more than 4 false ones come in 1 of 5,000 such tests.

    At 10 % the power is at least 0.9 in every scenario: fewer than 7 of 12 in 1 of 1,800.
    """
    false = [only(judge(simulate(scenario, seed=s))).outcome for s in range(900, 912)]
    assert sum(o in ("win", "loss") for o in false) <= 4
    slower = [
        only(judge(simulate(scenario, seed=s, effect_pct=-10.0))).outcome for s in range(950, 962)
    ]
    assert "win" not in slower
    assert slower.count("loss") >= 7


def only_pairs(of: Any, pairs: int) -> Any:
    """The campaign as if so many pairs had been planned."""
    plan, records, series = of
    cells = tuple(c for c in plan.cells if c.block is not None and c.block < pairs)
    coins = Coins(plan.coins.seed, plan.coins.orders[:pairs])
    kept = {c.index for c in cells}
    plan = dataclasses.replace(plan, cells=cells, coins=coins)
    return plan, [r for r in records if r.index in kept], series


def test_two_planned_pairs_end_provisional_never_final() -> None:
    v = only(judge(only_pairs(campaign(effect=-30.0), 2)))
    assert v.outcome == "provisional_loss"
    assert "never final" in in_words(v)
    assert only(judge(only_pairs(campaign(effect=0.0), 2))).outcome == "inconclusive"


def test_a_standing_says_why_the_last_pair_is_out_and_that_a_look_is_out_of_reach() -> None:
    of = only_pairs(campaign(effect=0.0), 8)
    records = [
        dataclasses.replace(r, metrics=dataclasses.replace(r.metrics, cpu_throttled_share=0.3))
        if r.index in (6, 10)
        else r
        for r in of[1]
    ]
    until = {n: standings(of[0], judge((of[0], records[: 2 * n], of[2]))) for n in (3, 4, 6)}
    words = {n: standing_in_words(s[0]) for n, s in until.items()}
    assert "the last pair is left out" not in words[3]
    assert "the last pair is left out" in words[4]
    assert "CPU quota" in words[4]
    assert "next look at 7 clean pairs, 4 to go" in words[4]
    assert "does not reach any more" in words[6]


def test_after_the_last_look_no_more_pairs_are_needed() -> None:
    """Whose verdict is open then stays open: all of the error is spent."""
    for seed in range(40):
        of = campaign("bursts", seed, -1.5)
        whole = judge(of)
        looks = [look for look in whole.looks if look.alpha is not None]
        if len(looks) == 3 and looks[-1].decided is None:
            break
    else:
        pytest.fail("no campaign of these is open after its last look")
    at = looks[-1].pairs
    early = judge((of[0], of[1][: 2 * at], of[2]))
    assert only(early).outcome == only(whole).outcome == "inconclusive"
    assert only(early).p == only(whole).p
    assert decided_candidates(standings(of[0], early)) == {"C"}
