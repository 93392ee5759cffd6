"""Several campaigns from one command line: which, in which order, what is kept, how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from harness.campaign.parts import Member
from harness.errors import DeviceError, Interrupted, UsageError
from harness.journal import write_json
from harness.rundir import CONFIG, PLAN, VERDICT
from harness.sweep import runner
from harness.sweep.combinations import MOST, combinations
from harness.sweep.nightly import is_night, night_of
from harness.sweep.state import (
    Part,
    SweepState,
    held,
    left_out,
    part_of,
    read_state,
    write_state,
)
from harness.sweep.words import markdown, standing, time_in_words
from harness.targets.target import DeviceBusy
from harness.verdicts import CampaignVerdict, Drift

SIZES = "+experiment=cache_sizes"


# --- combinations --------------------------------------------------------------------------------


def varied(*lines: str) -> list[tuple[str, ...]]:
    return [c.varied for c in combinations(lines)]


def test_values_are_combined_as_hydra_does_the_last_varies_fastest() -> None:
    found = combinations([SIZES, "memory=uncapped,half", "cell.engine.io_threads=1,2,4"])
    assert [c.varied for c in found] == [
        (f"memory={m}", f"cell.engine.io_threads={n}")
        for m in ("uncapped", "half")
        for n in (1, 2, 4)
    ]
    assert found[0].overrides == (SIZES, *found[0].varied)


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("a=range(1,8,3)", ["1", "4", "7"]),
        ("a=sort(3,1,2,reverse=true)", ["3", "2", "1"]),
        ("a=choice(x,y)", ["x", "y"]),
        ("a='b,c',\"d\"", ["'b,c'", '"d"']),
        ("a=[1,2],[3]", ["[1,2]", "[3]"]),
        ("a={b:1},null", ["{b:1}", "null"]),
        ("memory=glob(*)", ["half", "uncapped"]),
        ("memory=glob(*,exclude=[half])", ["uncapped"]),
        ("cells.half=glob([p*,s*])", ["plain", "spec2"]),
        ("+experiment=glob(*_sweep)", ["drop_sweep"]),
        ("++a=1,2", ["1", "2"]),
    ],
)
def test_what_a_value_stands_for(line: str, values: list[str]) -> None:
    key = line.partition("=")[0]
    assert varied(line) == [(f"{key}={value}",) for value in values]


def test_shuffled_values_are_all_there() -> None:
    assert sorted(varied("a=shuffle(range(1,30))")) == sorted((f"a={i}",) for i in range(1, 30))


def test_what_is_not_varied_stays_as_it_was_written() -> None:
    lines = ["~cells.half", 'cell.prompt="a, b"', "b=1,2", "cells={x:baseline}"]
    for c in combinations(lines):
        assert c.overrides == (lines[0], lines[1], *c.varied, lines[3])


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["a=interval(0,1)"], ["'a=interval(0,1)'", "range(START,STOP,STEP)"]),
        (["a=range(5,1)"], ["'a=range(5,1)'", "no value at all"]),
        (["memory=glob(x*)"], ["'memory=glob(x*)'", "half, uncapped"]),
        (["cell.n_ctx=glob(*)"], ["no value at all", "cell.n_ctx is no group"]),
        (["a=1,2", "++a=3"], ["a: given 2 times"]),
        (["runs_dir=a,b"], ["'runs_dir=a,b'", "one value"]),
        (["plan_only=true,false"], ["one value"]),
        (["resume=a,b"], ["'resume=a,b'", "one value"]),
        ([f"a=range({MOST})", "b=1,2"], [f"{2 * MOST} campaigns", f"at most {MOST}"]),
        (["a=1,"], ["'a=1,'", "not readable"]),
    ],
)
def test_what_cannot_be_enumerated_is_one_line(lines: list[str], words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        combinations(lines)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


# --- the night -----------------------------------------------------------------------------------


def test_a_night_is_an_experiment_whose_file_has_entries() -> None:
    assert is_night(["+experiment=nightly"])
    assert is_night(["experiment=nightly", "schedule.spacing_s=1"])
    assert not is_night([SIZES])
    assert not is_night(["nightly.budget_s=3"])
    assert not is_night(["+experiment=nothing"])


def test_what_the_command_line_says_holds_for_every_entry() -> None:
    entries = (
        "nightly.entries=[{experiment: aa, overrides: ['design.pairs=3']}, {experiment: prefetch}]"
    )
    name, night, found = night_of(
        ["+experiment=nightly", "nightly.budget_s=60", entries, "schedule.spacing_s=1"]
    )
    assert (name, night.budget_s) == ("nightly", 60)
    assert [c.overrides for c in found] == [
        ("+experiment=aa", "design.pairs=3", "schedule.spacing_s=1"),
        ("+experiment=prefetch", "schedule.spacing_s=1"),
    ]
    assert [c.varied for c in found] == [
        ("experiment=aa", "design.pairs=3"),
        ("experiment=prefetch",),
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "nightly.entries=[{experiment: matched_par}]",
            ["entries[0].experiment", "'matched_pair'"],
        ),
        ("nightly.entries=[{experiment: nightly}]", ["entries[0].experiment: no such"]),
        ("nightly.entries=[{experimnt: aa}]", ["entries[0].experimnt", "'experiment'"]),
        ("nightly.entries=[]", ["nightly.entries: empty"]),
        ("nightly.budget_s=null", ["nightly.budget_s: null"]),
        ("nightly.budget_s=0", ["nightly.budget_s: 0"]),
        ("nightly.budget=3", ["nightly.budget:", "'nightly.budget_s'"]),
        (
            "nightly.entries=[{experiment: aa, overrides: ['cell.n_ctx=512,1024']}]",
            ["entries[0].overrides", "an entry for each"],
        ),
        (
            "nightly.entries=[{experiment: aa, overrides: ['runs_dir=x']}]",
            ["entries[0].overrides", "cannot be changed"],
        ),
        ("cell.n_ctx=512,1024", ["'cell.n_ctx=512,1024'", "nightly.entries"]),
    ],
)
def test_a_night_that_cannot_be_is_one_line(line: str, words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        night_of(["+experiment=nightly", line])
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("expected_s", "left_s", "out"),
    [(10.0, 10.0, False), (10.1, 10.0, True), (None, 0.5, False), (0.0, 0.0, True)],
)
def test_what_does_not_fit_is_left_out(expected_s: float | None, left_s: float, out: bool) -> None:
    part = Part("aa", ("+experiment=aa",), (), expected_s=expected_s)
    assert left_out(part, left_s) is out


# --- on disk -------------------------------------------------------------------------------------


def test_a_sweep_is_read_as_it_was_written_and_named_where_damaged(tmp_path: Path) -> None:
    state = SweepState("id", "n", ("-m",), (Part("aa", ("a=1",), ("a=1",), took_s=2.5),), 60.0)
    write_state(tmp_path, state)
    assert read_state(tmp_path) == state
    (tmp_path / "campaigns.json").write_text("{")
    with pytest.raises(DeviceError, match=r"campaigns\.json"):
        read_state(tmp_path)


def test_one_process_at_a_time_runs_a_sweep(tmp_path: Path) -> None:
    with held(tmp_path), pytest.raises(UsageError, match="another process"), held(tmp_path):
        pass
    with held(tmp_path):
        pass


# --- running -------------------------------------------------------------------------------------


class Bench:
    """Campaigns that do as they are told, at the place where the course would be."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self.asked: list[tuple[str, ...]] = []
        self.waited: list[bool] = []
        self.then: list[Callable[[], int]] = []

    def __call__(self, overrides: Sequence[str], member: Member | None = None) -> int:
        assert member is not None
        self.asked.append(tuple(overrides))
        self.waited.append(member.cell_ended is not None)
        resumed = [o.removeprefix("resume=") for o in overrides if o.startswith("resume=")]
        directory = self.runs / (resumed[0] if resumed else f"campaign-{len(self.asked)}")
        if not resumed:
            directory.mkdir(parents=True)
            (directory / CONFIG).write_text("{}")
            (directory / PLAN).write_text("{}")
            write_json(directory / "sweep.json", member.sweep)
            member.began(directory)
        member.cell_ended = 1.0
        code = self.then.pop(0)() if self.then else 0
        write_json(directory / VERDICT, CampaignVerdict(directory.name, Drift("stable", 0.1), ()))
        return code

    def run(self, *lines: str, multirun: bool = True) -> int:
        return runner.run([*lines, f"runs_dir={self.runs}"], multirun=multirun)

    @property
    def directory(self) -> Path:
        (found,) = self.runs.glob("*/campaigns.json")
        return found.parent

    @property
    def state(self) -> SweepState:
        return read_state(self.directory)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench(tmp_path / "runs")
    monkeypatch.setattr(runner, "run_campaign", bench)
    return bench


LANES = "cell.engine.io_threads=1,2,4"


def raising(error: BaseException) -> Callable[[], int]:
    def do() -> int:
        raise error

    return do


def test_each_combination_is_a_campaign_that_knows_its_sweep(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.run(SIZES, LANES) == 0
    assert [a[1] for a in bench.asked] == [f"cell.engine.io_threads={n}" for n in (1, 2, 4)]
    assert bench.waited == [False, True, True], "the first cell of the next keeps its pause"
    state = bench.state
    assert {p.status for p in state.parts} == {"ran"}
    assert [p.drift for p in state.parts] == ["stable"] * 3
    said = json.loads((bench.runs / "campaign-2" / "sweep.json").read_text())
    assert said == {
        "id": state.id,
        "name": "cache_sizes",
        "index": 1,
        "count": 3,
        "alike": 3,
        "overrides": ["cell.engine.io_threads=2"],
    }
    out = capsys.readouterr().out
    rows = [line for line in out.splitlines() if "campaign-" in line]
    assert len(rows) == 3
    assert "3 of 3 campaigns ran" in out


def test_one_that_fails_does_not_keep_the_others_from_running(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.then = [raising(DeviceError("gone")), lambda: 1, raising(ValueError("ours"))]
    assert bench.run(SIZES, "cell.engine.io_threads=1,2,4,8") == 1
    parts = bench.state.parts
    assert [(p.status, p.exit_code) for p in parts] == [
        ("stopped", 1),
        ("ran", 1),
        ("stopped", 1),
        ("ran", 0),
    ]
    captured = capsys.readouterr()
    assert "harness: error: gone" in captured.err
    assert "ValueError: ours" in captured.err
    assert "2 of 4 campaigns ran, 1 with cells that failed, 2 stopped" in captured.out


def test_a_device_that_is_taken_ends_the_sweep_not_each_of_its_campaigns(bench: Bench) -> None:
    busy = DeviceBusy("box: another campaign measures there (ann@box)")
    bench.then = [lambda: 0, raising(busy)]
    with pytest.raises(DeviceBusy, match=r"campaign 2 of 3 .*ann@box.*resume=") as caught:
        bench.run(SIZES, LANES)
    assert "\n" not in str(caught.value)
    assert [p.status for p in bench.state.parts] == ["ran", "stopped", "planned"]
    bench.then = []
    assert bench.run(f"resume={bench.directory.name}", multirun=False) == 0
    assert {p.status for p in bench.state.parts} == {"ran"}


def test_nothing_started_is_exit_code_2(bench: Bench) -> None:
    bench.then = [raising(UsageError("does not fit"))] * 3
    assert bench.run(SIZES, LANES) == 2
    assert {p.why for p in bench.state.parts} == {"does not fit"}


@pytest.mark.parametrize("stop", [Interrupted("interrupted (SIGINT)"), KeyboardInterrupt()])
def test_an_interrupted_sweep_keeps_what_ran_resumes_what_began_and_runs_the_rest(
    bench: Bench, stop: BaseException
) -> None:
    bench.then = [lambda: 0, raising(stop)]
    with pytest.raises(Interrupted) as caught:
        bench.run(SIZES, LANES)
    line = str(caught.value)
    assert "\n" not in line
    assert "campaign 2 of 3 (cell.engine.io_threads=2)" in line
    assert "done: 1 (cell.engine.io_threads=1)" in line
    assert f"resume={bench.directory.name} runs_dir={bench.runs}" in line
    assert [p.status for p in bench.state.parts] == ["ran", "interrupted", "planned"]

    assert bench.run(f"resume={bench.directory.name}", multirun=False) == 0
    assert bench.asked[2] == ("resume=campaign-2", f"runs_dir={bench.runs}")
    assert bench.asked[3][1] == "cell.engine.io_threads=4"
    assert bench.waited[2:] == [True, True], "another process cannot know when the last cell ended"
    assert {p.status for p in bench.state.parts} == {"ran"}
    assert bench.run(f"resume={bench.directory}", multirun=False) == 0
    assert len(bench.asked) == 4, "nothing was left to run"


def test_a_sweep_that_was_killed_is_taken_up_where_it_was(bench: Bench) -> None:
    """SIGKILL leaves `running`; one whose directory cannot be resumed begins anew."""
    bench.run(SIZES, LANES)
    state = bench.state
    first = replace(state.parts[0], status="running")
    second = replace(state.parts[1], status="running", campaign="campaign-2")
    (bench.runs / "campaign-2" / PLAN).unlink()
    write_state(bench.directory, replace(state, parts=(first, second, state.parts[2])))
    assert bench.run(f"resume={bench.directory.name}", multirun=False) == 0
    assert bench.asked[3][0] == "resume=campaign-1"
    assert bench.asked[4][:2] == (SIZES, "cell.engine.io_threads=2")
    assert [p.campaign for p in bench.state.parts] == ["campaign-1", "campaign-5", "campaign-3"]


def test_a_sweep_that_was_moved_goes_on_where_it_is(bench: Bench, tmp_path: Path) -> None:
    bench.then = [raising(KeyboardInterrupt())]
    with pytest.raises(Interrupted):
        bench.run(SIZES, LANES)
    moved = tmp_path / "moved"
    bench.runs.rename(moved)
    bench.runs = moved
    assert bench.run(f"resume={bench.directory}", multirun=False) == 0
    assert bench.asked[2][-1] == f"runs_dir={moved}"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([SIZES, "cell.engine.io_threads=1,99"], ["2 of 2 (cell.engine.io_threads=99)", "99 is"]),
        ([SIZES, "cells.cache_half=baseline,spec3"], ["2 of 2", "cells.cache_half", "'spec2'"]),
        (
            ["+experiment=eviction", "memory=glob(*)", "cell.engine.io_threads=1,2"],
            ["memory=half", "excludes design=levels", "1 more of 4", "exclude="],
        ),
        ([SIZES, "cel.n_ctx=1,2"], ["cel.n_ctx: unknown key", "'cell.n_ctx'"]),
        (["+experiment=cache_sizes,nightly"], ["experiment=nightly", "a sweep itself"]),
        (["+experiment=glob(cache*)", "schedule.spacing_s=-1"], ["spacing_s"]),
        ([SIZES, "tracking.uri='http://me:pw@box:1'"], ["tracking.uri", "MLFLOW_TRACKING_PASSW"]),
    ],
)
def test_the_last_combination_is_checked_before_the_first_starts(
    bench: Bench, lines: list[str], words: list[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        bench.run(*lines)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not bench.asked
    assert not bench.runs.exists()


@pytest.mark.parametrize("extra", ["schedule.spacing_s=1", SIZES])
def test_a_sweep_is_taken_up_as_it_was_stored(bench: Bench, extra: str) -> None:
    bench.run(SIZES, LANES)
    with pytest.raises(UsageError, match="as it was stored"):
        bench.run(f"resume={bench.directory.name}", extra, multirun=False)
    with pytest.raises(UsageError, match="-m: "):
        bench.run(f"resume={bench.directory.name}")


def test_plan_only_shows_every_plan_and_makes_nothing(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.run(SIZES, LANES, "plan_only=true") == 0
    out = capsys.readouterr().out
    assert out.count("0 baseline") == 3
    assert "3 campaigns; time expected: " in out
    assert not bench.asked
    assert not bench.runs.exists()


def test_campaigns_that_come_to_the_same_are_said_to_be(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.run(SIZES, "memory=half,uncapped", "memory.limit_share=0.3,0.4") == 0
    out = capsys.readouterr().out
    assert "warning: campaigns 1 and 3 are the same (memory=uncapped memory.limit_share=0.3)" in out
    assert "warning: campaigns 2 and 4 are the same" in out
    assert out.count("are the same") == 2


NIGHT = (
    "+experiment=nightly",
    "nightly.entries=[{experiment: aa}, {experiment: cache_sizes}, {experiment: drop_sweep}]",
)


def test_a_night_leaves_out_what_does_not_fit_and_runs_a_shorter_one_after_it(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    """The waits alone: 23 of aa are 690 s, 3 and the one before are 120 s, 5 and it 180 s."""
    assert bench.run(*NIGHT, "nightly.budget_s=170", multirun=False) == 0
    assert [p.status for p in bench.state.parts] == ["left_out", "ran", "left_out"]
    assert bench.state.name == "nightly"
    assert bench.asked[0][0] == "+experiment=cache_sizes"
    out = capsys.readouterr().out
    assert "left out, expected 11 min 30 s + 24 cells unknown, 2 min 50 s of the budget left" in out
    assert "1 of 3 campaigns ran, 2 left out" in out


def test_a_budget_too_small_for_anything_starts_nothing(bench: Bench) -> None:
    assert bench.run(*NIGHT, "nightly.budget_s=1", multirun=False) == 2
    assert not bench.asked


def test_what_began_is_not_cut_when_it_is_taken_up_after_its_time(bench: Bench) -> None:
    bench.then = [raising(KeyboardInterrupt())]
    with pytest.raises(Interrupted):
        bench.run(*NIGHT, "nightly.budget_s=2000", multirun=False)
    state = bench.state
    first = replace(state.parts[0], took_s=5000.0)
    write_state(bench.directory, state.with_part(0, first))
    assert bench.run(f"resume={bench.directory.name}", multirun=False) == 0
    assert [p.status for p in bench.state.parts] == ["ran", "left_out", "left_out"]


# --- in words ------------------------------------------------------------------------------------


def test_markdown_has_a_row_for_each_and_no_cell_breaks_it() -> None:
    parts = (
        Part("aa", (), ('cell.prompt="a|b\n<x>"',), "ran", 0, "c1", 3.0, 0, 4.0, "stable", "It is"),
        Part("bb", (), ("b=1",), "left_out", expected_s=9.0, unknown_cells=2, why="no time"),
    )
    state = SweepState("id", "nightly", (), parts, 60.0)
    lines = markdown(state).splitlines()
    rows = [line for line in lines if line.startswith("| ") and "---" not in line][1:]
    assert len(rows) == 2
    assert [row.replace("\\|", "").count("|") for row in rows] == [9, 9]
    assert "4 s of 1 min" in markdown(state)
    assert "\\<x\\>" in rows[0]
    assert "left out: no time" in rows[1]
    assert standing(state) == "1 of 2 campaigns ran, 1 left out"
    assert time_in_words(parts) == (
        "time expected: 12 s of waits and cells that ran before; 2 cells unknown"
    )


def test_a_campaign_knows_how_many_of_its_sweep_have_its_name() -> None:
    """The store has a run of the sweep for each name, which is to end with the last of these."""
    parts = tuple(Part(name, (), ()) for name in ("aa", "io", "aa", "prefetch", "aa"))
    state = SweepState("id", "nightly", (), (*parts[:4], replace(parts[4], status="left_out")))
    assert [part_of(state, i).alike for i in range(4)] == [2, 1, 2, 1]
    assert {part_of(state, i).count for i in range(4)} == {5}
