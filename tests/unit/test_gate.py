"""`gate` on stored campaigns, in all its exit codes; every campaign here is read from disk."""

from __future__ import annotations

import dataclasses
import json
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from gate_parts import night, with_identity, with_metrics
from imported_parts import imported_pairs

from harness.cli import main
from harness.gate.ledger import GATE, read_ledger
from harness.planned import MemoryLevel
from harness.records import CellRecord, TargetId

PASS, REGRESSION, USAGE, UNREADABLE = 0, 1, 2, 3


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Campaigns that no test changes but for gate.json, which every test starts without."""
    place = tmp_path_factory.mktemp("stored")
    return {
        "baseline": night(place, 1),
        "same": night(place, 2, build="b1"),
        "slower": night(place, 3, build="b1", faster_pct=-10),
        "faster": night(place, 4, build="b1", faster_pct=10),
    }


@pytest.fixture
def runs(stored: dict[str, Path]) -> Path:
    place = stored["baseline"].parent
    for path in place.glob(f"*/{GATE}"):
        path.unlink()
    return place


@pytest.fixture
def gate(runs: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the verb with --json: the answer, once the exit code is as expected."""

    def ask(*words: str | Path, code: int, runs_dir: Path = runs) -> Any:
        capsys.readouterr()
        argv = ["gate", *map(str, words), "--runs-dir", str(runs_dir)]
        assert main([*argv, "--json"] if code != USAGE else argv) == code, capsys.readouterr()
        shown = capsys.readouterr()
        if code == USAGE:
            (line,) = shown.err.splitlines()
            assert line.startswith("harness: error: ")
            return line
        found = json.loads(shown.out)
        assert found["exit_code"] == code
        return found

    return ask


def case(found: Any, arm: str = "B", metric: str = "tok_s") -> Any:
    (one,) = [c for c in found["cases"] if (c["arm"], c["metric"]) == (arm, metric)]
    return one


def reasons(found: Any) -> str:
    return " | ".join(r for c in found["cases"] for r in c["reasons"])


# --- two campaigns --------------------------------------------------------------------------------


def test_the_same_speed_passes(stored: dict[str, Path], gate: Any) -> None:
    found = gate("--baseline", stored["baseline"], "--candidate", stored["same"].name, code=PASS)
    assert {c["outcome"] for c in found["cases"]} == {"pass"}
    low, high = case(found)["interval_pct"]
    assert low < case(found)["change_pct"] < high
    assert found["builds"] == [["b0"], ["b1"]]
    assert "not known yet" in reasons(found), "one earlier campaign shows no spread of days"


def test_a_slower_engine_is_a_regression(stored: dict[str, Path], gate: Any) -> None:
    found = gate("--baseline", stored["baseline"], "--candidate", stored["slower"], code=REGRESSION)
    assert -14 < case(found)["change_pct"] < -7
    assert case(found)["interval_pct"][1] < 0
    assert case(found, metric="output")["outcome"] == "pass"
    assert "b1" in json.dumps(found["builds"])


def test_a_faster_engine_passes(stored: dict[str, Path], gate: Any) -> None:
    found = gate("--baseline", stored["baseline"], "--candidate", stored["faster"], code=PASS)
    assert case(found)["interval_pct"][0] > 0


def test_the_margin_is_what_is_allowed(stored: dict[str, Path], gate: Any) -> None:
    both = ("--baseline", stored["baseline"], "--candidate", stored["slower"])
    assert "within the margin" in reasons(gate(*both, "--margin", "15", code=PASS))


def test_work_counters_need_no_clean_device(runs: Path, gate: Any, tmp_path: Path) -> None:
    then = night(tmp_path, 1, scenario="ramp17")
    now = night(tmp_path, 2, scenario="ramp17")
    words = ("--baseline", then, "--candidate", now)
    assert "drift" in reasons(gate(*words, code=UNREADABLE))
    found = gate(*words, "--metric", "hit_rate", "--metric", "bytes_per_token", code=PASS)
    assert case(found, metric="hit_rate")["change_pct"] == 0
    worse = night(tmp_path, 3, scenario="ramp17", change=with_metrics(bytes_per_token=4e8))
    found = gate(*words[:3], worse, "--metric", "bytes_per_token", code=REGRESSION)
    assert case(found, metric="bytes_per_token")["change_pct"] > 3
    fewer = night(tmp_path, 4, scenario="ramp17", change=with_metrics(bytes_per_token=1e8))
    gate(*words[:3], fewer, "--metric", "bytes_per_token", code=PASS)


def test_memory_has_a_spread_and_a_limit_has_none(gate: Any, tmp_path: Path) -> None:
    def peak(mib: float) -> Any:
        def change(r: CellRecord) -> CellRecord:
            metrics = dataclasses.replace(
                r.metrics,
                anon_peak_bytes=int((mib + 0.1 * (r.index % 3)) * 2**20),
                anon_within_limit=mib < 110,
            )
            return dataclasses.replace(r, metrics=metrics)

        return change

    then, same, more = (
        night(tmp_path, day, change=peak(mib)) for day, mib in enumerate((100, 101, 120))
    )
    asked = ("--metric", "anon_peak_bytes", "--metric", "anon_within_limit")
    gate("--baseline", then, "--candidate", same, *asked, code=PASS)
    found = gate("--baseline", then, "--candidate", more, *asked, code=REGRESSION)
    assert case(found, metric="anon_peak_bytes")["change_pct"] == pytest.approx(20, abs=0.5)
    assert case(found, metric="anon_within_limit")["outcome"] == "regression"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (with_identity(model_sha256="1" * 64), "model_sha256 is"),
        (with_identity(threads=2), "threads is 4 in then, 2 in now"),
        (with_identity(capacity_bytes=5), "capacity_bytes"),
        (
            lambda r: dataclasses.replace(r, target=TargetId("simulated", "another phone")),
            "another device: simulated:phone then, simulated:another phone now",
        ),
        (lambda r: dataclasses.replace(r, data_limit_bytes=2**27), "memory limits in force"),
    ],
)
def test_what_is_not_the_same_is_not_compared(
    change: Any, words: str, stored: dict[str, Path], gate: Any, tmp_path: Path
) -> None:
    other = night(tmp_path, 2, change=change, faster_pct=-30)
    found = gate("--baseline", stored["baseline"], "--candidate", other, code=UNREADABLE)
    assert words in reasons(found)


def test_another_text_or_size_of_the_cache_is_another_configuration(
    stored: dict[str, Path], gate: Any, tmp_path: Path
) -> None:
    longer = night(tmp_path, 2, tokens=128)
    found = gate("--baseline", stored["baseline"], "--candidate", longer, code=UNREADABLE)
    assert "n_predict: 96 then, 128 now" in reasons(found)
    assert "96 tokens then, 128 now" in reasons(found)


def test_an_arm_that_is_gone_leaves_no_verdict(
    stored: dict[str, Path], gate: Any, tmp_path: Path
) -> None:
    other = night(tmp_path, 2, candidates=("D",))
    found = gate("--baseline", stored["baseline"], "--candidate", other, code=UNREADABLE)
    assert "it is not in the candidate campaign" in reasons(found)
    assert "D is not in the baseline campaign" in found["notes"][0]
    words = ("--baseline", stored["baseline"], "--candidate", other)
    gate(*words, "--arm", "B", code=PASS)
    assert "--arm E: not in" in gate(*words, "--arm", "E", code=USAGE)


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"scenario": "ramp17"}, "the drift is"),
        pytest.param({"scenario": "day40"}, "the drift is", marks=pytest.mark.slow),
        pytest.param({"scenario": "storm"}, "the drift is", marks=pytest.mark.slow),
    ],
)
def test_a_day_that_moved_gives_no_verdict_whatever_it_would_be(
    own: dict[str, Any], words: str, stored: dict[str, Path], gate: Any, tmp_path: Path
) -> None:
    for faster_pct in (0.0, -30.0):
        bad = night(tmp_path, 2, faster_pct=faster_pct, **own)
        found = gate("--baseline", stored["baseline"], "--candidate", bad, code=UNREADABLE)
        assert words in reasons(found)
    found = gate("--baseline", bad, "--candidate", stored["same"], code=UNREADABLE)
    assert words in reasons(found)


def test_contaminated_cells_do_not_count(
    stored: dict[str, Path], gate: Any, tmp_path: Path
) -> None:
    starved = night(tmp_path, 2, faster_pct=-30, change=with_metrics(cpu_throttled_share=0.5))
    found = gate("--baseline", stored["baseline"], "--candidate", starved, code=UNREADABLE)
    assert "is contaminated" in reasons(found)


def test_another_device_state_does_not_count(
    stored: dict[str, Path], gate: Any, tmp_path: Path
) -> None:
    def hotter(r: CellRecord) -> CellRecord:
        assert r.entry is not None
        (zone,) = r.entry.thermal
        warm = dataclasses.replace(zone, temp_c=(zone.temp_c or 0) + 20)
        return dataclasses.replace(r, entry=dataclasses.replace(r.entry, thermal=(warm,)))

    def capped(r: CellRecord) -> CellRecord:
        states = []
        for state in (r.entry, r.exit):
            assert state is not None
            (policy,) = state.cpufreq
            cap = dataclasses.replace(policy, scaling_max_khz=1_747_200)
            states.append(dataclasses.replace(state, cpufreq=(cap,)))
        return dataclasses.replace(r, entry=states[0], exit=states[1])

    for change, words in ((hotter, "°C allowed"), (capped, "the cap of policy0 at entry")):
        other = night(tmp_path, 2, faster_pct=-30, change=change)
        found = gate("--baseline", stored["baseline"], "--candidate", other, code=UNREADABLE)
        assert words in reasons(found)


def test_a_probe_that_moved_explains_as_much(
    stored: dict[str, Path], gate: Any, tmp_path: Path
) -> None:
    """The device itself is 10 % slower at the same caps and temperature: no engine did that."""

    def slow_device(r: CellRecord) -> CellRecord:
        probes = {}
        for when in ("before", "after"):
            probe = getattr(r.probe, when)
            probes[when] = dataclasses.replace(probe, compute_ms=probe.compute_ms / 0.9)
        return dataclasses.replace(r, probe=dataclasses.replace(r.probe, **probes))

    slow = night(tmp_path, 2, faster_pct=-10, change=slow_device)
    found = gate("--baseline", stored["baseline"], "--candidate", slow, code=UNREADABLE)
    assert "the compute probe says that the device became" in reasons(found)


def test_too_few_cells_to_know_their_spread(gate: Any, tmp_path: Path) -> None:
    then, now = (night(tmp_path, day, pairs=1, faster_pct=pct) for day, pct in ((1, 0), (2, -30)))
    found = gate("--baseline", then, "--candidate", now, code=UNREADABLE)
    assert "1 clean baseline cell only" in reasons(found)
    found = gate(
        "--baseline", then, "--candidate", now, "--metric", "rss_peak_bytes", code=UNREADABLE
    )
    assert "was measured in no cell" in found["headline"]


# --- what went wrong ------------------------------------------------------------------------------


def test_another_output_is_a_regression_of_its_own(
    stored: dict[str, Path], gate: Any, tmp_path: Path
) -> None:
    other = night(tmp_path, 2, change=lambda r: dataclasses.replace(r, output_sha256="b" * 64))
    found = gate("--baseline", stored["baseline"], "--candidate", other, code=REGRESSION)
    assert case(found)["outcome"] == "pass"
    assert case(found, metric="output")["outcome"] == "regression"
    assert "generates another output" in found["headline"]

    def now_and_then(r: CellRecord) -> CellRecord:
        return dataclasses.replace(r, output_sha256="ab"[r.index % 2] * 64)

    unsteady = night(tmp_path, 3, change=now_and_then)
    gate("--baseline", stored["baseline"], "--candidate", unsteady, code=REGRESSION)
    found = gate("--baseline", unsteady, "--candidate", stored["faster"], code=UNREADABLE)
    assert "already" in reasons(found)


def test_output_that_depends_on_timing_is_no_case(gate: Any, tmp_path: Path) -> None:
    ahead = ("simulated", "--prefetch", "2", "--drop-cold-experts", "0.5")

    def timed(r: CellRecord) -> CellRecord:
        return dataclasses.replace(r, argv=ahead, output_sha256=f"{r.index:064d}")

    then, now = (night(tmp_path, day, change=timed) for day in (1, 2))
    found = gate("--baseline", then, "--candidate", now, code=PASS)
    assert {c["metric"] for c in found["cases"]} == {"tok_s"}


def test_cells_that_ended_badly_are_an_error_and_no_regression(
    stored: dict[str, Path], gate: Any, tmp_path: Path
) -> None:
    def crashed(r: CellRecord) -> CellRecord:
        if r.arm != "C":
            return r
        return dataclasses.replace(r, status="failed", exit_code=5, status_detail="I/O error")

    bad = night(tmp_path, 2, change=crashed)
    junit = tmp_path / "junit.xml"
    words = ("--baseline", stored["baseline"], "--candidate", bad, "--junit", junit)
    found = gate(*words, code=UNREADABLE)
    assert case(found, "C")["failed"]
    assert "I/O error" in reasons(found)
    suite = check_junit(junit)
    assert (suite.get("errors"), suite.get("failures")) == ("1", "0")


def test_a_level_that_is_to_be_refused_is_nothing_to_compare_until_it_is_not(
    gate: Any, tmp_path: Path
) -> None:
    def refused(r: CellRecord) -> CellRecord:
        if r.arm != "C":
            return r
        level = MemoryLevel("C", 24)
        return dataclasses.replace(r, status="refused", exit_code=4, level=level)

    then, now = (night(tmp_path, day, change=refused) for day in (1, 2))
    found = gate("--baseline", then, "--candidate", now, code=PASS)
    assert {c["arm"] for c in found["cases"]} == {"B"}
    # a level that the engine no longer takes, or takes at last, is news that no number tells
    ran, again = night(tmp_path, 3), night(tmp_path, 4, change=refused)
    for words in (
        ("--baseline", ran, "--candidate", again),
        ("--baseline", then, "--candidate", ran),
    ):
        assert case(gate(*words, code=UNREADABLE), "C")["outcome"] == "none"


def test_a_damaged_record_is_left_out_and_a_damaged_journal_gives_no_verdict(
    stored: dict[str, Path], gate: Any, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(stored["same"], copy)
    for i in (0, 1):
        path = sorted(copy.glob("cells/*/record.json"))[i]
        path.write_text(path.read_text().replace('"ok"', '"killed"'))
    found = gate("--baseline", copy, "--candidate", stored["faster"], code=PASS)
    assert "changed since it was written" in reasons(found)
    for path in copy.glob("cells/*/record.json"):
        path.write_text("{}")
    found = gate("--baseline", stored["baseline"], "--candidate", copy, code=UNREADABLE)
    assert "no cell can be read" in reasons(found)
    journal = copy / "journal.jsonl"
    journal.write_text("nonsense\n" + journal.read_text())
    for words in (
        ("--baseline", stored["baseline"], "--candidate", copy),
        ("--baseline", copy, "--candidate", stored["same"]),
    ):
        found = gate(*words, code=UNREADABLE)
        assert "line 1 is damaged" in reasons(found)


def test_what_fails_on_the_way_accuses_nobody(
    stored: dict[str, Path], gate: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(stored["same"], copy)
    (copy / "journal.jsonl").write_text("nonsense\n")
    junit = tmp_path / "junit.xml"
    found = gate("--baseline", copy, "--junit", junit, code=UNREADABLE)  # would run a campaign
    assert "line 1 is damaged" in reasons(found)
    assert check_junit(junit).get("skipped") == "1"
    assert "there is nothing to run again" in gate("--baseline", stored["same"], code=USAGE)

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("harness.gate.answer.read_night", broken)
    assert main(["gate", "--candidate", str(stored["same"])]) == UNREADABLE


def test_a_campaign_that_did_not_end_gives_no_verdict(
    stored: dict[str, Path], gate: Any, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(stored["slower"], copy)
    journal = copy / "journal.jsonl"
    journal.write_text(journal.read_text().replace("campaign_imported", "campaign_created"))
    found = gate("--baseline", stored["baseline"], "--candidate", copy, code=UNREADABLE)
    assert "did not come to its end" in reasons(found)
    assert "did not come to its end" in reasons(gate("--candidate", copy, code=UNREADABLE))


# --- last-green -----------------------------------------------------------------------------------


def test_the_first_night_and_those_after_it(stored: dict[str, Path], gate: Any) -> None:
    last = ("--baseline", "last-green", "--candidate")
    found = gate(*last, stored["baseline"], code=UNREADABLE)
    assert "recorded as the first" in found["headline"]
    found = gate(*last, stored["same"], code=PASS)
    assert found["baseline"] == stored["baseline"].name
    found = gate(*last, stored["slower"], code=REGRESSION)
    assert found["baseline"] == stored["same"].name
    # what regressed is not what the next one is compared with
    found = gate(*last, stored["faster"], code=PASS)
    assert found["baseline"] == stored["same"].name
    # nothing is compared with what came later
    found = gate(*last, stored["same"], code=PASS)
    assert found["baseline"] == stored["baseline"].name


def test_a_slower_engine_can_be_accepted_by_hand(stored: dict[str, Path], gate: Any) -> None:
    gate("--baseline", stored["baseline"], "--candidate", stored["slower"], code=REGRESSION)
    found = gate(
        "--baseline", stored["baseline"], "--candidate", stored["slower"], "--accept", code=PASS
    )
    assert found["accepted"] and found["verdict"] == "regression"
    found = gate("--baseline", "last-green", "--candidate", stored["faster"], code=PASS)
    assert found["baseline"] == stored["slower"].name


def test_last_green_is_of_the_same_experiment_configuration_and_device(
    gate: Any, tmp_path: Path
) -> None:
    green = night(tmp_path, 1)
    gate("--candidate", green, "--accept", code=PASS, runs_dir=tmp_path)
    others: list[dict[str, Any]] = [
        {"name": "another"},
        {"tokens": 128},
        {"change": with_identity(model_sha256="1" * 64)},
        {
            "change": lambda r: dataclasses.replace(
                r, target=dataclasses.replace(r.target, name="x")
            )
        },
    ]
    for day, own in enumerate(others, 2):
        other = night(tmp_path, day, **own)
        words = ("--baseline", "last-green", "--candidate", other)
        found = gate(*words, code=UNREADABLE, runs_dir=tmp_path)
        assert found["kind"] == "first", own
    same = night(tmp_path, 9)
    found = gate("--baseline", "last-green", "--candidate", same, code=PASS, runs_dir=tmp_path)
    assert found["baseline"] == green.name


def test_a_bad_first_night_is_not_recorded_as_green(gate: Any, tmp_path: Path) -> None:
    bad = night(tmp_path, 1, scenario="ramp17", seed=2)
    words = ("--baseline", "last-green", "--candidate")
    assert (
        "cannot be the first" in gate(*words, bad, code=UNREADABLE, runs_dir=tmp_path)["headline"]
    )
    second = night(tmp_path, 2)
    found = gate(*words, second, code=UNREADABLE, runs_dir=tmp_path)
    assert "recorded as the first" in found["headline"]


def test_the_history_survives_an_artifact_store_and_damage(gate: Any, tmp_path: Path) -> None:
    """Directories, restored elsewhere, are all of it; a damaged gate.json costs a note."""
    place = tmp_path / "there"
    words = ("--baseline", "last-green", "--candidate")
    first, second = (night(place, day, seed=seed) for day, seed in ((1, 11), (2, 13)))
    gate(*words, first, code=UNREADABLE, runs_dir=place)
    gate(*words, second, code=PASS, runs_dir=place)
    here = tmp_path / "here"
    for name in (first.name, second.name):
        shutil.copytree(place / name, here / name)
    third = night(here, 3, seed=5)
    assert gate(*words, third, code=PASS, runs_dir=here)["baseline"] == second.name
    (here / second.name / GATE).write_text("{")
    found = gate(*words, third, code=PASS, runs_dir=here)
    assert found["baseline"] == first.name
    assert any("is damaged" in n for n in found["notes"])


@pytest.mark.slow
def test_earlier_campaigns_show_how_much_days_differ(gate: Any, tmp_path: Path) -> None:
    """Days that differ by 4 % hide 6 % that a calm device shows."""
    words = ("--baseline", "last-green", "--candidate")
    for place, spread in (("calm", 0.0), ("restless", 4.0)):
        runs_dir = tmp_path / place
        for day in range(1, 6):
            made = night(runs_dir, day, faster_pct=spread * (day % 2))
            gate("--candidate", made, "--accept", code=PASS, runs_dir=runs_dir)
        slower = night(runs_dir, 8, faster_pct=spread - 6.0, build="b1")
        code = REGRESSION if place == "calm" else UNREADABLE
        found = gate(*words, slower, code=code, runs_dir=runs_dir)
        assert "5 earlier campaigns, which differ by" in reasons(found)


# --- a campaign's own verdict ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "code"),
    [
        ({"effect_pct": -10.0, "pairs": 12}, REGRESSION),
        pytest.param({"effect_pct": 10.0, "pairs": 12}, PASS, marks=pytest.mark.slow),
        pytest.param({"effect_pct": 0.0, "pairs": 12}, PASS, marks=pytest.mark.slow),
        ({"effect_pct": -10.0, "pairs": 3}, UNREADABLE),  # provisional
        ({"effect_pct": -30.0, "design": "four_cell"}, UNREADABLE),
    ],
)
def test_one_campaign_alone(own: dict[str, Any], code: int, gate: Any, tmp_path: Path) -> None:
    one = night(tmp_path, 1, **own)
    found = gate("--candidate", one, code=code)
    assert found["kind"] == "verdict" and case(found, "C")["arm"] == "C"


@pytest.mark.parametrize("effect_pct", [-10.0, 10.0])
def test_a_contaminated_night_is_neither_a_regression_nor_a_pass(
    effect_pct: float, gate: Any, tmp_path: Path
) -> None:
    """The verdict of pairs finds the effect all the same, by its last resort, with more error."""
    held = with_metrics(cpu_throttled_share=0.3)
    one = night(tmp_path, 1, effect_pct=effect_pct, pairs=12, change=held)
    found = gate("--candidate", one, code=UNREADABLE)
    said = "loss" if effect_pct < 0 else "win"
    assert f"{said}, from 0 clean pairs and 12 disturbed ones" in reasons(found)


def test_a_loss_within_the_margin_passes(gate: Any, tmp_path: Path) -> None:
    one = night(tmp_path, 1, effect_pct=-10.0, pairs=12)
    assert "within the margin" in reasons(gate("--candidate", one, "--margin", "15", code=PASS))


# --- what is written ------------------------------------------------------------------------------


def test_junit_and_markdown_say_the_same(
    stored: dict[str, Path], gate: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    junit, md = tmp_path / "junit.xml", tmp_path / "gate.md"
    words = ("--baseline", stored["baseline"], "--candidate", stored["slower"])
    found = gate(*words, "--junit", junit, "--md", md, code=REGRESSION)
    suite = check_junit(junit)
    assert [suite.get(k) for k in ("tests", "failures", "errors", "skipped")] == list("4200")
    failures = [c for c in suite.iter("testcase") if c.find("failure") is not None]
    assert {c.get("classname", "").rpartition(".")[2] for c in failures} == {"B", "C"}
    text = md.read_text()
    assert text.startswith("### ❌ Regression against ")
    assert "| B | tok\\_s | " in text
    for reason in case(found)["reasons"]:
        assert reason.split("_")[0].split("(")[0] in text
    assert main(["gate", *map(str, words), "--md", "-"]) == REGRESSION
    assert capsys.readouterr().out == text


def test_no_verdict_is_skipped_in_junit(stored: dict[str, Path], gate: Any, tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    words = ("--baseline", "last-green", "--candidate", stored["baseline"], "--junit", junit)
    gate(*words, code=UNREADABLE)
    suite = check_junit(junit)
    assert [suite.get(k) for k in ("tests", "failures", "errors", "skipped")] == list("2002")


def test_what_xml_and_markdown_cannot_hold_is_escaped(
    stored: dict[str, Path], gate: Any, tmp_path: Path
) -> None:
    nasty = "<b>&\x1b[31m|pipe`\x00\ud800"

    def crashed(r: CellRecord) -> CellRecord:
        return dataclasses.replace(r, status="failed", exit_code=1, status_detail=nasty)

    bad = night(tmp_path, 2, change=crashed)
    junit, md = tmp_path / "junit.xml", tmp_path / "gate.md"
    both = ("--baseline", stored["baseline"], "--candidate", bad)
    gate(*both, "--junit", junit, "--md", md, code=UNREADABLE)
    suite = check_junit(junit)
    assert "<b>&?[31m|pipe`??" in "".join(suite.itertext())
    assert "\\<b\\>" in md.read_text(errors="strict")
    assert "\x1b" not in md.read_text()


def check_junit(path: Path) -> ET.Element:
    """The one suite, which is as the common schema (of Jenkins and others) has it."""
    root = ET.fromstring(path.read_bytes())  # noqa: S314 - our own
    assert root.tag == "testsuites"
    (suite,) = root
    assert suite.tag == "testsuite" and suite.get("name")
    cases = suite.findall("testcase")
    assert [child.tag for child in suite] == ["properties", *["testcase"] * len(cases)]
    assert all(p.keys() == ["name", "value"] for p in suite[0])
    found = {"failure": 0, "error": 0, "skipped": 0}
    for one in cases:
        assert one.get("name") and one.get("classname") and float(one.get("time", "x")) >= 0
        assert len(one) <= 1
        for child in one:
            assert child.tag in {*found, "system-out"}
            if child.tag in found:
                found[child.tag] += 1
                assert child.get("message")
    counted = {"failure": "failures", "error": "errors", "skipped": "skipped"}
    assert all(suite.get(counted[tag]) == str(n) for tag, n in found.items())
    assert suite.get("tests") == str(len(cases))
    return suite


def test_a_report_for_people_and_the_record_beside_the_candidate(
    stored: dict[str, Path], runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["gate", "--baseline", str(stored["baseline"]), "--candidate", str(stored["same"])]
    assert main([*argv, "--runs-dir", str(runs)]) == PASS
    out = capsys.readouterr().out
    assert out.startswith("Pass: B, C are not worse by more than 3 % against")
    assert "interval %" in out and "b1" in out
    ledger = read_ledger(stored["same"])
    assert ledger is not None and ledger.gates["tok_s"].state == "pass"
    assert not (stored["baseline"] / GATE).exists()


# --- wrong usage ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ((), "needs --candidate RUN, --baseline RUN, or both"),
        (("--candidate", "nothing"), "--candidate nothing: no campaign there"),
        (("--baseline", "nothing", "--candidate", "SAME"), "--baseline nothing: no campaign"),
        (("--candidate", "SAME", "--baseline", "SAME"), "is the candidate itself"),
        (("--candidate", "SAME", "--metric", "toks"), "did you mean 'tok_s'"),
        (("--candidate", "SAME", "--metric", "steal_cpu_share"), "not what the engine did"),
        (("--candidate", "SAME", "--metric", "hit_rate"), "own verdict is about tok_s"),
        (("--candidate", "SAME", "--margin", "0"), "--margin 0"),
        (("--candidate", "SAME", "--junit", "/no/such/x.xml"), "there is no such directory"),
        (("--candidate", "SAME", "--", "cell.n_predict=64"), "only a campaign that is run"),
    ],
)
def test_wrong_usage_is_one_line(
    argv: tuple[str, ...], words: str, stored: dict[str, Path], gate: Any
) -> None:
    named = [str(stored["same"]) if word == "SAME" else word for word in argv]
    if "--" in named:  # --runs-dir, which comes last, is an option
        named = ["--runs-dir", str(stored["same"].parent), *named]
        assert main(["gate", *named]) == USAGE
        return
    assert words in gate(*named, code=USAGE)


def test_imports_are_compared_by_what_they_know(
    gate: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("then", "now"):
        (tmp_path / name).mkdir()
    then, now = (imported_pairs(tmp_path / name) for name in ("then", "now"))
    capsys.readouterr()
    found = gate("--baseline", then, "--candidate", now, code=UNREADABLE)
    assert "which device it ran on" in " ".join(found["notes"])
    assert "arms are known by their names" in " ".join(found["notes"])
    assert "neither campaign says which model and settings B ran with" in reasons(found)
    # tables have counters, too, which need no clean device; but of what?
    gate("--baseline", then, "--candidate", now, "--metric", "hit_rate", code=UNREADABLE)
    assert gate("--candidate", now, code=REGRESSION)["kind"] == "verdict"
