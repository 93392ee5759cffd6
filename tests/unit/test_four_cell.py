"""The four-cell verdict: the published session, every reason not to read a pair, and properties."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.analysis.four_cell import FourCellSettings, four_cell_verdict
from harness.analysis.survey import survey_verdict
from harness.planned import Role
from harness.readings import (
    BatteryState,
    CpufreqState,
    DeviceState,
    ProbeResult,
    Probes,
    ThermalState,
)
from harness.records import (
    ArmIdentity,
    CellRecord,
    Counters,
    Metrics,
    PredictorDisarmed,
    TargetId,
    Wait,
)
from harness.verdicts import CampaignVerdict, CandidateVerdict, CellVerdict

SETTINGS = FourCellSettings()
READ = {"provisional_win", "provisional_loss", "inconclusive"}
GHZ = 1_000_000


def state(
    caps: Sequence[float] = (2.0, 3.6), cpu_c: float | None = 45.0, battery_c: float = 33.0
) -> DeviceState:
    """`caps` in GHz, one a cluster."""
    return DeviceState(
        cpufreq=tuple(
            CpufreqState(f"policy{i}", scaling_max_khz=round(cap * GHZ))
            for i, cap in enumerate(caps)
        ),
        thermal=()
        if cpu_c is None
        else (
            ThermalState("thermal_zone1", "battery", battery_c),
            ThermalState("thermal_zone4", "cpu-1-0", cpu_c),
        ),
        battery=BatteryState(temp_c=battery_c),
    )


BLIND = DeviceState(mem_available_bytes=10**9)  # a virtual machine: no caps, no temperatures


def cell(name: str, index: int, tok_s: float | None, **changes: Any) -> CellRecord:
    role: Role = "sentinel" if name == "sentinel" else "baseline" if index == 0 else "candidate"
    fields: dict[str, Any] = {
        "cell": name,
        "arm": name if role == "candidate" else "B",
        "role": role,
        "index": index,
        "status": "ok",
        "exit_code": 0,
        "argv": ("moe-engine", "-m", "m.gguf", "--cache-mb", "64" if role != "candidate" else "32"),
        "target": TargetId("local", "localhost"),
        "entry": state(),
        "exit": state(),
        "counters": Counters(tokens=128, read_bytes=1000 if role != "candidate" else 9000),
        "metrics": Metrics(tok_s=tok_s),
        "identity": ArmIdentity(model_sha256="a" * 64, engine_build_id="b1", direct_io=True),
        "output_sha256": "c" * 64,
    }
    return CellRecord(**(fields | changes))


def session(speeds: Sequence[float], **everywhere: Any) -> list[CellRecord]:
    """B, C1, C2, B with these tok/s."""
    names = ("baseline", "C1", "C2", "sentinel")
    return [cell(n, i, s, **everywhere) for i, (n, s) in enumerate(zip(names, speeds, strict=True))]


def judge(records: Sequence[CellRecord], walls: Any = None) -> CampaignVerdict:
    return four_cell_verdict("campaign", records, SETTINGS, walls)


def verdict_of(verdict: CampaignVerdict, candidate: str) -> CandidateVerdict:
    (found,) = [v for v in verdict.verdicts if v.candidate == candidate]
    return found


def changed(record: CellRecord, **changes: Any) -> CellRecord:
    return dataclasses.replace(record, **changes)


def in_words(verdict: CandidateVerdict) -> str:
    return "\n".join(verdict.reasons)


# --- the published session -----------------------------------------------------------------------


def published_session() -> list[CellRecord]:
    """The text's numbers: caps fell from the second cell on, the last two in equal state."""
    cool, warm = state((2.0, 3.8), 41.0), state((1.8, 3.2), 52.0)
    lower = state((1.6, 2.8), 55.0)
    return [
        cell("baseline", 0, 4.77, entry=cool, exit=cool),
        cell("retention", 1, 4.40, entry=warm, exit=warm),
        cell("spec-2", 2, 3.14, entry=lower, exit=lower),
        cell("sentinel", 3, 3.96, entry=lower, exit=lower),
    ]


def test_the_published_session_is_read_as_its_text_says() -> None:
    verdict = judge(published_session())
    assert verdict.drift.verdict == "throttled"
    assert verdict.drift.sentinel_change_pct == pytest.approx(-17.0, abs=0.05)
    assert any("the cap of policy1 fell from 3.80 GHz" in r for r in verdict.drift.reasons)

    spec2 = verdict_of(verdict, "spec-2")
    assert spec2.outcome == "provisional_loss"
    assert spec2.effect_pct == pytest.approx(-20.7, abs=0.05)
    assert spec2.cells_used == (2, 3)
    assert (spec2.p, spec2.ci_pct, spec2.clean_pairs) == (None, None, None)

    retention = verdict_of(verdict, "retention")
    assert retention.outcome == "unreadable"
    assert retention.effect_pct is None
    assert "the cap of policy0 at entry is 1.80 GHz for retention, 2.00 GHz for baseline" in (
        in_words(retention)
    )


def test_the_published_session_without_counters_and_hashes_is_read_alike() -> None:
    bare = [
        changed(r, counters=Counters(), identity=ArmIdentity(), output_sha256=None, argv=())
        for r in published_session()
    ]
    verdict = judge(bare)
    assert verdict.drift.verdict == "throttled"
    assert "work counters were not recorded" in "\n".join(verdict.drift.reasons)
    assert verdict_of(verdict, "spec-2").outcome == "provisional_loss"


def test_every_candidates_last_reason_is_the_way_to_a_final_verdict() -> None:
    command = "python -m harness design=pairs"
    told = dataclasses.replace(SETTINGS, final_command=command)
    for records in (published_session(), session((5, 5, 3, 5)), []):
        for v in four_cell_verdict("c", records, told, None).verdicts:
            assert v.reasons[-1].endswith(f"final verdict; this does: {command}")
        for v in judge(records).verdicts:
            assert v.reasons[-1].endswith("randomised pairs do (design=pairs)")


# --- drift ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("closing", "expected"),
    [(5.0, "stable"), (4.75, "stable"), (5.25, "stable"), (4.74, "drifting"), (5.3, "drifting")],
)
def test_drift_is_stable_within_five_percent(closing: float, expected: str) -> None:
    assert judge(session((5, 5, 5, closing))).drift.verdict == expected


def test_a_cap_that_fell_inside_a_cell_is_throttling_even_at_equal_speed() -> None:
    records = session((5, 5, 5, 5))
    records[1] = changed(records[1], exit=state((2.0, 3.0)))
    drift = judge(records).drift
    assert drift.verdict == "throttled"
    assert "at the entry of C1 to 3.00 GHz at the exit of C1" in "\n".join(drift.reasons)


def test_a_cap_that_rose_is_no_throttling() -> None:
    records = session((5, 5, 5, 5))
    records[0] = changed(records[0], entry=state((2.0, 3.0)), exit=state((2.0, 3.0)))
    assert judge(records).drift.verdict == "stable"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"counters": Counters(tokens=127, read_bytes=1000)}, "tokens 128 in baseline, 127"),
        ({"counters": Counters(tokens=128, read_bytes=1002)}, "read_bytes 1000"),
        ({"counters": Counters(tokens=128)}, "read_bytes is recorded for baseline only"),
        ({"output_sha256": "d" * 64}, "the text differs between baseline and sentinel"),
        ({"arm": "other"}, "sentinel is of arm other"),
        (
            {"identity": ArmIdentity(model_sha256="a" * 64, engine_build_id="b2", direct_io=True)},
            "engine_build_id is b1 in baseline, b2 in sentinel",
        ),
        (
            {"identity": ArmIdentity(model_sha256="a" * 64, engine_build_id="b1", direct_io=False)},
            "direct_io is True in baseline, False in sentinel",
        ),
    ],
)
def test_unequal_work_of_the_baselines_is_not_comparable(
    change: dict[str, Any], words: str
) -> None:
    records = session((5, 4, 3, 5))
    records[3] = changed(records[3], **change)
    verdict = judge(records)
    assert verdict.drift.verdict == "not_comparable"
    assert words in "\n".join(verdict.drift.reasons)
    assert {v.outcome for v in verdict.verdicts} <= {"contaminated"}


def test_a_thousandth_of_the_bytes_may_differ() -> None:
    records = session((5, 4, 3, 5))
    records[3] = changed(records[3], counters=Counters(tokens=128, read_bytes=1001))
    assert judge(records).drift.verdict == "stable"


@pytest.mark.parametrize("index", [0, 3])
def test_without_both_baselines_the_drift_is_unknown_and_nothing_is_read(index: int) -> None:
    missing = session((5, 4, 3, 5))
    del missing[index]
    failed = session((5, 4, 3, 5))
    failed[index] = changed(failed[index], status="failed", status_detail="engine: I/O error")
    for records in (missing, failed):
        verdict = judge(records)
        assert verdict.drift.verdict == "unknown"
        assert verdict.drift.sentinel_change_pct is None
        assert {v.outcome for v in verdict.verdicts} == {"unreadable"}
    assert "failed (engine: I/O error)" in "\n".join(judge(failed).drift.reasons)


def long_session(speeds: Sequence[float]) -> list[CellRecord]:
    """B, C1, C2, B, C3, B with these tok/s."""
    records = session(speeds[:4])
    records[3] = changed(records[3], cell="sentinel_1")
    closing = cell("sentinel", 5, speeds[5])
    return [*records, cell("C3", 4, speeds[4]), closing]


def test_in_a_long_session_every_candidate_is_read_beside_a_baseline() -> None:
    verdict = judge(long_session((5, 4, 4, 5, 4, 5)))
    assert verdict.drift.verdict == "stable"
    assert {v.candidate: v.outcome for v in verdict.verdicts} == dict.fromkeys(
        ("C1", "C2", "C3"), "provisional_loss"
    )
    assert verdict_of(verdict, "C3").cells_used in {(3, 4), (4, 5)}
    assert "all did the same work" in in_words_of_drift(verdict)


def in_words_of_drift(verdict: CampaignVerdict) -> str:
    return "\n".join(verdict.drift.reasons)


def test_the_sentinel_that_is_furthest_off_decides_about_the_drift() -> None:
    verdict = judge(long_session((5, 4, 4, 4, 4, 5)))
    assert verdict.drift.verdict == "drifting"
    assert verdict.drift.sentinel_change_pct == pytest.approx(-20)
    assert "sentinel_1 4.00 tok/s against baseline 5.00" in in_words_of_drift(verdict)
    assert "sentinel 5.00 tok/s against baseline 5.00" in in_words_of_drift(verdict)


def test_a_sentinel_in_the_middle_that_failed_costs_its_pairs_only() -> None:
    records = long_session((5, 4, 4, 5, 4, 5))
    records[3] = changed(records[3], status="failed")
    verdict = judge(records)
    assert verdict.drift.verdict == "stable"
    assert [v.outcome for v in verdict.verdicts] == [
        *("provisional_loss", "unreadable", "provisional_loss"),
    ]


def test_a_sentinel_in_the_middle_that_did_other_work_is_not_comparable() -> None:
    records = long_session((5, 4, 4, 5, 4, 5))
    records[3] = changed(records[3], counters=Counters(tokens=128, read_bytes=9))
    assert judge(records).drift.verdict == "not_comparable"


# --- cells too short to judge --------------------------------------------------------------------


def with_tokens(tokens: int, speeds: Sequence[float]) -> list[CellRecord]:
    """What a cell read grows with its tokens."""
    return [
        changed(r, counters=Counters(tokens=tokens, read_bytes=8 * tokens)) for r in session(speeds)
    ]


def test_what_was_decoded_in_less_than_a_second_is_not_judged() -> None:
    verdict = judge(with_tokens(64, (160, 120, 128, 160)))
    assert verdict.drift.verdict == "unknown"
    assert verdict.drift.sentinel_change_pct is None
    assert "baseline decoded for 0.40 s, too short" in in_words_of_drift(verdict)
    for v in verdict.verdicts:
        assert (v.outcome, v.effect_pct) == ("unreadable", None)
        assert "(1 s at least); raise cell.n_predict" in in_words(v)


def test_a_cell_of_a_second_is_judged() -> None:
    verdict = judge(with_tokens(160, (160, 120, 128, 160)))
    assert verdict.drift.verdict == "stable"
    assert {v.outcome for v in verdict.verdicts} == {"provisional_loss"}


def test_a_candidate_that_was_over_too_soon_is_not_read_and_costs_nobody_else() -> None:
    verdict = judge(with_tokens(160, (160, 200, 128, 160)))
    assert verdict.drift.verdict == "stable"
    assert verdict_of(verdict, "C1").outcome == "unreadable"
    assert "C1 decoded for 0.80 s" in in_words(verdict_of(verdict, "C1"))
    assert verdict_of(verdict, "C2").outcome == "provisional_loss"


# --- arms whose work depends on what is resident -------------------------------------------------

B = ("moe-engine", "-m", "m.gguf", "--cache-mb", "8", "--drop-cold-experts", "0.75")
AHEAD = (*B, "--predict-prefetch", "--predict-spec-max", "2")


def dropping_session(speeds: Sequence[float] = (5, 4, 5, 5)) -> list[CellRecord]:
    """The main job: the candidates' text, counters and rates differ from the baseline's."""
    records = session(speeds, argv=B)
    base = Metrics(hit_rate=0.75, bytes_per_token=2**21, dropped_share=0.125)
    ahead = Metrics(
        hit_rate=0.80,
        bytes_per_token=3 * 2**20,
        spec_bytes_per_token=2**20,
        spec_useful_share=0.5,
        dropped_share=0.10,
    )
    for i, record in enumerate(records):
        candidate = record.role == "candidate"
        counters = Counters(128, 1000, 70, 30, 20, 100, *((9, 4, 2, 3) if candidate else ()))
        records[i] = changed(
            record,
            counters=counters,
            metrics=dataclasses.replace(ahead if candidate else base, tok_s=speeds[i]),
            argv=AHEAD if candidate else B,
            output_sha256=("d" if candidate else "c") * 64,
        )
    return records


def test_a_candidate_that_drops_otherwise_is_read_and_its_work_told() -> None:
    verdict = judge(dropping_session())
    assert verdict.drift.verdict == "stable"
    c1 = verdict_of(verdict, "C1")
    assert c1.outcome == "provisional_loss"
    assert (
        "what C1 did: 80.00 % of requests hit (baseline 75.00), 3.00 MiB/token read (baseline "
        "2.00), 1.00 MiB/token of it ahead, 50.00 % of the experts read ahead useful, "
        "10.00 % of routed experts dropped (baseline 12.50)"
    ) in in_words(c1)
    assert "another text than the baseline: under dropping it depends on which" in in_words(c1)


def given_session() -> list[CellRecord]:
    """The main job: one text for all, and so what dropping did to it."""
    records = dropping_session()
    for i, record in enumerate(records):
        nll = math.log(30.0 if record.role == "candidate" else 31.5)
        records[i] = changed(
            record,
            metrics=dataclasses.replace(record.metrics, nll=nll),
            identity=dataclasses.replace(record.identity, text_sha256="e" * 64),
            output_sha256="c" * 64,
        )
    return records


def test_what_dropping_did_to_a_given_text_is_told() -> None:
    verdict = judge(given_session())
    assert verdict.drift.verdict == "stable"
    c1 = verdict_of(verdict, "C1")
    assert c1.outcome == "provisional_loss"
    assert "10.00 % of routed experts dropped (baseline 12.50), " in in_words(c1)
    assert "30.00 given perplexity (baseline 31.50)" in in_words(c1)
    assert "another text" not in in_words(c1)


def test_a_given_text_is_equal_anyhow_so_its_likelihood_must_be() -> None:
    records = given_session()
    off = dataclasses.replace(records[3].metrics, nll=math.log(31.6))
    records[3] = changed(records[3], metrics=off)
    verdict = judge(records)
    assert verdict.drift.verdict == "not_comparable"
    assert "the likelihood of the text differs between baseline and sentinel" in in_words_of_drift(
        verdict
    )


@pytest.mark.parametrize(("sha256", "outcome"), [("f" * 64, "confounded"), (None, "unreadable")])
def test_another_text_is_other_work(sha256: str | None, outcome: str) -> None:
    """Even though it was asked for."""
    records = given_session()
    records[1] = changed(
        records[1],
        argv=(*records[1].argv, "--given-text", "/other.txt"),
        identity=dataclasses.replace(records[1].identity, text_sha256=sha256),
    )
    assert verdict_of(judge(records), "C1").outcome == outcome


def test_another_text_without_dropping_is_told_without_that_excuse() -> None:
    records = session((5, 4, 5, 5))
    records[1] = changed(records[1], output_sha256="d" * 64)
    c1 = verdict_of(judge(records), "C1")
    assert c1.outcome == "provisional_loss"
    assert "the candidate generated another text than the baseline" in c1.reasons


def test_a_dropping_baseline_must_still_repeat_itself_exactly() -> None:
    for change in (
        {"output_sha256": "e" * 64},
        {"counters": Counters(128, 1000, 71, 29, 20, 100)},
    ):
        records = dropping_session()
        records[3] = changed(records[3], **change)
        assert judge(records).drift.verdict == "not_comparable"


@pytest.mark.parametrize("flags", [("--prefetch", "1"), ("--predict-prefetch",)])
def test_a_baseline_that_reads_ahead_need_not_repeat_what_depends_on_timing(
    flags: tuple[str, ...],
) -> None:
    records = session((5, 4, 5, 5), argv=("moe-engine", "--cache-mb", "8", *flags))
    records[3] = changed(records[3], counters=Counters(tokens=128, read_bytes=9999, hits=3))
    verdict = judge(records)
    assert verdict.drift.verdict == "stable"
    assert "depends on timing" in in_words_of_drift(verdict)
    other_text = changed(records[3], output_sha256="e" * 64)
    assert judge([*records[:3], other_text]).drift.verdict == "not_comparable"
    fewer = changed(records[3], counters=Counters(tokens=127))
    assert judge([*records[:3], fewer]).drift.verdict == "not_comparable"


def test_prefetching_nothing_is_not_reading_ahead() -> None:
    records = session((5, 4, 5, 5), argv=("moe-engine", "--cache-mb", "8", "--prefetch", "0"))
    records[3] = changed(records[3], counters=Counters(tokens=128, read_bytes=9999))
    assert judge(records).drift.verdict == "not_comparable"


def test_a_predictor_that_the_engine_switched_off_is_told() -> None:
    records = dropping_session()
    records[1] = changed(records[1], predictor_disarmed=PredictorDisarmed(2048, 0.75))
    c1 = in_words(verdict_of(judge(records), "C1"))
    assert "switched the predictor of C1 off after 2048 slots (its control read 75.0%)" in c1


def test_a_cache_that_sized_itself_otherwise_is_confounded() -> None:
    records = session((5, 4, 5, 5), argv=("moe-engine", "--cache-mb", "auto"))
    records = [changed(r, identity=ArmIdentity(capacity_bytes=2**30)) for r in records]
    assert judge(records).verdicts[0].outcome == "provisional_loss"
    records[1] = changed(records[1], identity=ArmIdentity(capacity_bytes=2**29))
    assert judge(records).verdicts[0].outcome == "confounded"
    bounded = changed(records[1], argv=("moe-engine", "--cache-mb", "auto", "--cache-ceil-mb", "9"))
    assert judge([records[0], bounded, *records[2:]]).verdicts[0].outcome == "provisional_loss"


def test_a_survey_has_no_verdict_about_speed() -> None:
    verdict = survey_verdict("campaign")
    assert (verdict.drift.verdict, verdict.drift.sentinel_change_pct) == ("unknown", None)
    assert "a survey has no sentinel" in verdict.drift.reasons[0]
    assert verdict.verdicts == ()


# --- which pairs can be read ---------------------------------------------------------------------


def test_beyond_the_bar_is_provisional_and_below_it_inconclusive() -> None:
    verdict = judge(session((5, 5.8, 4.7, 5)))
    win, neither = verdict_of(verdict, "C1"), verdict_of(verdict, "C2")
    assert (win.outcome, neither.outcome) == ("provisional_win", "inconclusive")
    assert win.effect_pct == pytest.approx(16)
    assert neither.effect_pct == pytest.approx(-6)
    assert "a smaller one takes repeated pairs in random order" in in_words(neither)


def test_an_effect_no_larger_than_the_drift_is_inconclusive() -> None:
    verdict = judge(session((5, 4.2, 4.2, 4.1)))
    assert verdict.drift.verdict == "drifting"
    c1 = verdict_of(verdict, "C1")
    assert c1.outcome == "inconclusive"
    assert "not beyond the session's own drift of -18.0 %" in in_words(c1)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (state((2.0, 3.4)), "the cap of policy1 at entry is 3.40 GHz for C1, 3.60 GHz for"),
        (state((2.0,)), "the cap of policy1 at entry is recorded for baseline only"),
        (state(cpu_c=48.1), "3.1 °C apart, 3 °C allowed"),
        (state(cpu_c=None), "the CPU temperature at entry is recorded for baseline only"),
        (state(caps=()), "frequency caps at entry are recorded for baseline only"),
        (None, "recorded for baseline only"),
    ],
)
def test_another_device_state_at_entry_is_unreadable(entry: DeviceState, words: str) -> None:
    records = session((5, 3, 3, 5))
    records[1] = changed(records[1], entry=entry)
    c1 = verdict_of(judge(records), "C1")
    assert c1.outcome == "unreadable"
    assert words in in_words(c1)


def test_the_batterys_temperature_does_not_matter() -> None:
    records = session((5, 3, 3, 5))
    records[1] = changed(records[1], entry=state(cpu_c=45.5, battery_c=44.0))
    assert verdict_of(judge(records), "C1").outcome == "provisional_loss"


def test_a_cap_that_moved_inside_the_cell_is_unreadable() -> None:
    records = session((5, 3, 3, 5))
    records[1] = changed(records[1], exit=state((2.0, 3.0)))
    assert "the cap of policy1 moved inside C1" in in_words(verdict_of(judge(records), "C1"))


def test_a_candidate_between_two_candidates_is_unreadable() -> None:
    records = [cell("baseline", 0, 5), cell("C1", 1, 4), cell("C2", 2, 4), cell("C3", 3, 4)]
    records.append(cell("sentinel", 4, 5))
    c2 = verdict_of(judge(records), "C2")
    assert c2.outcome == "unreadable"
    assert "C2 has no baseline cell next to it (neighbours: C1, C3)" in in_words(c2)


@pytest.mark.parametrize("nearer", ["baseline", "sentinel"])
def test_between_two_baselines_the_closer_device_state_is_read(nearer: str) -> None:
    at = {"baseline": 45.0, "sentinel": 47.0, "C1": 45.5 if nearer == "baseline" else 46.5}
    records = [
        cell(name, i, 5.0, entry=state(cpu_c=at[name]))
        for i, name in enumerate(("baseline", "C1", "sentinel"))
    ]
    c1 = verdict_of(judge(records), "C1")
    assert c1.cells_used == ((0, 1) if nearer == "baseline" else (1, 2))
    assert f"{nearer} is read rather than" in in_words(c1)


def test_a_campaign_resumed_hours_later_is_not_one_session() -> None:
    records = session((5, 3, 3, 5))
    records[0] = changed(records[0], ended_unix_s=1000.0)
    records[1] = changed(records[1], started_unix_s=9000.0, wait=Wait(30.0, "after a resume"))
    c1 = verdict_of(judge(records), "C1")
    assert c1.outcome == "unreadable"
    assert "C1 started 7970 s later than its pause after baseline" in in_words(c1)


@pytest.mark.parametrize("later_s", [100.0, 86_400.0])
@pytest.mark.parametrize("again", [0, 1, 2])
def test_a_cell_that_was_measured_again_is_nobodys_neighbour(again: int, later_s: float) -> None:
    """A resume measures a cell whose files were damaged, after all others."""
    records = [
        changed(
            r, started_unix_s=100.0 * i, ended_unix_s=100.0 * i + 60, wait=Wait(40.0, "spacing")
        )
        for i, r in enumerate(session((5, 10, 5, 5)))
    ]
    in_place = judge(records)
    assert verdict_of(in_place, "C1").outcome == "provisional_win"
    at = 300.0 + later_s
    records[again] = changed(records[again], started_unix_s=at, ended_unix_s=at + 60)
    verdict = judge(records)
    name = records[again].cell
    said = f"{name} began after {records[again + 1].cell}, which follows it: it was measured again"
    if again == 0:  # no baseline brackets the session
        assert verdict.drift.verdict == "unknown" and said in verdict.drift.reasons[0]
        assert {v.outcome for v in verdict.verdicts} == {"unreadable"}
        return
    assert verdict.drift == in_place.drift
    for candidate in ("C1", "C2"):
        v = verdict_of(verdict, candidate)
        if candidate == name:
            assert v.outcome == "unreadable" and said in in_words(v)
        else:
            assert v.outcome == verdict_of(in_place, candidate).outcome


def test_another_number_of_tokens_is_another_task() -> None:
    records = session((5, 3, 3, 5))
    records[1] = changed(records[1], counters=Counters(tokens=90, read_bytes=9000))
    assert "C1 made 90 tokens, baseline 128 tokens: not the same task" in (
        in_words(verdict_of(judge(records), "C1"))
    )


# --- sensors -------------------------------------------------------------------------------------


def with_zones(records: Sequence[CellRecord], *zones: ThermalState) -> list[CellRecord]:
    """The records with these zones in every state, beside those they have."""

    def more(s: DeviceState | None) -> DeviceState:
        assert s is not None
        return dataclasses.replace(s, thermal=(*zones, *s.thermal))

    return [changed(r, entry=more(r.entry), exit=more(r.exit)) for r in records]


def test_a_trip_point_is_no_temperature() -> None:
    records = session((5, 3, 3, 5))
    records[1] = changed(records[1], entry=state(cpu_c=60.0))
    c1 = verdict_of(judge(with_zones(records, ThermalState("zone0", "cpu-0-0", 99.6))), "C1")
    assert c1.outcome == "unreadable"
    assert "zone0 (cpu-0-0) reads 99.6 °C in all 8 states" in in_words(c1)
    assert "CPU 60.0 °C and 45.0 °C" in in_words(c1)


def test_with_only_a_trip_point_the_probes_decide() -> None:
    bare = session((5, 3, 3, 5), entry=state(cpu_c=None), exit=state(cpu_c=None))
    records = with_zones(bare, ThermalState("zone0", "cpu-0-0", 99.6))
    assert "no CPU temperature to compare, and no probe ran before the cells" in (
        in_words(verdict_of(judge(records), "C1"))
    )
    probed = [changed(r, probe=Probes(ProbeResult(compute_ms=100.0))) for r in records]
    assert verdict_of(judge(probed), "C1").outcome == "provisional_loss"


def test_an_even_temperature_on_a_quiet_device_is_no_broken_sensor() -> None:
    quiet = DeviceState(
        cpufreq=(CpufreqState("policy0", scaling_max_khz=GHZ),),
        thermal=(ThermalState("zone0", "x86_pkg_temp", 45.0),),
    )
    assert (
        verdict_of(judge(session((5, 3, 3, 5), entry=quiet, exit=quiet)), "C1").outcome
        == "provisional_loss"
    )


@pytest.mark.parametrize(
    ("compute", "read", "outcome"),
    [
        (101.9, None, "provisional_loss"),
        (102.1, None, "unreadable"),
        (100.0, 9.8, "provisional_loss"),
        (100.0, 10.0, "unreadable"),
    ],
)
def test_without_sensors_the_probes_must_agree(
    compute: float, read: float | None, outcome: str
) -> None:
    def probe(c: float, r: float | None) -> Probes:
        return Probes(before=ProbeResult(compute_ms=c, read_ms=r))

    own = probe(100.0, 9.0 if read else None)
    records = session((5, 3, 3, 5), entry=BLIND, exit=BLIND, probe=own)
    records[1] = changed(records[1], probe=probe(compute, read))
    c1 = verdict_of(judge(records), "C1")
    assert c1.outcome == outcome
    if outcome == "unreadable":
        assert "no frequency caps and CPU temperature to compare, and the" in in_words(c1)


def test_probes_far_apart_raise_the_bar_even_at_equal_sensors() -> None:
    records = session((5, 4.2, 4, 5), probe=Probes(before=ProbeResult(compute_ms=100.0)))
    records[1] = changed(records[1], probe=Probes(before=ProbeResult(compute_ms=125.0)))
    c1 = verdict_of(judge(records), "C1")
    assert c1.outcome == "inconclusive"
    assert "the difference of the two cells' probes" in in_words(c1)


# --- arms ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [{"model_sha256": "e" * 64}, {"engine_build_id": "b2"}, {"direct_io": False}],
)
def test_a_difference_nobody_asked_for_is_confounded(change: dict[str, Any]) -> None:
    records = session((5, 3, 3, 5))
    identity = dataclasses.replace(records[1].identity, **change)
    records[1] = changed(records[1], identity=identity)
    verdict = judge(records)
    assert verdict_of(verdict, "C1").outcome == "confounded"
    assert "which nobody asked for" in in_words(verdict_of(verdict, "C1"))
    assert verdict_of(verdict, "C2").outcome == "provisional_loss"


def test_a_difference_asked_for_on_the_command_line_is_none() -> None:
    records = session((5, 3, 3, 5))
    records[1] = changed(
        records[1],
        argv=(*records[1].argv, "--no-odirect"),
        identity=dataclasses.replace(records[1].identity, direct_io=False, cache_mb=32),
    )
    records[0] = changed(records[0], identity=dataclasses.replace(records[0].identity, cache_mb=64))
    records[3] = changed(records[3], identity=records[0].identity)
    assert verdict_of(judge(records), "C1").outcome == "provisional_loss"


# --- the typical token ---------------------------------------------------------------------------


def test_an_effect_that_lives_in_stalls_is_told_from_one_on_every_token() -> None:
    flat, stalls = [200.0] * 128, [200.0] * 126 + [4000.0] * 2
    walls = {0: flat, 1: stalls, 2: [300.0] * 128, 3: flat}
    speeds = [128 / sum(walls[i]) * 1e3 for i in range(4)]
    verdict = judge(session(speeds), walls)
    c1, c2 = verdict_of(verdict, "C1"), verdict_of(verdict, "C2")
    assert c1.typical_token_effect_pct == pytest.approx(0)
    assert "the effect lives in stalls" in in_words(c1)
    assert c2.typical_token_effect_pct == pytest.approx(-100 / 3)
    assert "stalls" not in in_words(c2)


def test_the_first_sixteen_tokens_are_warm_up() -> None:
    warm, cold = [200.0] * 128, [900.0] * 16 + [200.0] * 112
    verdict = judge(session((5, 5, 5, 5)), {0: warm, 1: cold, 2: warm[:20], 3: warm})
    assert verdict_of(verdict, "C1").typical_token_effect_pct == pytest.approx(0)
    assert verdict_of(verdict, "C2").typical_token_effect_pct is None
    assert "too few tokens after the warm-up" in in_words(verdict_of(verdict, "C2"))


# --- properties ----------------------------------------------------------------------------------

speeds4 = st.tuples(*[st.floats(0.05, 100.0)] * 4)  # 128 tokens take more than a second


@given(speeds4, st.floats(1.0, 100.0), st.lists(st.floats(1.0, 1e4), min_size=24, max_size=40))
@settings(deadline=None)
def test_a_device_so_many_times_slower_gives_the_same_verdict(
    speeds: tuple[float, ...], factor: float, walls: list[float]
) -> None:
    per_cell = {i: [w * (1 + i / 7) for w in walls] for i in range(4)}
    before = judge(session(speeds), per_cell)
    after = judge(
        session([s / factor for s in speeds]),
        {i: [w * factor for w in ws] for i, ws in per_cell.items()},
    )
    for x, y in zip(before.verdicts, after.verdicts, strict=True):
        if _on_an_edge(x.effect_pct, before.drift.sentinel_change_pct):
            continue
        assert (x.outcome, x.cells_used) == (y.outcome, y.cells_used)
        assert x.effect_pct == pytest.approx(y.effect_pct, abs=1e-6)
        assert x.typical_token_effect_pct == pytest.approx(y.typical_token_effect_pct, abs=1e-6)


@given(st.floats(0.05, 100.0), st.floats(0.05, 100.0))
@settings(deadline=None)
def test_swapping_the_labels_flips_the_sign(b: float, c: float) -> None:
    one = verdict_of(judge(session((b, c, c, b))), "C1")
    other = verdict_of(judge(session((c, b, b, c))), "C1")
    assert one.effect_pct is not None and other.effect_pct is not None
    assert math.log1p(one.effect_pct / 100) == pytest.approx(
        -math.log1p(other.effect_pct / 100), abs=1e-9
    )
    flip = {"provisional_win": "provisional_loss", "provisional_loss": "provisional_win"}
    if not _on_an_edge(one.effect_pct, 0.0):
        assert other.outcome == flip.get(one.outcome, one.outcome)


def _on_an_edge(effect_pct: float | None, drift_pct: float | None) -> bool:
    """Where rounding alone may decide: the effect stands on the bar."""
    if effect_pct is None or drift_pct is None:
        return False
    effect = abs(math.log1p(effect_pct / 100))
    return any(
        abs(effect - bar) < 1e-9
        for bar in (SETTINGS.provisional_min_log, abs(math.log1p(drift_pct / 100)))
    )


# Without any one of these a pair cannot be read; each is taken from one cell of the pair.
NEEDED: tuple[dict[str, Any], ...] = (
    {"status": "killed"},
    {"metrics": Metrics()},
    {"metrics": Metrics(tok_s=float("nan"))},
    {"metrics": Metrics(tok_s=0.0)},
    {"entry": None},
    {"entry": DeviceState()},
    {"entry": state(cpu_c=None)},
    {"entry": state(caps=())},
    {"counters": Counters()},
    {"identity": ArmIdentity()},
)
FIELDS = (*NEEDED, {"exit": None}, {"argv": ()}, {"output_sha256": None}, {"wait": None})


@given(st.sampled_from(NEEDED), st.sampled_from([0, 1]))
@settings(deadline=None)
def test_what_is_missing_is_never_read(missing: dict[str, Any], index: int) -> None:
    records = session((5, 3, 3, 5))
    records[index] = changed(records[index], **missing)
    c1 = verdict_of(judge(records), "C1")
    assert c1.outcome not in READ
    assert c1.effect_pct is None
    assert len(c1.reasons) > 1


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(FIELDS)), max_size=12),
    st.sets(st.integers(0, 3)),
    st.dictionaries(st.integers(0, 4), st.lists(st.floats() | st.just(0.0), max_size=40)),
)
@settings(deadline=None)
def test_no_gap_in_the_data_crashes_or_gives_a_final_verdict(
    gaps: list[tuple[int, dict[str, Any]]], absent: set[int], walls: dict[int, list[float]]
) -> None:
    records = session((5, 3, 3, 5))
    for index, gap in gaps:
        records[index] = changed(records[index], **gap)
    verdict = judge([r for r in records if r.index not in absent], walls)
    assert {v.outcome for v in verdict.verdicts}.isdisjoint({"win", "loss", "equivalent"})


def test_a_cell_whose_timing_is_not_its_arms_is_not_read() -> None:
    records = session((5, 5, 4, 5))
    assert verdict_of(judge(records), "C2").outcome == "provisional_loss"
    found = CellVerdict(2, "C2", "contaminated", ("a CPU quota held it back",))
    told = four_cell_verdict("c", records, SETTINGS, None, [found])
    of_it = verdict_of(told, "C2")
    assert of_it.outcome == "unreadable"
    assert any("C2 is contaminated: a CPU quota held it back" in r for r in of_it.reasons)
    other = CellVerdict(2, "C2", "clean", notes=("a CPU quota held it back",))
    assert four_cell_verdict("c", records, SETTINGS, None, [other]).verdicts == (
        judge(records).verdicts
    )
