"""What a doctor makes of what was looked at and measured: figures, levels, words, exit codes."""

from __future__ import annotations

import dataclasses
import io
import json

import numpy as np
import pytest

from harness.analysis.device_noise import device_of
from harness.analysis.device_state import CpuSensor
from harness.analysis.simulate import simulate
from harness.campaign.short_aa import Budget
from harness.configure import check, compose
from harness.device.checkup import CheckUp, Limits, memory_cgroup_version
from harness.device.inspection import DirectIo, DirState, Inspection, Look, OtherEngine
from harness.device.suitability import Needs
from harness.doctor.cli import parse
from harness.doctor.device_signs import Heat, device_signs, heat_of
from harness.doctor.diagnosis import Diagnosis, conclusion
from harness.doctor.noise import Noise, chi_square, noise_of, spread_of
from harness.doctor.noise_signs import noise_signs
from harness.doctor.resolution import Resolution, resolve
from harness.doctor.show import as_data, lines_of, show
from harness.doctor.signs import Sign
from harness.errors import UsageError
from harness.judgement import pair_settings
from harness.planned import PlannedCell
from harness.readings import CpufreqState, DeviceState, PsiState, ThermalState
from harness.report.terminal import Terminal
from harness.targets.target import PageCache

GIB = 2**30
PHONE = DeviceState(
    unix_s=1000.0,
    mem_total_bytes=8 * GIB,
    mem_available_bytes=3 * GIB,
    cpu_busy_share=0.05,
    cpufreq=(CpufreqState("policy0", "0 1", 1_800_000, 900_000, 1_800_000, "schedutil"),),
    thermal=(
        ThermalState("tz0", "cpu-0", 41.5),
        ThermalState("tz1", "battery", 30.0),
        ThermalState("tz2", "cpu-trip", 99.6),
    ),
    psi=PsiState(0.0, 0.0, 0.0),
)
BARE = dataclasses.replace(PHONE, cpufreq=(), thermal=(), psi=None)
HELD = Limits(True, "a mapping beyond it fails, as it must", True, None, 2)
CONFIG = check(compose(["+experiment=aa"]))
NEEDS = Needs(write_bytes=1000, model_bytes=GIB, direct_io=True)


def look(state: DeviceState, path: str = "/data", works: bool | None = True) -> Look:
    return Look(
        dir=DirState(path, "f2fs", False, 100 * GIB, 50 * GIB, True),
        direct_io=DirectIo(works, None if works else "EINVAL"),
        sees_all_processes=True,
        state=state,
    )


def looked(state: DeviceState = PHONE, **changes: object) -> CheckUp:
    warmer = tuple(dataclasses.replace(t, temp_c=42.5) for t in state.thermal[:1])
    later = dataclasses.replace(state, thermal=(*warmer, *state.thermal[1:]))
    own = {
        "inspection": Inspection(look(state), look(state), (), 0.1, 0.05, 0.0, None),
        "looks": (state, later) * 6,
        "work": None,
        "model": None,
        "limits": HELD,
        "evicted": PageCache(2**24, 0),
        "virtual": False,
        "counts_waiting": True,
        "counts_steal": True,
    }
    return CheckUp(**(own | changes))  # type: ignore[arg-type]


def signs_of(check_up: CheckUp, *overrides: str) -> dict[str, list[Sign]]:
    config = check(compose(["+experiment=aa", *overrides])) if overrides else CONFIG
    found: dict[str, list[Sign]] = {}
    for sign in device_signs(check_up, config, NEEDS, heat_of(check_up, config)):
        found.setdefault(sign.about, []).append(sign)
    return found


# --- a device that was looked at -----------------------------------------------------------------


def test_a_device_that_shows_everything_has_nothing_against_it() -> None:
    found = signs_of(looked())
    levels = {sign.level for of in found.values() for sign in of}
    assert levels == {"ok", "note"}
    used, rejected = found["temperatures"]
    assert used.level == "ok" and "tz0.cpu-0 is used, at 41.5 °C" in used.seen
    assert "3 sensors, 2 of the CPU" in used.seen
    # a trip point stands at 99.6 in all looks: not the hottest CPU
    assert rejected.level == "note" and "tz2 (cpu-trip) reads 99.6 °C" in rejected.seen
    assert "policy0 1.80 GHz; none below its maximum" in found["frequency caps"][0].seen
    (governor,) = found["governor"]
    assert governor.level == "note" and "cpupower" in (governor.do or "")
    assert "(version 2)" in found["cgroup"][0].seen


def test_a_device_without_sensors_and_caps_has_probes_alone() -> None:
    check_up = looked(BARE)
    found = signs_of(check_up)
    assert found["temperatures"][0].level == found["frequency caps"][0].level == "warning"
    assert "no sensors" in found["temperatures"][0].seen
    assert "governor" not in found  # nothing is known of it, so nothing is said
    assert heat_of(check_up, CONFIG) == Heat(caps=False, temperatures=False, probes=True)
    unprobed = signs_of(check_up, "schedule.probe_s=0")
    assert unprobed["temperatures"][0].do == "schedule.probe_s=1"
    assert "nor probed" in unprobed["temperatures"][0].means


def test_sensors_of_other_things_are_none_of_the_cpu() -> None:
    battery = dataclasses.replace(PHONE, thermal=PHONE.thermal[1:2])
    (sign,) = signs_of(looked(battery))["temperatures"]
    assert sign.level == "warning"
    assert sign.seen == "1 sensor, none of the CPU (tz1.battery)"


def test_the_sensor_of_a_measured_campaign_replaces_that_of_a_look() -> None:
    used = CpuSensor("tz2", "cpu-trip", rejected=("tz0 (cpu-0) reads 41.5 °C in all 8 states",))
    check_up = looked()
    heat = heat_of(check_up, CONFIG, used)
    assert heat.sensor == "tz2.cpu-trip"
    first, second = device_signs(check_up, CONFIG, NEEDS, heat, used)[:2]
    assert "tz2.cpu-trip is used" in first.seen
    assert second.seen == used.rejected[0]


def test_a_cap_below_the_maximum_is_a_warning_with_what_to_do() -> None:
    cap = dataclasses.replace(PHONE.cpufreq[0], scaling_max_khz=1_200_000)
    (sign,) = signs_of(looked(dataclasses.replace(PHONE, cpufreq=(cap,))))["frequency caps"]
    assert sign.level == "warning" and "capped at 1.20 GHz, 67% of its 1.80 GHz" in sign.seen
    assert sign.do


def test_limits_that_cannot_be_had_fail_only_where_they_are_asked_for() -> None:
    without = looked(limits=Limits(False, "it was allowed", False, "no controller", 1))
    usual = signs_of(without)
    assert (usual["memory limits"][0].level, usual["cgroup"][0].level) == ("warning", "note")
    asked = signs_of(without, "memory.limit_mb=100", "memory.cgroup=required")
    assert (asked["memory limits"][0].level, asked["cgroup"][0].level) == ("failure", "failure")
    assert "no controller" in asked["cgroup"][0].seen


@pytest.mark.parametrize(
    ("evicted", "level", "words"),
    [
        (PageCache(2**24, 0), "ok", "evicted whole"),
        (PageCache(2**24, 2**20), "warning", "1.0 of 16.0 MiB of the model stay"),
        (PageCache(None, None), "note", "not shown"),
        (PageCache(0, 0), "note", "was not in it"),
        (None, "note", "not shown"),
    ],
)
def test_the_page_cache(evicted: PageCache | None, level: str, words: str) -> None:
    (sign,) = signs_of(looked(evicted=evicted))["page cache"]
    assert (sign.level, words in sign.seen) == (level, True)


def test_direct_reads_that_do_not_work_are_a_failure_where_they_are_asked_for() -> None:
    inspection = Inspection(look(PHONE, works=False), look(PHONE), (), 0.1, 0.05, 0.0, None)
    (sign,) = signs_of(looked(inspection=inspection))["direct reads"]
    assert sign.level == "failure"
    assert "EINVAL" in sign.seen and "direct_io=false" in (sign.do or "")


def test_what_is_not_counted_makes_rules_blind() -> None:
    found = signs_of(looked(BARE, counts_waiting=False, counts_steal=False, virtual=True))
    (sign,) = found["neighbours"]
    assert sign.level == "note"
    assert "cpu_wait_pct" in sign.seen and "steal_cpu_pct" in sign.seen
    assert "neighbour_cpu_pct" not in sign.seen
    assert found["virtual machine"][0].level == found["pressure"][0].level == "note"


def test_another_engine_at_work_stands_against_measuring() -> None:
    engines = (OtherEngine(7, "llama-server", 0.9),)
    inspection = Inspection(look(PHONE), look(PHONE), engines, 0.1, 0.05, 0.0, None)
    found = signs_of(looked(inspection=inspection))["other engines"]
    assert [sign.level for sign in found] == ["failure"]
    d = Diagnosis(None, tuple(found), None)
    assert d.exit_code == 1
    assert conclusion(d).startswith("This device cannot be measured on as it is: other engines: ll")


def test_at_a_glance_another_engine_may_be_that_of_a_campaign() -> None:
    engines = (OtherEngine(7, "moe-engine", 0.9),)
    inspection = Inspection(look(PHONE), look(PHONE), engines, 0.1, 0.05, 0.0, None)
    (sign,) = signs_of(looked(inspection=inspection, limits=None, evicted=None))["other engines"]
    assert sign.level == "warning" and "a campaign may be measuring" in sign.means


def test_a_glance_tells_what_it_did_not_try() -> None:
    found = signs_of(looked(limits=None, evicted=None))
    for about in ("direct reads", "page cache", "memory limits"):
        (sign,) = found[about]
        assert sign.level == "note" and sign.seen.startswith("not tried")
    assert "cgroup" not in found


@pytest.mark.parametrize(
    ("mountinfo", "version"),
    [
        ("30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate", 2),
        ("31 24 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory", 1),
        ("31 24 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu", None),
        (
            "30 24 0:26 / /u rw - cgroup2 cgroup2 rw\n31 24 0:27 / /m rw - cgroup cgroup rw,memory",
            1,
        ),
        ("", None),
    ],
)
def test_the_version_of_the_memory_cgroup(mountinfo: str, version: int | None) -> None:
    assert memory_cgroup_version(mountinfo) == version


# --- noise ---------------------------------------------------------------------------------------


def noise(scenario: str, cells: int = 24, seed: int = 3) -> Noise:
    _, records, series = simulate(scenario, seed=seed, pairs=cells // 2)
    device = device_of(records, series) if cells >= 8 else None
    return noise_of(records, series, CONFIG.verdict, device)


def test_a_calm_device_is_told_from_a_stormy_one() -> None:
    calm, storm = noise("none"), noise("storm")
    assert calm.spread is not None and storm.spread is not None
    assert storm.spread.log_sd > 3 * calm.spread.log_sd
    low, high = calm.spread.interval
    assert low < calm.spread.log_sd < high
    assert calm.contaminated == ()
    assert len(storm.contaminated) > 3
    assert sum(storm.by_rule.values()) >= len(storm.contaminated)
    assert all(rule in vars(CONFIG.verdict.contaminated) or rule for rule in storm.by_rule)


def test_a_drift_is_told_with_its_sign() -> None:
    found = noise("day40")
    assert found.drift_pct is not None and found.drift_pct < -25
    signs = {s.about: s for s in noise_signs(found, None, stable_pct=5)}
    assert signs["drift"].level == "warning"


def test_few_cells_give_a_wide_interval_and_fewer_none() -> None:
    many, few = noise("none").spread, noise("none", cells=6).spread
    assert many is not None and few is not None and few.cells == 6
    assert few.interval[1] / few.interval[0] > 1.5 * many.interval[1] / many.interval[0]
    none = noise("none", cells=2)
    assert none.spread is None and none.four_cell is None
    (sign,) = [s for s in noise_signs(none, None, stable_pct=5) if s.about == "spread"]
    assert "too few" in sign.seen


def test_the_interval_of_few_cells_covers_the_truth_as_often_as_it_says() -> None:
    covered, n = 0, 2000
    rng = np.random.default_rng(1)
    for _ in range(n):
        spread = spread_of(np.exp(rng.normal(3.0, 0.1, 6)).tolist(), None)
        assert spread is not None
        covered += spread.interval[0] <= 0.1 <= spread.interval[1]
    assert covered / n == pytest.approx(0.9, abs=0.04)


@pytest.mark.parametrize(
    ("share", "freedom", "known"), [(0.95, 3, 7.815), (0.05, 10, 3.940), (0.95, 23, 35.172)]
)
def test_chi_square_is_that_of_the_tables(share: float, freedom: float, known: float) -> None:
    assert chi_square(share, freedom) == pytest.approx(known, rel=0.01)


def test_rules_without_records_are_named_as_blind() -> None:
    _, records, series = simulate("none", seed=1, pairs=6, majflt=False)
    bare = [
        dataclasses.replace(r, entry=dataclasses.replace(r.entry or PHONE, cpufreq=()))
        for r in records
    ]
    found = noise_of(bare, series, CONFIG.verdict, None)
    assert {"cap_move_pct", "majflt_time_pct", "steal_cpu_pct"} <= set(found.blind)
    assert "step_pct" not in found.blind


def test_sessions_of_four_cells_are_read_with_the_products_own_tolerances() -> None:
    _, records, series = simulate("none", seed=3, pairs=6)
    hidden = [
        dataclasses.replace(r, entry=dataclasses.replace(r.entry or PHONE, thermal=(), cpufreq=()))
        for r in records
    ]
    wide = dataclasses.replace(CONFIG.verdict, probe_tolerance_pct=50.0)
    narrow = dataclasses.replace(CONFIG.verdict, probe_tolerance_pct=0.01)
    read = noise_of(hidden, series, wide, None).four_cell
    unread = noise_of(hidden, series, narrow, None).four_cell
    assert read is not None and unread is not None
    assert (read.sessions, read.candidates) == (9, 18)
    assert read.readable > 12 and read.accused == 0
    assert read.bar_pct is not None and read.bar_pct >= 10
    assert unread.readable == 0
    assert unread.reasons[0][0] == "the compute probes are too far apart"


def test_failed_cells_are_a_failure_and_count_for_nothing() -> None:
    _, records, series = simulate("none", seed=1, pairs=6)
    failed = [
        dataclasses.replace(records[0], status="failed", status_detail="exit 5"),
        *records[1:],
    ]
    found = noise_of(failed, series, CONFIG.verdict, None)
    assert (found.cells, len(found.failed)) == (11, 1)
    first = noise_signs(found, None, stable_pct=5)[0]
    assert first.level == "failure" and "1 of 12 cells" in first.seen and "exit 5" in first.seen


# --- how small an effect -------------------------------------------------------------------------


def resolved(scenario: str, seconds: float, cells: int = 24) -> Resolution | None:
    _, records, series = simulate(scenario, seed=3, pairs=cells // 2)
    device = device_of(records, series) if cells >= 8 else None
    found = noise_of(records, series, CONFIG.verdict, device)
    return resolve(
        found,
        device,
        pair_settings(CONFIG.verdict, interim=False),
        spacing_s=30,
        seconds=seconds,
        progress=lambda _done, _total: None,
    )


@pytest.mark.slow
def test_the_rule_of_thumb_is_near_what_is_simulated() -> None:
    rough, simulated = resolved("none", 0), resolved("none", 600)
    assert rough is not None and simulated is not None
    assert (rough.method, simulated.method) == ("rough", "simulated")
    assert rough.smallest_pct is not None and simulated.smallest_pct is not None
    assert 0.67 < rough.smallest_pct / simulated.smallest_pct < 1.5
    assert simulated.se_pct is not None and simulated.typical_min is not None
    assert simulated.budget_min is not None and simulated.budget_min > simulated.typical_min


@pytest.mark.slow  # starts processes
def test_a_simulation_that_takes_too_long_is_left_and_said_so() -> None:
    found = resolved("none", 1e-6)
    assert found is not None and found.method == "rough"
    assert "not done in" in (found.why_rough or "")


def test_too_few_cells_give_a_rough_figure_and_hardly_any_none() -> None:
    few = resolved("none", 60, cells=6)
    assert few is not None and few.method == "rough" and "too few" in (few.why_rough or "")
    assert few.likely_pct is not None and few.smallest_pct is not None
    assert few.likely_pct[0] < few.smallest_pct < few.likely_pct[1]
    assert few.budget_min is None  # the length of a cell was not measured well
    assert resolved("none", 60, cells=2) is None


# --- the sentence --------------------------------------------------------------------------------

PROBES_ALONE = Heat(caps=False, temperatures=False, probes=True)
TWO_PCT = Resolution("simulated", 1.96, 18, 30.0, budget_min=20.4)


def test_the_sentence_says_both() -> None:
    d = Diagnosis(None, (), PROBES_ALONE, resolution=TWO_PCT)
    assert conclusion(d) == (
        "This device can tell differences of about 2 % within 18 pairs (20 min at most, with 30 s "
        "between cells); throttling cannot be seen by caps or temperatures, only by probes."
    )
    assert d.exit_code == 0


@pytest.mark.parametrize(
    ("heat", "words"),
    [
        (Heat(True, True, True), "throttling is seen by frequency caps and temperatures."),
        (Heat(True, False, True), "throttling is seen by frequency caps, not by temperatures."),
        (Heat(False, True, True), "throttling is seen by temperatures, not by caps."),
        (Heat(False, False, False), "nor are there probes (schedule.probe_s=1)."),
        (None, "was not looked at."),
    ],
)
def test_the_sentence_says_by_what_throttling_is_seen(heat: Heat | None, words: str) -> None:
    assert conclusion(Diagnosis(None, (), heat, resolution=TWO_PCT)).endswith(words)


@pytest.mark.parametrize(
    ("resolution", "words"),
    [
        (dataclasses.replace(TWO_PCT, smallest_pct=43.0), "only differences beyond about 43 %"),
        (
            dataclasses.replace(TWO_PCT, smallest_pct=None, above_pct=60.0),
            "only differences beyond about 60 %",
        ),
        (
            dataclasses.replace(TWO_PCT, smallest_pct=None, below_pct=0.5),
            "can tell differences of less than 0.5 %",
        ),
        (dataclasses.replace(TWO_PCT, method="rough"), "can tell differences of roughly 2 %"),
        (None, "is not known (--no-noise)"),
    ],
)
def test_the_sentence_claims_no_more_than_was_found(
    resolution: Resolution | None, words: str
) -> None:
    d = Diagnosis(None, (), PROBES_ALONE, resolution=resolution, unmeasured="--no-noise")
    assert words in conclusion(d)


def test_an_interruption_is_said_and_has_its_exit_code() -> None:
    d = Diagnosis(None, (), PROBES_ALONE, resolution=TWO_PCT, interrupted=True)
    assert d.exit_code == 130
    assert "as far as the cells before the interruption show" in conclusion(d)


# --- for people and programs ---------------------------------------------------------------------


def test_the_worst_is_shown_first_and_nothing_is_cut() -> None:
    signs = (
        Sign("ok", "space", "50 GiB free", "a campaign can be recorded"),
        Sign(
            "warning", "load", "other programs use 80 % of all cores " * 5, "cells wait", "end it"
        ),
        Sign("failure", "engine", "no compiler", "nothing can be built", "install g++"),
    )
    out = io.StringIO()
    show(Diagnosis(None, signs, PROBES_ALONE), Terminal(out))
    lines = out.getvalue().splitlines()
    assert lines[1].startswith("This device cannot be measured on as it is: engine: no compiler")
    starts = [line.split()[0] for line in lines if line and not line.startswith(" ")][1:]
    assert starts == ["failure", "warning", "ok"]
    assert all(len(line) <= 100 for line in lines[2:])
    assert out.getvalue().count("other programs use") == 5
    assert "install g++" in out.getvalue()


def test_a_sign_has_its_meaning_and_what_to_do_below_it() -> None:
    first, second, third = lines_of(Sign("note", "governor", "walt", "clocks move", "pin them"))
    assert first.split() == ["note", "governor", "walt"]
    assert second.strip() == "= clocks move" and third.strip() == "> pin them"


def test_everything_is_data_too() -> None:
    found = noise("none", cells=8)
    signs = noise_signs(found, TWO_PCT, stable_pct=5)
    d = Diagnosis(None, tuple(signs), PROBES_ALONE, found, TWO_PCT, campaign_dir="/r/x")
    data = json.loads(json.dumps(as_data(d)))
    assert data["conclusion"] == conclusion(d)
    assert data["exit_code"] == 0
    assert [f["level"] for f in data["findings"]] == [s.level for s in d.ordered]
    assert data["noise"]["cells"] == 8
    assert data["noise"]["spread"]["log_sd"] > 0
    assert data["pairs"]["smallest_pct"] == 1.96
    assert data["throttling_seen_by"]["probes"] is True


# --- what is asked for ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["+experiment=io_lanes"], "an A/A of its own"),
        (["cells.same.n_predict=3"], "an A/A of its own"),
        (["design=abba"], "an A/A of its own"),
        (["resume=x"], "an A/A of its own"),
        (["quick"], "not key=value"),
        (["--cells", "5"], "an even number"),
        (["--cells", "2"], "from 4 to 36"),
        (["--minutes", "0"], "above 0"),
        (["--minutes", "nan"], "above 0"),
    ],
)
def test_what_cannot_be_asked_for_is_one_line(words: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=r"^[^\n]*$") as e:
        parse(words)
    assert said in str(e.value)


def test_flags_and_overrides_may_be_mixed() -> None:
    asked = parse(["target=ssh", "--cells", "8", "target.host=pi", "--json", "cell=plain"])
    assert asked.overrides == ("target=ssh", "target.host=pi", "cell=plain")
    assert (asked.cells, asked.json, asked.noise, asked.quick) == (8, True, True, False)


def test_no_pair_is_begun_that_would_end_too_late_but_the_first_cells_always_run() -> None:
    now = 0.0
    budget = Budget(30.0, clock=lambda: now)
    ran: dict[int, object] = {}
    for index in range(24):
        cell = PlannedCell(index, "c", "a", "baseline", 0.0)
        if budget.wants(cell, ran):  # type: ignore[arg-type]
            ran[index] = None
            now += 4.0
    assert sorted(ran) == [0, 1, 2, 3, 4, 5]  # a fourth pair would end at 32 s
    slow = Budget(1.0, clock=lambda: now)
    wanted = [slow.wants(PlannedCell(k, "c", "a", "baseline", 0.0), {}) for k in range(5)]
    now += 100
    assert wanted[:4] == [True] * 4
    assert not slow.wants(PlannedCell(4, "c", "a", "baseline", 0.0), dict.fromkeys(range(4)))  # type: ignore[arg-type]
