"""`import csv`: plain tables into campaign directories."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from shared_data import DATA

from harness.collect import read_series
from harness.errors import UsageError
from harness.importers import cli
from harness.importers.design import recognise
from harness.importers.plain_csv import read_csv_campaign
from harness.journal import load_records
from harness.jsonable import from_json
from harness.planned import Plan
from harness.verdicts import CampaignVerdict, CandidateVerdict, CellVerdict, Drift

SIMULATED = DATA / "simulated"


def campaign(path: Path, arms: list[str], extra: dict[str, list[str]] | None = None) -> Path:
    """A campaign of `arms` with the three columns that are needed, and `extra` ones."""
    path.mkdir(parents=True, exist_ok=True)
    columns = extra or {}
    with (path / "campaign.csv").open("w", newline="") as stream:
        out = csv.writer(stream, lineterminator="\n")
        out.writerow(["cell", "config", "file", *columns])
        for i, arm in enumerate(arms):
            out.writerow([i, arm, f"c{i}.csv", *(values[i] for values in columns.values())])
    for i in range(len(arms)):
        (path / f"c{i}.csv").write_text("token,wall_ms\n0,100\n1,150.5\n2,99.5\n")
    return path


def imported(path: Path, capsys: pytest.CaptureFixture[str], *more: str) -> Path:
    """The campaign directory that `import csv` makes of `path`."""
    runs = path.parent / "runs"
    assert cli.main(["csv", str(path), "--runs-dir", str(runs), "--json", *more]) == 0
    return Path(json.loads(capsys.readouterr().out)["campaign_dir"])


def refusal(path: Path, baseline: str | None = None, design: str | None = None) -> str:
    with pytest.raises(UsageError) as error:
        read_csv_campaign(path, name=None, baseline=baseline, design=design)
    return str(error.value)


def test_three_columns_are_enough_and_nothing_else_is_made_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = imported(campaign(tmp_path / "mine", ["B", "C", "C", "B"]), capsys)
    records = load_records(directory)
    assert [(r.cell, r.arm, r.role, r.index) for r in records] == [
        ("B_01", "B", "baseline", 0),
        ("C_01", "C", "candidate", 1),
        ("C_02", "C", "candidate", 2),
        ("B_02", "B", "baseline", 3),
    ]
    first = records[0]
    assert first.metrics.tok_s == pytest.approx(3 / 0.35)
    assert first.counters.tokens == 3
    assert first.counters.read_bytes is None and first.counters.dropped is None
    assert first.entry is None and first.probe.before is None and first.wait is None
    assert first.metrics.hit_rate is None and first.metrics.stall_ms_per_token is None
    series = read_series(directory / "cells" / "00-B_01")
    assert series is not None and series.wall_ms.tolist() == [100, 150.5, 99.5]
    assert series.io_ms is None and series.majflt is None
    plan = from_json(Plan, json.loads((directory / "plan.json").read_bytes()))
    assert (plan.design, plan.baseline, plan.candidates) == ("pairs", "B", ("C",))
    assert [c.block for c in plan.cells] == [0, 0, 1, 1] and plan.coins is None


def test_published_layout_of_four_cells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = campaign(
        tmp_path / "four",
        ["B", "retention", "spec-2", "B"],
        {
            "t_start_s": ["0.0", "82.5", "167.8", "263.7"],
            "cap_entry_khz": ["2265600", "2265600", "2188800", "1900800"],
            "cap_policy6_entry_khz": ["1651200"] * 4,
            "cap_exit_khz": ["2265600", "2188800", "1900800", ""],
            "cpu_entry_c": ["40.3", "44.6", "48.2", "47.1"],
            "probe_entry_ms": ["100.42", "103.34", "nan", "NA"],
            "waited_s": ["0", "30", "30", "30"],
        },
    )
    directory = imported(path, capsys)
    records = load_records(directory)
    assert [(r.cell, r.arm, r.role) for r in records] == [
        ("B", "B", "baseline"),
        ("retention", "retention", "candidate"),
        ("spec-2", "spec-2", "candidate"),
        ("sentinel", "B", "sentinel"),
    ]
    third, last = records[2], records[3]
    assert third.entry is not None and third.exit is not None and last.exit is None
    assert {c.policy: c.scaling_max_khz for c in third.entry.cpufreq} == {
        "policy0": 2188800,
        "policy6": 1651200,
    }
    assert third.exit.thermal == () and third.probe.before is None
    assert records[0].probe.before is not None
    assert records[0].probe.before.compute_ms == 100.42
    assert third.wait is not None and third.wait.seconds == 30
    plan = from_json(Plan, json.loads((directory / "plan.json").read_bytes()))
    assert plan.design == "four_cell" and plan.baseline == "B"
    assert plan.candidates == ("retention", "spec-2")
    assert (directory / "cells" / "02-spec-2" / "c2.csv").is_file()
    assert (directory / "source" / "campaign.csv").is_file()


def test_reading_that_adds_up_with_computing_is_waited_for(tmp_path: Path) -> None:
    path = campaign(tmp_path / "c", ["B", "C"])
    (path / "c0.csv").write_text("token,wall_ms,io_ms,compute_ms\n0,10,4,6\n1,10.5,4.501,6\n")
    (path / "c1.csv").write_text("token,wall_ms,io_ms,compute_ms\n0,10,14,6\n1,10,4,6\n")
    a, b = read_csv_campaign(path, name=None, baseline=None, design=None).cells
    assert [row["stall_ms"] for row in a.rows] == [4, 4.501]
    assert all("stall_ms" not in row for row in b.rows)


def test_every_known_column_of_a_token_is_taken(tmp_path: Path) -> None:
    path = campaign(tmp_path / "c", ["B"])
    (path / "c0.csv").write_text(
        "token,wall_ms,stall_ms,mgmt_ms,majflt,hits,requests,swap_mib,later\n"
        "0,10,1,0.5,3,6,8,1.5,x\n1,10,1,0.5,5,8,8,,y\n"
    )
    (cell,) = read_csv_campaign(path, name=None, baseline=None, design=None).cells
    assert cell.rows[0]["manage_ms"] == 0.5 and cell.rows[0]["swap_bytes"] == 1.5 * 2**20
    assert cell.rows[1]["swap_bytes"] is None
    assert cell.record.metrics.majflt_per_token == 4
    assert cell.record.metrics.hit_rate == 14 / 16 and cell.record.counters.hits == 14


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("campaign.csv", "cell,config,file", "cell,konfig,file"), "line 1: no column config"),
        (("campaign.csv", "0,B,c0.csv", "0,B,c9.csv"), "c9.csv: cannot be read: No such file"),
        (("campaign.csv", "1,C,", "0,C,"), "line 3, column cell: '0' is that of line 2 too"),
        (("campaign.csv", "c1.csv", "c0.csv"), "line 3, column file: 'c0.csv' is that of line 2"),
        (("campaign.csv", "1,C,", "1,,"), "line 3, column config: found ''; needs a name"),
        (("campaign.csv", "c0.csv", "../x.csv"), "column file: '../x.csv' is outside"),
        (("campaign.csv", "c0.csv", "truth.csv"), "ground truth is never read"),
        (("campaign.csv", "1,C,c1.csv", "1,C,c1.csv,7"), "line 3: 4 fields, the header has 3"),
        (("c1.csv", "150.5", "fast"), "c1.csv: line 3, column wall_ms: found 'fast'; needs a num"),
        (("c1.csv", "150.5", "-1"), "line 3, column wall_ms: -1 is negative"),
        (("c1.csv", "150.5", "0"), "line 3, column wall_ms: found '0'; needs a number above 0"),
        (("c1.csv", "150.5", ""), "line 3, column wall_ms: found ''; needs a number above 0"),
        (("c1.csv", "token,wall_ms", "token,time"), "c1.csv: line 1: no column wall_ms"),
        (("c1.csv", "token,wall_ms", "wall_ms,wall_ms"), "line 1: no column token"),
        (("c1.csv", "1,150.5", "2,150.5"), "line 3, column token: found '2'; needs 1, the one"),
        (("c1.csv", "1,150.5", "1;150.5"), "line 3: 1 field, the header has 2"),
    ],
)
def test_nonsense_is_one_line_with_its_place(
    tmp_path: Path, change: tuple[str, str, str], words: str
) -> None:
    path = campaign(tmp_path / "c", ["B", "C"])
    name, old, new = change
    text = (path / name).read_text()
    assert old in text
    (path / name).write_text(text.replace(old, new))
    said = refusal(path)
    assert words in said and "\n" not in said


def test_a_directory_that_holds_no_campaign(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["csv", str(tmp_path), "--runs-dir", str(tmp_path / "r")]) == 2
    assert "campaign.csv: there is no such file; `import csv` needs" in capsys.readouterr().err
    (tmp_path / "campaign.csv").write_text("cell,config,file\n")
    assert "no cell in it" in refusal(tmp_path)


def test_cells_are_put_in_the_order_of_their_times(tmp_path: Path) -> None:
    path = campaign(tmp_path / "c", ["C", "B"], {"t_start_s": ["50", "0"]})
    imported = read_csv_campaign(path, name=None, baseline=None, design=None)
    assert [c.record.arm for c in imported.cells] == ["B", "C"]
    assert "in the order of t_start_s" in imported.notes[0]


@pytest.mark.parametrize(
    ("order", "design", "blocks"),
    [
        ("B C", "pairs", [0, 0]),
        ("B C C B B C", "pairs", [0, 0, 1, 1, 2, 2]),
        ("C B C B B", "pairs", [0, 0, 1, 1, 2]),  # still running
        ("B C B", "four_cell", None),
        ("B x y B", "four_cell", None),
        ("B x y B z B", "four_cell", None),
        ("x B y y B x B x y", "pairs", [0, 0, 0, 1, 1, 1, 2, 2, 2]),
        ("B x y B B x", "pairs", [0, 0, 1, 1, 2, 2]),  # one candidate at a time
        ("B B B", "survey", None),
        ("B C C C", "survey", None),
        ("B x x y", "survey", None),
        ("x y z", "survey", None),  # each once, and none is known to be the baseline
    ],
)
def test_designs_are_recognised(order: str, design: str, blocks: list[int] | None) -> None:
    plan = recognise(order.split(), baseline=None, design=None, where="x").plan
    assert plan.design == design
    assert [c.block for c in plan.cells] == (blocks or [None] * len(plan.cells))
    assert plan.baseline == (None if design == "survey" else "B")
    assert len({c.name for c in plan.cells}) == len(plan.cells)


def test_a_baseline_that_nobody_named_is_said() -> None:
    guessed = recognise(["y", "x"], baseline=None, design=None, where="x")
    assert guessed.plan.baseline == "y" and "is taken for the baseline" in guessed.notes[0]
    assert recognise(["y", "x"], baseline="x", design=None, where="x").plan.baseline == "x"
    assert recognise(["y", "Baseline"], baseline=None, design=None, where="x").notes == ()


def test_of_pairs_the_baseline_must_be_named(tmp_path: Path) -> None:
    path = campaign(tmp_path / "c", ["y", "x", "x", "y"])
    assert "which of y, x is the baseline" in refusal(path, design="pairs")
    assert read_csv_campaign(path, name=None, baseline="x", design="pairs").plan.baseline == "x"


def test_a_column_says_which_pair_a_cell_is_of_also_where_one_is_missing(tmp_path: Path) -> None:
    arms = ["B", "C", "C", "C", "B"]  # the baseline of the second pair is lost
    path = campaign(tmp_path / "c", arms, {"pair": ["1", "1", "2", "3", "3"]})
    plan = read_csv_campaign(path, name=None, baseline=None, design=None).plan
    assert (plan.design, [c.block for c in plan.cells]) == ("pairs", [0, 0, 1, 2, 2])
    without = campaign(tmp_path / "d", arms)
    assert read_csv_campaign(without, name=None, baseline=None, design=None).plan.design == "survey"
    partly = campaign(tmp_path / "e", arms, {"pair": ["1", "1", "", "3", "3"]})
    assert "column pair: empty in some lines" in refusal(partly)


def test_designs_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = campaign(tmp_path / "c", ["B", "C", "C", "B"])
    plan = read_csv_campaign(path, name=None, baseline=None, design="abba").plan
    assert [(c.name, c.block) for c in plan.cells] == [
        ("B_01a", 0),
        ("C_01a", 0),
        ("C_01b", 0),
        ("B_01b", 0),
    ]
    other = campaign(tmp_path / "d", ["B", "C", "B", "C"])
    assert "not a design of abba: cells 0 to 3 are B C B C" in refusal(other, design="abba")
    assert "no cell is of --baseline 'A'" in refusal(other, baseline="A")
    same = campaign(tmp_path / "e", ["B", "B"])
    assert "there is nothing to compare" in refusal(same, design="four_cell")
    assert "all cells are of B" in refusal(same, design="pairs")


def test_a_torn_last_line_is_left_out_and_said(tmp_path: Path) -> None:
    path = campaign(tmp_path / "c", ["B", "C"])
    (path / "c0.csv").write_text("token,wall_ms\n0,100\n1")
    record = read_csv_campaign(path, name=None, baseline=None, design=None).cells[0].record
    assert record.counters.tokens == 1
    assert record.notes == ("c0.csv: its last line is cut and left out",)


def test_names_that_are_no_names_of_directories(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = campaign(tmp_path / "c", ["B", "spec/2"])
    first, second = load_records(imported(path, capsys, "--name", "../x y"))
    assert (first.cell, second.cell, second.arm) == ("B_01", "spec_2_01", "spec/2")


def test_the_verdict_of_the_judge_is_stored_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def judge(directory: Path) -> CampaignVerdict:
        cells = tuple(
            CellVerdict(r.index, r.cell, "contaminated", ("a step",), ("seen",))
            for r in load_records(directory)
        )
        one = CandidateVerdict("C", "B", "loss", -5.0, (-8.0, -2.0), reasons=("slower",))
        return CampaignVerdict(directory.name, Drift("stable", 1.0), (one,), cells=cells)

    path, runs = campaign(tmp_path / "c", ["B", "C"]), tmp_path / "runs"
    assert cli.main(["csv", str(path), "--runs-dir", str(runs)], judge) == 0
    shown = capsys.readouterr().out
    (directory,) = runs.iterdir()
    assert shown.startswith(f"campaign {directory}\n")
    assert "C against B: loss -5.0 % [-8.0, -2.0]" in shown and "a step" in shown
    stored = json.loads((directory / "verdict.json").read_bytes())
    assert from_json(CampaignVerdict, stored).verdicts[0].outcome == "loss"
    assert cli.main(["csv", str(path), "--runs-dir", str(runs), "--json"], judge) == 0
    found = json.loads(capsys.readouterr().out)["campaigns"][0]
    assert found["cells"][1]["status"] == "contaminated"
    assert found["cells"][1]["reasons"] == ["a step"] and found["cells"][1]["notes"] == ["seen"]
    assert found["verdicts"][0]["ci_pct"] == [-8.0, -2.0]


def test_nothing_is_left_where_the_disk_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("harness.importers.write.shutil.copyfile", full)
    path, runs = campaign(tmp_path / "c", ["B", "C"]), tmp_path / "runs"
    assert cli.main(["csv", str(path), "--runs-dir", str(runs)]) == 1
    assert "No space left on device" in capsys.readouterr().err
    assert list(runs.iterdir()) == []


@pytest.mark.skipif(not SIMULATED.is_dir(), reason=f"needs the campaigns in {SIMULATED}")
def test_all_simulated_campaigns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = sorted(SIMULATED.iterdir())
    assert len(paths) == 17
    for path in paths:
        assert cli.main(["csv", str(path), "--runs-dir", str(tmp_path), "--json"]) == 0
        directory = Path(json.loads(capsys.readouterr().out)["campaign_dir"])
        records = load_records(directory)
        with (path / "campaign.csv").open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        assert [r.arm for r in records] == [row["config"] for row in rows]
        assert not list(directory.rglob("truth*"))
        for r, row in zip(records, rows, strict=True):
            series = read_series(directory / "cells" / f"{r.index:02d}-{r.cell}")
            assert series is not None and series.stall_ms is not None
            assert r.counters.read_bytes == int(row["read_bytes_total"])
            assert r.metrics.tok_s == pytest.approx(len(series) * 1e3 / series.wall_ms.sum())
        plan = from_json(Plan, json.loads((directory / "plan.json").read_bytes()))
        four = path.name.startswith("four")
        assert plan.design == ("four_cell" if four else "pairs") and plan.baseline == "B"
        assert four or [c.block for c in plan.cells] == [i // 2 for i in range(len(records))]
