"""The one sentence that stands for a campaign."""

from __future__ import annotations

import dataclasses
import typing

import pytest

from harness.analysis.verdict_words import headline
from harness.findings import EvictionRow, IdentityRow, LevelRow
from harness.verdicts import (
    CampaignVerdict,
    CandidateVerdict,
    CellVerdict,
    Drift,
    DriftVerdict,
    Outcome,
)

STABLE = Drift("stable", 0.4)
MIB = 2**20
PAIRS = CandidateVerdict(
    "spec2",
    "baseline",
    "win",
    effect_pct=12.34,
    ci_pct=(9.84, 14.91),
    p=0.0039,
    clean_pairs=9,
    reasons=("why it is so",),
)


def campaign(*verdicts: CandidateVerdict, drift: Drift = STABLE) -> CampaignVerdict:
    return CampaignVerdict("c", drift, verdicts)


def of(outcome: Outcome, **changes: typing.Any) -> str:
    return headline(campaign(dataclasses.replace(PAIRS, outcome=outcome, **changes)))


def test_a_win_and_a_loss_name_size_interval_pairs_and_p() -> None:
    assert of("win") == (
        "spec2 is 12.3 % faster than baseline (+9.8 to +14.9 %, 9 clean pairs, p 0.0039)"
    )
    assert of("loss", effect_pct=-32.1, ci_pct=(-38.4, -26.3)) == (
        "spec2 is 32.1 % slower than baseline (-38.4 to -26.3 %, 9 clean pairs, p 0.0039)"
    )


def test_an_effect_that_rounds_to_nothing_is_still_a_number() -> None:
    assert "0.04 % faster" in of("win", effect_pct=0.04)


def test_pairs_that_were_disturbed_are_named_beside_the_clean_ones() -> None:
    assert of("win", clean_pairs=1, disturbed_pairs=7) == (
        "spec2 is 12.3 % faster than baseline "
        "(+9.8 to +14.9 %, 1 clean pair and 7 disturbed ones, p 0.0039)"
    )


def test_equivalent_is_within_the_margin_not_equal() -> None:
    assert of("equivalent", effect_pct=0.2, ci_pct=(-0.8, 1.1)) == (
        "spec2 is as fast as baseline, within the margin (+0.2 %, 9 clean pairs)"
    )


def test_inconclusive_gives_the_interval_and_what_it_would_take() -> None:
    said = of("inconclusive", effect_pct=2.0, ci_pct=(-3.0, 7.0), reasons=("12 pairs would do",))
    assert said == (
        "It is not known whether spec2 is faster than baseline (+2.0 %, -3.0 to +7.0 %, "
        "9 clean pairs, p 0.0039): 12 pairs would do"
    )


def test_inconclusive_of_two_cells_gives_no_effect_outside_its_reason() -> None:
    said = of(
        "inconclusive", ci_pct=None, clean_pairs=None, p=None, reasons=("-11.5 %, not beyond",)
    )
    assert said == ("It is not known whether spec2 is faster than baseline: -11.5 %, not beyond")


def test_provisional_is_never_told_like_a_final_one() -> None:
    pair = {"ci_pct": None, "clean_pairs": None, "p": None}
    assert of("provisional_loss", effect_pct=-21.0, **pair) == (
        "Provisionally, spec2 is 21.0 % slower than baseline (one pair of cells), "
        "which is not enough cells to rely on"
    )
    assert of("provisional_win", clean_pairs=2).startswith(
        "Provisionally, spec2 is 12.3 % faster than baseline (+9.8 to +14.9 %, 2 clean pairs"
    )


@pytest.mark.parametrize("outcome", ["contaminated", "unreadable"])
def test_what_cannot_be_read_names_no_effect_though_one_was_measured(outcome: Outcome) -> None:
    said = of(outcome)
    assert said.startswith("Nothing can be said about spec2: ")
    assert "why it is so" in said
    assert "12.3" not in said and "faster" not in said


def test_confounded_names_the_difference_and_no_effect() -> None:
    said = of("confounded", reasons=("cache budget 8 and 16 MiB, which nobody asked for",))
    assert said == (
        "spec2 cannot be compared with baseline: cache budget 8 and 16 MiB, which nobody asked for"
    )


@pytest.mark.parametrize("outcome", typing.get_args(Outcome))
@pytest.mark.parametrize("drift", typing.get_args(DriftVerdict))
def test_every_outcome_with_every_drift_is_one_line(outcome: Outcome, drift: DriftVerdict) -> None:
    """Also where nothing but the outcome is known."""
    bare = CandidateVerdict("a", "b", outcome)
    for v in (bare, dataclasses.replace(PAIRS, outcome=outcome)):
        said = headline(campaign(v, drift=Drift(drift, None, ("for a reason",))))
        assert said and "\n" not in said and "None" not in said and not said.endswith((".", ":"))
        assert ("throttled" in said) == (drift == "throttled")


def test_a_device_that_moved_is_said_beside_the_verdict() -> None:
    verdict = campaign(PAIRS, drift=Drift("throttled", -17.0, ("a cap fell",)))
    assert headline(verdict).endswith(
        "; the device throttled meanwhile (-17.0 % between its baseline cells)"
    )
    drifting = campaign(PAIRS, drift=Drift("drifting", 17.1))
    assert "the device changed its speed meanwhile (+17.1 %" in headline(drifting)


def test_a_four_cell_session_that_was_interrupted_says_what_is_absent() -> None:
    reasons = ("the drift is unknown, so no difference can be told from it", "no sentinel")
    v = CandidateVerdict("spec2", "baseline", "unreadable", reasons=reasons)
    drift = Drift("unknown", None, ("there is no sentinel cell",))
    assert headline(campaign(v, drift=drift)) == (
        "Nothing can be said about spec2: the drift is not known (there is no sentinel cell)"
    )


def test_several_candidates_each_get_a_clause_and_share_what_silences_them() -> None:
    silent = [CandidateVerdict(n, "baseline", "unreadable", reasons=("hot",)) for n in "xyz"]
    said = headline(campaign(PAIRS, *silent))
    assert said.startswith("spec2 is 12.3 % faster than baseline")
    assert said.endswith("; nothing can be said about x, y and z: hot")
    own = [dataclasses.replace(v, reasons=(f"hot {v.candidate}",)) for v in silent]
    assert headline(campaign(*own)) == (
        "Nothing can be said about x, y and z: no baseline cell can be compared with any of them"
    )
    lower = dataclasses.replace(PAIRS, candidate="io2")
    assert headline(campaign(lower)).startswith("io2 is"), "a cell keeps its name"


def test_of_many_candidates_each_is_told_in_short() -> None:
    three = [dataclasses.replace(PAIRS, candidate=name) for name in ("x", "y", "z")]
    assert headline(campaign(*three)) == "; ".join(
        f"{name} is 12.3 % faster than baseline (+9.8 to +14.9 %)" for name in ("x", "y", "z")
    )


def test_a_survey_says_that_no_speeds_are_compared() -> None:
    cells = (CellVerdict(0, "a", "clean"), CellVerdict(1, "b", "unusable"))
    verdict = CampaignVerdict("c", Drift("unknown", None, ("a survey",)), (), cells=cells)
    assert headline(verdict) == (
        "1 cell ran; 1 gave no speed; "
        "speeds are not compared: no cell repeats another to show the device's drift"
    )


def test_without_cells_nothing_was_measured() -> None:
    assert headline(campaign(drift=Drift("unknown", None))) == "Nothing was measured"


def test_levels_name_how_low_each_cell_went() -> None:
    rows = (
        LevelRow("baseline", "64MiB", 64 * MIB, "FAIL", "refused"),
        LevelRow("baseline", "94MiB", 94 * MIB, "PASS"),
        LevelRow("baseline", "129MiB", 129 * MIB, "PASS"),
    )
    verdict = CampaignVerdict("c", Drift("unknown", None), (), levels=rows)
    assert headline(verdict).startswith(
        "baseline passed 2 of 3 memory levels, the lowest 94 MiB; speeds are not compared"
    )


def test_cells_that_went_equally_low_are_told_at_once() -> None:
    rows = [LevelRow(name, "94MiB", 94 * MIB, "PASS") for name in ("lru", "lfu")]
    rows.append(LevelRow("fifo", "94MiB", 94 * MIB, "KILLED"))
    said = headline(CampaignVerdict("c", Drift("unknown", None), (), levels=tuple(rows)))
    assert said.startswith(
        "2 cells each passed 1 of 1 memory level, the lowest 94 MiB; "
        "fifo passed 0 of 1 memory level; "
    )


def test_eviction_names_who_reads_least_where() -> None:
    rows = (
        EvictionRow("a", "ok", "lru", 94 * MIB, read_vs_lru=1.0),
        EvictionRow("b", "ok", "ls", 94 * MIB, read_vs_lru=0.944),
        EvictionRow("c", "failed", "lfu", 94 * MIB, read_vs_lru=0.1),
        EvictionRow("a", "ok", "lru", 187 * MIB, read_vs_lru=1.0),
        EvictionRow("b", "ok", "ls", 187 * MIB, read_vs_lru=1.05),
        EvictionRow("a", "ok", "lru", None),
    )
    said = headline(CampaignVerdict("c", Drift("unknown", None), (), eviction=rows))
    assert said.startswith("At a cap of 94 MiB ls reads least, 5.6 % less per token than lru")
    assert "at a cap of 187 MiB no policy reads less than lru" in said
    assert "lfu" not in said and "without a cap" not in said


def test_identity_is_what_it_was_asked_for_and_beside_what_else_there_is() -> None:
    rows = (IdentityRow("a", "lru", None, "identical", evictions=3),)
    verdict = CampaignVerdict("c", Drift("unknown", None), (), identity=rows)
    assert headline(verdict) == (
        "Greedy output: 1 of 1 cell identical to plain; speeds are not compared"
    )
    beside = dataclasses.replace(verdict, verdicts=(PAIRS,))
    assert "; greedy output: 1 of 1 cell identical to plain" in headline(beside)
