"""Which cells are contaminated, rule by rule, on cells made by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.analysis.contamination import ContaminationSettings, examine
from harness.analysis.series import Array, Series
from harness.importers.write import Imported, ImportedCell, write_campaign
from harness.judgement import judge_directory
from harness.planned import Plan, PlannedCell
from harness.readings import CpufreqState, DeviceState, Peaks, ProbeResult, Probes, ThermalState
from harness.records import ArmIdentity, CellRecord, Counters, Metrics, TargetId
from harness.verdicts import CellVerdict

SETTINGS = ContaminationSettings()
TOKENS = 96
TEXT = np.random.default_rng(5).normal(0.0, 0.25, TOKENS)  # what content does to ln wall


def walls(seed: int, factor: Array | float = 1.0) -> Array:
    noise = np.random.default_rng(seed).normal(0.0, 0.04, TOKENS)
    return np.asarray(200.0 * np.exp(TEXT + noise) * factor, float)


def stepped(at: int, factor: float) -> Array:
    return np.where(np.arange(TOKENS) < at, 1.0, factor)


def cell(index: int, arm: str = "a", **changes: Any) -> CellRecord:
    record = CellRecord(
        cell=f"{arm}{index}",
        arm=arm,
        role="candidate",
        index=index,
        status="ok",
        exit_code=0,
        argv=("moe-engine", "-n", str(TOKENS)),
        identity=ArmIdentity(prompt_sha256="p"),
        target=TargetId("local", "here"),
        counters=Counters(tokens=TOKENS, read_bytes=1000),
        metrics=Metrics(tok_s=5.0),
    )
    return dataclasses.replace(record, **changes)


def caps(**khz: int) -> DeviceState:
    return DeviceState(cpufreq=tuple(CpufreqState(p, scaling_max_khz=k) for p, k in khz.items()))


def probes(before: float, after: float) -> Probes:
    return Probes(ProbeResult(compute_ms=before), ProbeResult(compute_ms=after))


def session(count: int = 6, **of: Any) -> tuple[list[CellRecord], dict[int, Series]]:
    """Clean cells of one arm; `of`: factors on the wall time of cells, as `c3=...`."""
    records = [cell(i) for i in range(count)]
    series = {i: Series(wall_ms=walls(i, of.get(f"c{i}", 1.0))) for i in range(count)}
    return records, series


def states(verdicts: Sequence[CellVerdict]) -> list[str]:
    return [v.status for v in verdicts]


def test_cells_that_do_the_same_in_the_same_time_are_clean() -> None:
    verdicts = examine(*session(), SETTINGS)
    assert states(verdicts) == ["clean"] * 6
    assert not any(v.reasons or v.notes for v in verdicts)


def test_a_step_is_found_where_it_is_and_in_no_other_cell() -> None:
    verdicts = examine(*session(c3=stepped(56, 1.15)), SETTINGS)
    assert states(verdicts) == ["clean"] * 3 + ["contaminated"] + ["clean"] * 2
    (reason,) = verdicts[3].reasons
    assert reason.startswith("from token 5") and "% slower than in tokens 16 to" in reason


def test_content_alone_is_no_step() -> None:
    """A text that becomes harder half way shows in every cell, and so in none."""
    records, _ = session()
    series = {i: Series(wall_ms=walls(i, stepped(50, 1.4))) for i in range(6)}
    assert states(examine(records, series, SETTINGS)) == ["clean"] * 6


def test_a_step_that_nothing_was_compared_with_is_a_note() -> None:
    records, series = session(2, c0=stepped(56, 1.6))
    verdict = examine(records, series, SETTINGS)[0]
    assert verdict.status == "unknown"
    assert "no cells of the same work" in " ".join(verdict.notes)


def test_a_stall_is_no_step_but_a_note() -> None:
    factor = np.ones(TOKENS)
    factor[40] = 50.0
    verdict = examine(*session(c2=factor), SETTINGS)[2]
    assert verdict.status == "clean"
    assert "stalls of 1 token" in verdict.notes[0] and "at token 40" in verdict.notes[0]


def test_an_autocorrelated_trace_without_a_step_is_not_accused() -> None:
    """AR(1) with rho 0.6: a plain rank sum would call one in four a step."""
    rng = np.random.default_rng(11)
    records = [cell(i) for i in range(60)]
    series = {}
    for i in range(60):
        x = np.zeros(TOKENS)
        for t in range(1, TOKENS):
            x[t] = 0.6 * x[t - 1] + rng.normal(0, 0.08)
        series[i] = Series(wall_ms=200 * np.exp(TEXT + x))
    assert states(examine(records, series, SETTINGS)).count("contaminated") <= 1


def test_neighbours_that_come_and_go_are_no_step_of_a_long_cell() -> None:
    """1,400 fast tokens tied together over hundreds of them; token by token most cells step."""
    rng = np.random.default_rng(3)
    records = [cell(i, counters=Counters(tokens=1400)) for i in range(20)]
    series = {}
    for i in range(20):
        x = np.zeros(1400)
        for t in range(1, 1400):
            x[t] = 0.99 * x[t - 1] + rng.normal(0, 0.015)
        series[i] = Series(wall_ms=4 * np.exp(x + rng.normal(0, 0.15, 1400)))
    assert states(examine(records, series, SETTINGS)).count("contaminated") <= 1
    long = np.where(np.arange(1400) < 800, 1.0, 1.3)
    series = {
        i: Series(wall_ms=4 * np.exp(rng.normal(0, 0.15, 1400)) * (long if i == 4 else 1))
        for i in range(20)
    }
    verdict = examine(records, series, SETTINGS)[4]
    assert "from token 7" in verdict.reasons[0] or "from token 8" in verdict.reasons[0]


def test_a_cell_slower_than_those_around_it_is_contaminated() -> None:
    verdicts = examine(*session(c3=1.2), SETTINGS)
    assert states(verdicts) == ["clean"] * 3 + ["contaminated"] + ["clean"] * 2
    assert "before and after it" in verdicts[3].reasons[0]


def test_a_slow_cell_whose_probes_show_it_is_left_to_the_probe_adjustment() -> None:
    records, series = session(c3=1.2)
    probed = [
        dataclasses.replace(r, probe=probes(p, p))
        for r, p in zip(records, [100.0, 100.0, 101.0, 118.0, 100.0, 99.0], strict=True)
    ]
    assert states(examine(probed, series, SETTINGS)) == ["clean"] * 6
    probed[3] = dataclasses.replace(records[3], probe=probes(100.0, 101.0))
    assert states(examine(probed, series, SETTINGS))[3] == "contaminated"


def test_a_slower_twin_on_one_side_is_a_note_unless_no_coins_deal_with_drift() -> None:
    records, series = session(2, c1=1.2)
    verdict = examine(records, series, SETTINGS)[1]
    assert "slower than in the cells of the same work next to it" in verdict.notes[0]
    alone = dataclasses.replace(SETTINGS, slow_cell_one_side_counts=True)
    assert states(examine(records, series, alone)) == ["clean", "contaminated"]


def test_a_survey_has_no_coins_so_one_side_counts(tmp_path: Path) -> None:
    records, series = session(2, c1=1.2)
    plan = Plan(
        "survey",
        {},
        tuple(PlannedCell(r.index, r.cell, r.arm, r.role, 0.0) for r in records),
        None,
        ("a",),
    )
    walls = {r.index: series[r.index].wall_ms for r in records}
    cells = tuple(
        ImportedCell(
            dataclasses.replace(r, metrics=Metrics(tok_s=1e3 / walls[r.index].mean())),
            tuple({"wall_ms": w} for w in walls[r.index].tolist()),
            {},
        )
        for r in records
    )
    directory = write_campaign(Imported("s", plan, cells, {}), tmp_path)
    assert states(judge_directory(directory).cells) == ["clean", "contaminated"]


def test_drift_from_cell_to_cell_is_not_contamination() -> None:
    verdicts = examine(*session(8, **{f"c{i}": 1.08**i for i in range(8)}), SETTINGS)
    assert states(verdicts) == ["clean"] * 8


def test_a_cap_that_moved_counts_if_the_tokens_followed() -> None:
    records, series = session(c3=stepped(48, 1.06))
    for i in (2, 3):
        now, then = caps(policy0=2_000_000), caps(policy0=1_800_000)
        records[i] = dataclasses.replace(records[i], entry=now, exit=then)
    verdicts = examine(records, series, SETTINGS)
    assert verdicts[2].status == "clean" and "did not follow" in verdicts[2].notes[0]
    assert verdicts[3].status == "contaminated" and "% slower" in verdicts[3].reasons[0]
    # without a trace the cap is all there is
    assert states(examine(records, {}, SETTINGS))[2] == "contaminated"


def test_a_probe_that_moved_counts_unless_it_does_so_in_every_cell() -> None:
    def probed(moves: Sequence[float]) -> list[CellVerdict]:
        records, series = session(c3=stepped(48, 1.06))
        records = [
            dataclasses.replace(r, probe=probes(100.0, 100.0 * m))
            for r, m in zip(records, moves, strict=True)
        ]
        return list(examine(records, series, SETTINGS))

    quiet = probed([1.01, 0.99, 1.12, 1.12, 1.01, 1.0])
    assert states(quiet) == ["clean"] * 2 + ["contaminated"] * 2 + ["clean"] * 2
    assert quiet[2].reasons == ("the compute probe took 12% longer after it than before",)
    assert "and its tokens became" in quiet[3].reasons[0]
    busy = probed([1.1, 0.9, 1.12, 1.12, 0.85, 1.2])
    assert states(busy) == ["clean"] * 3 + ["contaminated"] + ["clean"] * 2
    assert "no more than it varies in this session" in busy[2].notes[0]


def faulty(many: int, computed_ms: float, base: float = 0.0) -> Series:
    faults = np.full(TOKENS, base)
    compute = np.full(TOKENS, 100.0)
    faults[40 : 40 + many] = 4000.0
    compute[40 : 40 + many] = computed_ms
    return Series(wall_ms=compute + 100.0, compute_ms=compute, majflt=faults)


def test_a_fault_storm_counts_by_the_time_it_takes() -> None:
    records = [cell(0), cell(1, "b"), cell(2, "c")]
    series = {0: faulty(4, 2000.0), 1: faulty(4, 150.0), 2: faulty(0, 0.0, base=300.0)}
    verdicts = examine(records, series, SETTINGS)
    assert states(verdicts) == ["contaminated", "clean", "clean"]
    assert "major faults in 4 tokens (40 to 43; 200 faults per token" in verdicts[0].reasons[0]


def test_mapped_weights_fault_by_design_unless_their_arm_shows_otherwise() -> None:
    mapped = ArmIdentity(dense_weights="mmap")
    alone = examine([cell(0, identity=mapped)], {0: faulty(4, 2000.0)}, SETTINGS)[0]
    assert alone.status != "contaminated" and "fault by design" in alone.notes[0]
    records = [cell(i, identity=mapped) for i in range(4)]
    series = {i: faulty(4, 2000.0 if i == 2 else 120.0) for i in range(4)}
    assert states(examine(records, series, SETTINGS)) == ["clean"] * 2 + ["contaminated", "clean"]


def test_regular_faults_count_where_the_weights_are_known_to_be_held_in_memory() -> None:
    """Half of the tokens fault 300 times and take longer: reclaim, or a mapping at work."""
    half = np.arange(TOKENS) % 2
    compute = 100.0 + 80.0 * half
    series = Series(wall_ms=compute + 100, compute_ms=compute, majflt=290.0 + 20 * half)
    held, unknown = cell(0, identity=ArmIdentity(dense_weights="anon")), cell(1, "b")
    verdicts = examine([held, unknown], {0: series, 1: series}, SETTINGS)
    assert states(verdicts) == ["contaminated", "clean"]


def test_memory_that_ran_out_counts_where_faults_were_not_counted() -> None:
    peaks = Peaks(mem_available_min_bytes=700 * 2**20)
    records, series = session()
    records[1] = dataclasses.replace(records[1], peaks=peaks)
    verdicts = examine(records, series, SETTINGS)
    assert verdicts[1].reasons == ("available memory fell to 700 MiB",)
    series[1] = dataclasses.replace(series[1], majflt=np.zeros(TOKENS))
    verdict = examine(records, series, SETTINGS)[1]
    assert verdict.status == "clean" and verdict.notes == ("available memory fell to 700 MiB",)
    small = DeviceState(mem_total_bytes=4 * 2**30)
    del series[1]
    records[1] = dataclasses.replace(records[1], entry=small)
    assert examine(records, series, SETTINGS)[1].status != "contaminated"


def test_faults_while_warming_up_are_no_storm() -> None:
    series = faulty(0, 0.0)
    assert series.majflt is not None
    series.majflt[:16] = 5000.0
    assert examine([cell(0)], {0: series}, SETTINGS)[0].status == "clean"


def test_an_arm_that_always_faults_is_slow_by_its_settings() -> None:
    records = [cell(i) for i in range(4)]
    verdicts = examine(records, {i: faulty(4, 2000.0) for i in range(4)}, SETTINGS)
    assert states(verdicts) == ["clean"] * 4
    assert "as in the other cells of its arm" in verdicts[0].notes[0]


def test_the_minority_that_did_other_work_is_contaminated() -> None:
    records, series = session()
    records[1] = cell(1, counters=Counters(tokens=TOKENS, read_bytes=1100))
    verdicts = examine(records, series, SETTINGS)
    assert states(verdicts).count("contaminated") == 1
    assert "read_bytes 1100 in a1, 1000 in a0" in verdicts[1].reasons[0]


def test_without_a_majority_all_are_contaminated_unless_nobody_knows_what_was_asked() -> None:
    records, series = session(4)
    for i in (0, 1):
        records[i] = dataclasses.replace(records[i], counters=Counters(tokens=TOKENS, hits=3))
        records[i + 2] = dataclasses.replace(records[i + 2], counters=Counters(TOKENS, hits=4))
    assert states(examine(records, series, SETTINGS)) == ["contaminated"] * 4
    records = [dataclasses.replace(r, identity=ArmIdentity()) for r in records]
    verdicts = examine(records, series, SETTINGS)
    assert states(verdicts) == ["clean"] * 4 and "counters differ" in verdicts[0].notes[0]


def test_a_cell_shorter_than_asked_counts_unless_its_whole_arm_is() -> None:
    argv = ("moe-engine", "-n", "128")
    records, series = session(4)
    short = [dataclasses.replace(r, argv=argv) for r in records]
    assert states(examine(short, series, SETTINGS)) == ["clean"] * 4
    alone = examine(short[:1], series, SETTINGS)[0]
    assert alone.reasons == ("decoded 96 tokens, 128 were asked for",)


@pytest.mark.parametrize(
    ("field", "usual", "off"),
    [
        ("cpu_wait_share", 0.30, 0.40),
        ("neighbour_cpu_share", 0.50, 1.0),
        ("steal_cpu_share", 0.0, 0.2),
        ("cpu_throttled_share", 0.0, 0.3),
    ],
)
def test_a_cell_whose_processor_was_busier_than_usual(field: str, usual: float, off: float) -> None:
    records, series = session()
    for i, r in enumerate(records):
        metrics = Metrics(tok_s=5.0, **{field: off if i == 4 else usual + 0.005 * i})
        records[i] = dataclasses.replace(r, metrics=metrics)
    assert states(examine(records, series, SETTINGS)) == ["clean"] * 4 + ["contaminated", "clean"]


def test_what_a_busy_machine_varies_by_singles_out_no_cell() -> None:
    records, series = session(8)
    waits = [0.3, 0.6, 0.2, 0.7, 0.4, 0.5, 0.35, 0.55]
    records = [
        dataclasses.replace(r, metrics=Metrics(tok_s=5.0, cpu_wait_share=w))
        for r, w in zip(records, waits, strict=True)
    ]
    assert states(examine(records, series, SETTINGS)) == ["clean"] * 8


def test_threads_that_compute_but_do_not_run() -> None:
    records, _ = session()
    computing = np.full(TOKENS, 90.0)
    series = {
        i: Series(wall_ms=walls(i), compute_ms=computing, cpu_ms=computing * (0.5 if i == 1 else 1))
        for i in range(6)
    }
    verdicts = examine(records, series, SETTINGS)
    assert states(verdicts).count("contaminated") == 1
    assert "its threads got 0.50 ms of CPU for each ms of computing, 1.00" in verdicts[1].reasons[0]


def test_throttled_at_entry_is_below_both_neighbours() -> None:
    low = [2_200_000, 2_200_000, 1_500_000, 2_200_000, 1_900_000, 1_600_000]
    records, series = session()
    records = [
        dataclasses.replace(r, entry=caps(policy0=k)) for r, k in zip(records, low, strict=True)
    ]
    verdicts = examine(records, series, SETTINGS)
    assert "1.50 GHz, 2.20 GHz for a1 and a3" in verdicts[2].reasons[0]
    # the last has a neighbour on one side only
    assert states(verdicts) == ["clean"] * 2 + ["contaminated"] + ["clean"] * 2 + ["contaminated"]


def test_a_constant_sensor_is_rejected_in_a_note() -> None:
    hot = DeviceState(thermal=(ThermalState("zone0", "cpu-0", 99.6),))
    records, series = session()
    records = [dataclasses.replace(r, entry=hot) for r in records]
    verdicts = examine(records, series, SETTINGS)
    assert states(verdicts) == ["clean"] * 6
    assert [len(v.notes) for v in verdicts] == [1, 0, 0, 0, 0, 0]
    assert "sensor rejected: zone0 (cpu-0) reads 99.6 °C" in verdicts[0].notes[0]


def test_cells_without_a_speed_are_unusable_and_no_measure() -> None:
    records, series = session(5, c1=3.0)
    records[0] = dataclasses.replace(records[0], status="killed", status_detail="signal 9")
    series[1] = Series(wall_ms=series[1].wall_ms[:40])
    del series[2]
    records[2] = dataclasses.replace(records[2], metrics=Metrics())
    verdicts = examine(records, series, SETTINGS)
    assert [v.reasons for v in verdicts[:3]] == [
        ("killed: signal 9",),
        ("40 tokens decoded, 64 are the least",),
        ("no speed was recorded",),
    ]
    assert states(verdicts)[:3] == ["unusable"] * 3


def test_a_cell_of_which_nothing_was_recorded_is_unknown() -> None:
    assert states(examine([cell(0)], {}, SETTINGS)) == ["unknown"]


# --- properties ----------------------------------------------------------------------------------


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


SHARES = optional(st.floats(0, 2))
STATES = optional(
    st.builds(
        DeviceState,
        mem_available_bytes=optional(st.integers(0, 2**34)),
        cpufreq=st.lists(
            st.builds(
                CpufreqState,
                st.sampled_from(["policy0", "policy6"]),
                scaling_max_khz=optional(st.sampled_from([0, 1_500_000, 2_200_000])),
            ),
            max_size=2,
        ).map(tuple),
        thermal=st.lists(
            st.builds(
                ThermalState,
                st.just("z"),
                st.sampled_from(["cpu", None]),
                optional(st.floats(20, 100)),
            ),
            max_size=1,
        ).map(tuple),
    )
)
PROBE = optional(st.builds(ProbeResult, compute_ms=optional(st.sampled_from([0.0, 100.0, 120.0]))))


@st.composite
def campaigns(draw: st.DrawFn) -> tuple[list[CellRecord], dict[int, Series]]:
    records, series = [], {}
    for i in range(draw(st.integers(0, 7))):
        tokens = draw(st.sampled_from([0, 1, 15, 17, 64, 96]))
        records.append(
            cell(
                i,
                draw(st.sampled_from("ab")),
                status=draw(st.sampled_from(["ok", "ok", "ok", "failed"])),
                entry=draw(STATES),
                exit=draw(STATES),
                probe=Probes(draw(PROBE), draw(PROBE)),
                counters=Counters(
                    tokens=draw(optional(st.just(tokens))),
                    read_bytes=draw(optional(st.sampled_from([0, 10, 20]))),
                    dropped=draw(optional(st.integers(0, 2))),
                ),
                metrics=Metrics(
                    tok_s=draw(optional(st.just(5.0))),
                    cpu_wait_share=draw(SHARES),
                    cpu_throttled_share=draw(SHARES),
                    neighbour_cpu_share=draw(SHARES),
                    steal_cpu_share=draw(SHARES),
                ),
                argv=draw(st.sampled_from([(), ("e", "-n", "96"), ("e", "-n", "x")])),
            )
        )
        if tokens and draw(st.booleans()):
            rng = np.random.default_rng(draw(st.integers(0, 9)))
            wall = rng.lognormal(5, 0.3, tokens)

            def column(wall: Array = wall) -> Array | None:
                kind = draw(st.sampled_from(["none", "zero", "nan", "some", "wall"]))
                some = np.where(np.arange(len(wall)) % 3 == 0, np.nan, wall)
                return {
                    "none": None,
                    "zero": wall * 0,
                    "nan": wall * np.nan,
                    "some": some,
                    "wall": wall,
                }[kind]

            series[i] = Series(
                wall_ms=wall,
                compute_ms=column(),
                cpu_ms=column(),
                read_bytes=column(),
                majflt=column(),
                swap_bytes=column(),
                mem_available_bytes=column(),
            )
    return records, series


@given(campaigns())
@settings(deadline=None)
def test_whatever_is_missing_there_is_a_verdict_for_each_record(
    campaign: tuple[list[CellRecord], dict[int, Series]],
) -> None:
    records, series = campaign
    verdicts = examine(records, series, SETTINGS)
    assert [(v.index, v.cell) for v in verdicts] == [(r.index, r.cell) for r in records]
    for v in verdicts:
        assert bool(v.reasons) == (v.status != "clean")


@given(campaigns(), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_neither_the_names_of_arms_nor_the_order_of_records_matter(
    campaign: tuple[list[CellRecord], dict[int, Series]], random: Any
) -> None:
    records, series = campaign
    other = {"a": "zulu", "b": "alpha"}
    relabelled = [
        dataclasses.replace(r, arm=other[r.arm], role=random.choice(["baseline", "candidate"]))
        for r in records
    ]
    random.shuffle(relabelled)
    expected = {v.index: v.status for v in examine(records, series, SETTINGS)}
    assert {v.index: v.status for v in examine(relabelled, series, SETTINGS)} == expected
