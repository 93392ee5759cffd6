"""Plots: files that are whole, say what they must, and show only what was recorded."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from harness.analysis.contamination import ContaminationSettings, examine
from harness.analysis.device_course import DeviceCourse, device_course
from harness.analysis.series import Series
from harness.collect import DEVICE, read_device
from harness.errors import DeviceError
from harness.planned import Plan, PlannedCell
from harness.readings import (
    BatteryState,
    CpufreqState,
    DeviceState,
    ProbeResult,
    Probes,
    ThermalState,
)
from harness.records import CellRecord, Counters, Metrics, TargetId
from harness.report.plot_estimates import draw_estimates
from harness.report.plot_style import arm_styles
from harness.report.plot_timeline import draw_timeline
from harness.report.plot_traces import draw_traces
from harness.report.plots import write_plots
from harness.report.trace_columns import flagged_tokens, median_trace, smoothed
from harness.verdicts import (
    CampaignVerdict,
    CandidateVerdict,
    CellVerdict,
    Drift,
    LookRow,
    PairRow,
)

# simulations, drawings, fuzzing: seconds each; CI runs them all
pytestmark = pytest.mark.slow

TOKENS = 40
ARMS = ("baseline", "fast", "other")


def state(moment: float, *, cap_khz: int = 2_000_000, temp_c: float = 40.0) -> DeviceState:
    return DeviceState(
        unix_s=moment,
        mem_available_bytes=5 * 2**30,
        cpufreq=(CpufreqState("policy0", scaling_max_khz=cap_khz), CpufreqState("policy4")),
        thermal=(ThermalState("thermal_zone0", "cpu-0", temp_c),),
        battery=BatteryState(temp_c=31.0),
    )


def record(index: int, arm: str, *, sensors: bool = True, times: bool = True) -> CellRecord:
    start = 1000.0 + 60 * index
    probe = ProbeResult(compute_ms=100.0 + index, read_ms=20.0, wall_s=2.0)
    return CellRecord(
        cell=f"{arm}{index}",
        arm=arm,
        role="baseline" if arm == "baseline" else "candidate",
        index=index,
        status="ok",
        exit_code=0,
        argv=(),
        target=TargetId("local", "here"),
        entry=state(start, temp_c=40 + index) if sensors else None,
        exit=state(start + 30, cap_khz=1_800_000, temp_c=55 + index) if sensors else None,
        probe=Probes(probe, probe) if sensors else Probes(),
        counters=Counters(tokens=TOKENS),
        metrics=Metrics(tok_s=5.0 + index % 3),
        started_unix_s=start if times else None,
        ended_unix_s=start + 30 if times else None,
    )


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A campaign to be drawn, and where."""

    directory: Path
    verdict: CampaignVerdict
    plan: Plan
    records: tuple[CellRecord, ...]
    series: Mapping[int, Series]
    device: Mapping[int, DeviceCourse] = dataclasses.field(default_factory=dict)

    def written(self) -> dict[str, str]:
        """The text of every SVG by its name, after a look that it is XML."""
        paths = write_plots(
            self.directory, self.verdict, self.plan, self.records, self.series, self.device
        )
        assert all(p.parent == self.directory / "plots" for p in paths)
        return {p.stem: words(ET.parse(p).getroot().itertext()) for p in paths}  # noqa: S314

    def estimates(self) -> str:
        return drawn_words(draw_estimates(self.verdict, self.plan, 3.0))

    def traces(self) -> str:
        return drawn_words(draw_traces(self.verdict, self.plan, self.records, self.series))

    def timeline(self) -> str:
        return drawn_words(self.timeline_figure())

    def timeline_figure(self) -> Figure:
        figure = draw_timeline(self.verdict, self.plan, self.records, self.device)
        assert figure is not None
        return figure


def words(texts: Iterable[str]) -> str:
    return " ".join(" ".join(texts).split())


def drawn_words(figure: Figure | None) -> str:
    """All that stands in a figure; writing it would take long, and is tested by itself."""
    assert figure is not None
    return words(t.get_text() for t in figure.findobj(Text))


@pytest.fixture
def pairs(tmp_path: Path) -> Drawn:
    """Six blocks of a baseline and two candidates; one pair replaced, one cell contaminated."""
    rng = np.random.default_rng(1)
    order = [arm for block in range(6) for arm in ARMS[:: 1 if block % 2 else -1]]
    records = tuple(record(i, arm) for i, arm in enumerate(order))
    series = {r.index: Series(wall_ms=rng.uniform(90, 200, TOKENS)) for r in records}
    planned = tuple(PlannedCell(r.index, r.cell, r.arm, r.role, 0.0, r.index // 3) for r in records)
    plan = Plan("pairs", {}, planned, "baseline", ("fast", "other"))
    rows, looks = [], []
    for candidate in plan.candidates:
        for block in range(6):
            cells = {r.arm: (r.index,) for r in records[3 * block : 3 * block + 3]}
            bad = block == 2 and candidate == "fast"
            rows.append(
                PairRow(
                    candidate,
                    block,
                    cells["baseline"],
                    cells[candidate],
                    "replaced" if bad else "clean",
                    40.0 if bad else 4.0 + block,
                    ("the clock stood still",) if bad else (),
                )
            )
        looks += [
            LookRow(candidate, n, n, 5.0, (5 - 20 / n, 5 + 20 / n) if n > 3 else None, 0.1)
            for n in range(1, 6)
        ]
        looks.append(LookRow(candidate, 5, 6, 5.0, (1.0, 9.0), 0.01, 0.0157, "win"))
    verdict = CampaignVerdict(
        "the campaign",
        Drift("stable", 1.0),
        (
            CandidateVerdict("fast", "baseline", "win", 5.0, (1.0, 9.0), clean_pairs=5),
            CandidateVerdict("other", "baseline", "equivalent", 0.4, (-1.0, 2.0), clean_pairs=6),
        ),
        cells=(
            CellVerdict(7, "fast7", "contaminated", ("from token 20 on (to 39) it was slower",)),
        ),
        pairs=tuple(rows),
        looks=tuple(looks),
    )
    return Drawn(tmp_path, verdict, plan, records, series)


def test_all_three_are_written_and_say_the_verdict(pairs: Drawn) -> None:
    written = pairs.written()
    assert written.keys() == {"estimates", "traces", "timeline"}
    for text in written.values():
        assert "fast against baseline: win, +5.0 % tok/s (+1.0 to +9.0), 5 clean" in text


def test_estimates_show_looks_margin_and_why_a_pair_was_left_out(pairs: Drawn) -> None:
    text = pairs.estimates()
    assert "change of tok/s, %" in text
    assert "equivalent: within 3 %" in text
    assert "look at 5" in text and "p 0.01 needs 0.0157 win" in text
    assert "a: the clock stood still" in text
    # the pair is out of sight: its number stands at the edge
    assert "a +40 %" in text


def test_traces_name_units_and_contaminated_cells(pairs: Drawn) -> None:
    text = pairs.traces()
    assert "wall time per token, ms" in text
    assert "median of fast (6 cells)" in text
    assert "cell 7" in text and "contaminated" in text
    clean = dataclasses.replace(pairs.verdict, cells=())
    assert "contaminated" not in dataclasses.replace(pairs, verdict=clean).traces()


PANELS = {
    "frequency cap, GHz": "frequency caps",
    "temperature, °C": "temperatures",
    "compute probe, ms": "probes",
    "memory available, GiB": "available memory",
}


def without(drawn: Drawn, panel: str) -> Drawn:
    """As if the device did not show what the panel shows."""
    parts: dict[str, object] = {
        "frequency cap, GHz": {"cpufreq": ()},
        "temperature, °C": {"thermal": (), "battery": None},
        "memory available, GiB": {"mem_available_bytes": None},
    }
    records = []
    for r in drawn.records:
        if panel == "compute probe, ms":
            records.append(dataclasses.replace(r, probe=Probes()))
            continue
        assert r.entry and r.exit
        changes = parts[panel]
        records.append(
            dataclasses.replace(
                r,
                entry=dataclasses.replace(r.entry, **changes),  # type: ignore[arg-type]
                exit=dataclasses.replace(r.exit, **changes),  # type: ignore[arg-type]
            )
        )
    return dataclasses.replace(drawn, records=tuple(records))


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_is_there_only_for_what_was_recorded(pairs: Drawn, panel: str) -> None:
    whole = pairs.timeline()
    assert all(title in whole for title in PANELS)
    assert "not recorded" not in whole
    partly = without(pairs, panel).timeline()
    assert panel not in partly
    assert all(title in partly for title in PANELS if title != panel)
    assert f"not recorded: {PANELS[panel]}" in partly


def test_a_device_without_sensors_is_said_to_have_none(pairs: Drawn) -> None:
    bare = tuple(record(r.index, r.arm, sensors=False) for r in pairs.records)
    text = dataclasses.replace(pairs, records=bare).timeline()
    assert "no sensors" in text
    assert not any(title in text for title in PANELS)
    assert "minutes from the start of the first cell" in text


def test_the_axis_has_the_unit_that_fits(pairs: Drawn) -> None:
    short = dataclasses.replace(pairs, records=pairs.records[:3])
    assert "seconds from the start of the first cell" in short.timeline()
    late = dataclasses.replace(pairs.records[-1], ended_unix_s=1000.0 + 4 * 3600)
    long = dataclasses.replace(pairs, records=(*pairs.records[:-1], late))
    assert "hours from the start of the first cell" in long.timeline()


def test_cells_without_times_stand_in_order(pairs: Drawn) -> None:
    untimed = tuple(record(r.index, r.arm, times=False) for r in pairs.records)
    text = dataclasses.replace(pairs, records=untimed).timeline()
    assert "cells in order (when they ran was not recorded)" in text


def test_a_constant_sensor_is_named_as_rejected(pairs: Drawn) -> None:
    def stuck(s: DeviceState | None) -> DeviceState | None:
        assert s
        return dataclasses.replace(s, thermal=(*s.thermal, ThermalState("z9", "cpu-1", 99.6)))

    records = tuple(
        dataclasses.replace(r, entry=stuck(r.entry), exit=stuck(r.exit)) for r in pairs.records
    )
    text = dataclasses.replace(pairs, records=records).timeline()
    assert "sensor rejected: z9" in text


def test_the_course_inside_cells_is_drawn(pairs: Drawn) -> None:
    course = DeviceCourse(
        np.arange(3.0), np.full(3, 1e9), {"policy0": np.array([1e6, np.nan, 1e6])}, {}
    )
    figure = dataclasses.replace(pairs, device={0: course}).timeline_figure()
    lines = {ax.get_ylabel(): ax.get_lines()[0].get_xydata() for ax in figure.axes[1:]}
    # two states a cell, and in the first the two samples that could be read
    assert len(lines["frequency\ncap, GHz"]) == 2 * len(pairs.records) + 2
    assert len(lines["memory\navailable, GiB"]) == 2 * len(pairs.records) + 3
    assert np.all(np.diff(lines["frequency\ncap, GHz"][:, 0]) >= 0)


def parts(
    d: Drawn,
) -> tuple[
    Path,
    CampaignVerdict,
    Plan,
    tuple[CellRecord, ...],
    Mapping[int, Series],
    Mapping[int, DeviceCourse],
]:
    return d.directory, d.verdict, d.plan, d.records, d.series, d.device


@pytest.mark.slow
def test_the_same_campaign_gives_the_same_files(pairs: Drawn) -> None:
    first = [p.read_bytes() for p in write_plots(*parts(pairs))]
    assert first == [p.read_bytes() for p in write_plots(*parts(pairs))]


def test_png_on_request(pairs: Drawn) -> None:
    paths = write_plots(*parts(pairs), file_format="png")
    assert {p.name for p in paths} == {"estimates.png", "traces.png", "timeline.png"}
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in paths)


# --- little is there -----------------------------------------------------------------------------


def test_no_cells_no_plots(tmp_path: Path) -> None:
    verdict = CampaignVerdict("c", Drift("unknown", None), ())
    assert not write_plots(tmp_path, verdict, Plan("survey", {}, (), None, ()), (), {}, {})
    assert not (tmp_path / "plots").exists()


def test_one_cell_of_a_survey(tmp_path: Path) -> None:
    verdict = CampaignVerdict("c", Drift("unknown", None), ())
    plan = Plan("survey", {}, (PlannedCell(0, "a", "a", "candidate", 0.0),), None, ())
    one = Drawn(tmp_path, verdict, plan, (record(0, "a"),), {0: Series(wall_ms=np.ones(3))})
    assert one.written().keys() == {"traces", "timeline"}


def test_a_survey_has_a_panel_an_arm_and_many_arms_are_named(pairs: Drawn) -> None:
    arms = [f"arm{i}" for i in range(8)]
    records = tuple(record(i, arm) for i, arm in enumerate(arms))
    planned = tuple(PlannedCell(i, a, a, "candidate", 0.0) for i, a in enumerate(arms))
    survey = Drawn(
        pairs.directory,
        CampaignVerdict("c", Drift("unknown", None), ()),
        Plan("survey", {}, planned, None, tuple(arms)),
        records,
        {r.index: Series(wall_ms=np.full(TOKENS, 10.0)) for r in records},
    )
    traces, timeline = survey.traces(), survey.timeline()
    assert all(f"{arm}: 1 cell" in traces for arm in arms)
    assert all(f"{i} arm{i}{i}" in timeline for i in range(8))


def test_failed_cells_and_no_series(pairs: Drawn) -> None:
    failed = tuple(
        dataclasses.replace(
            record(r.index, r.arm, sensors=False), status="failed", metrics=Metrics()
        )
        for r in pairs.records
    )
    gone = dataclasses.replace(pairs, records=failed, series={})
    assert "did not end well" in gone.timeline()
    assert draw_traces(gone.verdict, gone.plan, gone.records, gone.series) is None


def test_a_candidate_without_cells_and_pairs_without_effects(pairs: Drawn) -> None:
    rows = tuple(
        dataclasses.replace(p, status="incomplete", effect_pct=None) for p in pairs.verdict.pairs
    )
    verdict = dataclasses.replace(pairs.verdict, pairs=rows, looks=())
    only = tuple(r for r in pairs.records if r.arm != "other")
    assert draw_estimates(verdict, pairs.plan, 3.0) is None
    assert "other" not in dataclasses.replace(pairs, verdict=verdict, records=only).traces()


def test_a_look_without_pairs_and_pairs_without_looks(pairs: Drawn) -> None:
    verdict = dataclasses.replace(pairs.verdict, looks=())
    assert "one pair" in dataclasses.replace(pairs, verdict=verdict).estimates()


def test_a_place_that_cannot_be_written_is_one_line(pairs: Drawn) -> None:
    (pairs.directory / "plots").write_text("in the way")
    with pytest.raises(DeviceError, match="plots"):
        write_plots(*parts(pairs))


# --- what is drawn -------------------------------------------------------------------------------


def test_arms_differ_in_more_than_colour(pairs: Drawn) -> None:
    styles = list(arm_styles(pairs.plan).values())
    assert len({s.colour for s in styles}) == len({s.marker for s in styles}) == len(styles)
    assert len({str(s.dash) for s in styles}) == len(styles)


def test_a_step_that_was_found_is_where_it_is_drawn() -> None:
    rng = np.random.default_rng(7)
    records = tuple(dataclasses.replace(record(i, "a"), exit=None) for i in range(6))
    series = {
        i: Series(wall_ms=100 * np.exp(rng.normal(0, 0.01, 96)) * (1 + 0.3 * (i == 3) * STEP))
        for i in range(6)
    }
    found = examine(
        [dataclasses.replace(r, counters=Counters(tokens=96)) for r in records],
        series,
        ContaminationSettings(),
    )
    assert [c.status for c in found].count("contaminated") == 1
    first, last = flagged_tokens(found[3], 96)
    assert abs(first - 60) <= 2
    assert last == 95


STEP = np.arange(96) >= 60


def test_a_reason_without_tokens_flags_the_whole_cell() -> None:
    cell = CellVerdict(0, "a", "contaminated", ("the cap moved",))
    assert flagged_tokens(cell, 40) == (0, 39)
    longer = CellVerdict(0, "a", "contaminated", ("slower",), stretch=(30, 95))
    assert flagged_tokens(longer, 40) == (30, 39)


def test_medians_and_smoothing() -> None:
    ragged = [np.array([1.0, 5.0]), np.array([3.0]), np.array([2.0, 7.0, 9.0])]
    assert median_trace(ragged).tolist() == [2.0, 6.0, 9.0]
    spike = np.ones(20)
    spike[10] = 100
    assert smoothed(spike).tolist() == [1.0] * 20
    assert smoothed(np.array([3.0])).tolist() == [3.0]


# --- device.csv ----------------------------------------------------------------------------------

HEADER = (
    "t_ms,mem_available_bytes,load_1m,running_tasks,swap_free_bytes,"
    "policy0.max_khz,policy0.cur_khz,thermal_zone3.cpu-0-0.temp_c\n"
)


def test_device_csv_is_read_by_name(tmp_path: Path) -> None:
    rows = "0,1024,0.5,2,0,1800000,900000,41.5\n500,2048,,,,,,\n1000,4096,0.5,2,0,1700000"
    (tmp_path / DEVICE).write_text(HEADER + rows)
    course = read_device(tmp_path)
    assert course is not None
    assert course.t_s.tolist() == [0.0, 0.5]  # the torn last row is left out
    assert course.mem_available_bytes is not None
    assert course.mem_available_bytes.tolist() == [1024, 2048]
    assert course.caps_khz["policy0"][0] == 1_800_000
    assert np.isnan(course.caps_khz["policy0"][1])
    assert course.temps_c["thermal_zone3"][0] == 41.5


def test_no_device_csv_no_course(tmp_path: Path) -> None:
    assert read_device(tmp_path) is None
    (tmp_path / DEVICE).write_text(HEADER)
    assert read_device(tmp_path) is None
    assert device_course([{"mem_available_bytes": 1.0}]) is None
