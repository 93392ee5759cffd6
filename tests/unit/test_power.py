"""`python -m harness power`: where its noise comes from, what it simulates on it, what it says."""

from __future__ import annotations

import dataclasses
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from harness.analysis.device_noise import DeviceNoise, device_of
from harness.analysis.pairs import PairSettings
from harness.analysis.simulate import Campaign, simulate
from harness.errors import UsageError
from harness.journal import Journal, write_json
from harness.power import study as study_module
from harness.power.cli import main, table
from harness.power.source import Source, read_source
from harness.power.study import (
    Conditions,
    EffectRow,
    Ending,
    Study,
    effect_to_try,
    one_campaign,
    run_study,
    smallest_effect,
)

# simulations, drawings, fuzzing: seconds each; CI runs them all
pytestmark = pytest.mark.slow


def write(runs_dir: Path, name: str, campaign: Campaign) -> Path:
    """A campaign directory as a run leaves it."""
    plan, records, series = campaign
    directory = runs_dir / name
    with Journal.open(directory) as journal:
        write_json(directory / "plan.json", plan)
        (directory / "config.yaml").write_text("name: test\n")
        for record in records:
            cell_dir = journal.make_cell_dir(f"{record.index:02d}-{record.cell}")
            if record.index in series:
                s = series[record.index]
                rows = zip(s.wall_ms, s.io_ms, s.compute_ms, strict=True)
                lines = [f"{k},{w},{i},{c}\n" for k, (w, i, c) in enumerate(rows)]
                header = "token,wall_ms,io_ms,compute_ms\n"
                (cell_dir / "tokens.csv").write_text(header + "".join(lines))
            journal.write_record(cell_dir, record)
    return directory


def with_other_candidate(campaign: Campaign) -> Campaign:
    plan, records, series = campaign
    other = dataclasses.replace(
        plan.arms["C"], engine=dataclasses.replace(plan.arms["C"].engine, cache_mb=10)
    )
    return dataclasses.replace(plan, arms=plan.arms | {"C": other}), records, series


@pytest.fixture(scope="module")
def device() -> DeviceNoise:
    return conditions("none", 3).device


def conditions(scenario: str, seed: int, spacing_s: float | None = None) -> Conditions:
    _, records, series = simulate(scenario, seed=seed)
    return Conditions(device_of(records, series), PairSettings(interim=False), spacing_s)


def row(effect_pct: float, power: float, campaigns: int = 100) -> EffectRow:
    return EffectRow(effect_pct, campaigns, power, 0.03, 0.0, 0.0, 0.0, (7, 9), (10.0, 12.0), 0.0)


# --- from where ----------------------------------------------------------------------------------


def test_the_newest_campaign_of_identical_arms_is_taken(tmp_path: Path) -> None:
    older = write(tmp_path, "20261101T000000Z-aa-0001", simulate("none", seed=1, pairs=4))
    newer = write(tmp_path, "20261102T000000Z-aa-0002", simulate("none", seed=2, pairs=5))
    changed = with_other_candidate(simulate("none", seed=3, pairs=6))
    compared = write(tmp_path, "20261103T000000Z-spec-0003", changed)
    four = simulate("none", seed=4, design="four_cell", candidates=("C1", "C2"))
    write(tmp_path, "20261104T000000Z-four-0004", four)
    (tmp_path / "20261105T000000Z-old-0005").mkdir()
    (tmp_path / "20261105T000000Z-old-0005" / "plan.json").write_text("{}")

    source = read_source(None, tmp_path)
    assert source.campaign_dir == newer and source.aa and source.arms == ("B", "C")
    assert len(source.device.records) == 10
    assert read_source(older.name, tmp_path).campaign_dir == older
    assert read_source(str(older), Path("elsewhere")).campaign_dir == older
    # of a comparison the baseline's cells serve; here there are too few
    with pytest.raises(UsageError, match="6 of its cells"):
        read_source(compared.name, tmp_path)


def test_of_a_comparison_the_baselines_cells_serve(tmp_path: Path) -> None:
    changed = with_other_candidate(simulate("none", seed=3, pairs=12, effect_pct=-30.0))
    source = read_source(str(write(tmp_path, "c", changed)), tmp_path)
    assert not source.aa and source.arms == ("B",)
    assert {r.arm for r in source.device.records} == {"B"}
    assert len(source.device.records) == 12
    assert source.device.between_cells_log_sd < 0.03


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--from", "nowhere"], "--from nowhere: no campaign there"),
        ([], "no A/A campaign there"),
        ([], "+experiment=aa"),
        (["--effect", "0"], "--effect 0"),
        (["--effect", "100"], "--effect 100"),
        (["--effect", "nan"], "--effect nan"),
        (["--power", "1"], "--power 1"),
        (["--power", "80"], "as in 0.8"),
        (["--campaigns", "5"], "--campaigns 5"),
        (["--seed", "-1"], "--seed -1"),
        (["--spacing-s", "-3"], "--spacing-s -3"),
        (["--spacing-s", "nan"], "--spacing-s nan"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    argv: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*argv, "--runs-dir", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and words in err
    assert err.startswith("harness: error: ") and err.count("\n") == 1


def test_what_is_no_measure_of_noise_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, records, series = simulate("none", seed=1, pairs=4)
    nothing = write(tmp_path, "n", (dataclasses.replace(plan, baseline=None), records, series))
    short = write(tmp_path, "s", (plan, records[:5], series))
    torn = write(tmp_path, "t", (plan, records, series))
    (torn / "journal.jsonl").write_text("{}\n{}\n")
    plan_gone = write(tmp_path, "p", (plan, records, series))
    (plan_gone / "plan.json").write_text("[1]")
    for path, words, code in (
        (nothing, "compares nothing", 2),
        (short, "5 of its cells have per-token times", 2),
        (torn, "line 1 is damaged", 1),
        (plan_gone, "plan.json: cannot be read", 2),
    ):
        assert main(["--from", str(path)]) == code
        err = capsys.readouterr().err
        assert words in err and err.count("\n") == 1


# --- what is simulated ---------------------------------------------------------------------------


def test_power_grows_with_the_effect_and_nothing_is_rarely_called_something() -> None:
    steps: list[tuple[int, int]] = []
    study = run_study(
        conditions("none", 3),
        [4.0, 0.4, 0.4],
        target=0.5,
        campaigns=12,
        seed=1,
        progress=lambda done, total: steps.append((done, total)),
    )
    effects, powers = [r.effect_pct for r in study.effects], [r.power for r in study.effects]
    # one or two were added between them
    assert effects[0] == 0.4 and effects[-1] == 4.0 and len(effects) in (3, 4)
    assert effects == sorted(effects) and pytest.approx(1.265, abs=1e-3) in effects
    assert all(a <= b + 0.1 for a, b in pairwise(powers))
    assert powers[0] < 0.4 and powers[-1] > 0.7
    assert study.nothing.power <= 0.15 and study.nothing.equivalent > 0.3
    assert study.smallest.effect_pct is not None and 0.4 < study.smallest.effect_pct < 4.0
    assert steps[-1] == (12 * (len(effects) + 1),) * 2
    assert study.budget_pairs == 18


def test_what_is_soon_known_is_not_simulated_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, with endings made up: every third seed is too noisy for 2 %."""

    def ending(_: Conditions, seed: int, effect_pct: float) -> Ending:
        seen = effect_pct >= 5 or (effect_pct > 0 and seed % 3)
        return Ending("loss" if seen else "inconclusive", 7 if seen else 18, 0, 10.0)

    monkeypatch.setattr(study_module, "one_campaign", ending)
    monkeypatch.setattr(study_module, "_cores", lambda: 1)
    steps: list[tuple[int, int]] = []
    study = run_study(
        conditions("none", 3),
        [2.0, 5.0],
        target=0.8,
        campaigns=120,
        seed=0,
        progress=lambda done, total: steps.append((done, total)),
    )
    assert study.nothing.campaigns == 120 and study.nothing.power == 0.0
    rows = {r.effect_pct: r for r in study.effects}
    assert rows[2.0].campaigns == 120 and rows[2.0].power == pytest.approx(2 / 3)
    assert rows[2.0].pairs == (7, 18) and rows[2.0].undecided == pytest.approx(1 / 3)
    assert rows[5.0].campaigns == 50 and rows[5.0].power == 1.0
    assert steps[-1][0] == steps[-1][1] == sum(r.campaigns for r in study.effects) + 120


def test_one_campaign_ends_when_the_verdict_falls(device: DeviceNoise) -> None:
    large = one_campaign(conditions("none", 3), seed=1, effect_pct=30.0)
    assert large.outcome == "loss" and large.pairs == 7
    cells_min = 2 * large.pairs * (device.cell_s + device.spacing_s) / 60
    assert large.minutes == pytest.approx(cells_min, rel=0.08)
    slow = one_campaign(conditions("none", 3, 300.0), seed=1, effect_pct=30.0)
    assert slow.minutes - large.minutes == pytest.approx(13 * 270 / 60, abs=0.1)


def test_replaced_pairs_are_counted_and_cost_time() -> None:
    noisy = conditions("step", 2)
    endings = [one_campaign(noisy, seed=s, effect_pct=20.0) for s in range(6)]
    assert sum(e.replaced for e in endings) > 0
    assert np.mean([e.pairs for e in endings]) > 7


# --- what is read off ----------------------------------------------------------------------------


def test_the_smallest_effect_is_between_those_that_enclose_the_power() -> None:
    rows = [row(2.0, 0.5), row(3.0, 0.8), row(5.0, 0.99)]
    found = smallest_effect(rows, 0.8)
    assert found.effect_pct == pytest.approx(3.0, rel=0.01)
    assert found.se_pct is not None and 0.05 < found.se_pct < 0.5
    between = smallest_effect(rows, 0.9).effect_pct
    assert between is not None and 3.0 < between < 5.0
    fewer = smallest_effect([row(2.0, 0.5, 25), row(3.0, 0.8, 25)], 0.7)
    more = smallest_effect([row(2.0, 0.5), row(3.0, 0.8)], 0.7)
    assert fewer.se_pct is not None and more.se_pct is not None
    assert fewer.se_pct == pytest.approx(2 * more.se_pct, rel=0.15)
    assert smallest_effect(rows, 0.3).effect_pct is None
    assert smallest_effect(rows, 0.995).effect_pct is None


def test_effects_are_added_until_the_power_is_enclosed_closely() -> None:
    assert effect_to_try([row(2.0, 0.9), row(4.0, 1.0)], 0.8) == 1.0
    assert effect_to_try([row(2.0, 0.1), row(4.0, 0.3)], 0.8) == 8.0
    assert effect_to_try([row(2.0, 0.1), row(8.0, 0.9)], 0.8) == 4.0
    assert effect_to_try([row(2.0, 0.1), row(3.0, 0.9)], 0.8) is None
    assert effect_to_try([row(0.15, 0.9)], 0.8) is None
    assert effect_to_try([row(40.0, 0.1)], 0.8) is None


# --- what is said --------------------------------------------------------------------------------


def test_json_says_what_was_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "20261101T000000Z-aa-0001", simulate("none", seed=1, pairs=8))
    argv = ["--runs-dir", str(tmp_path), "--effect", "-1.2", "--effect", "0.4", "--power", "0.7"]
    assert main([*argv, "--campaigns", "20", "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""  # no terminal, no progress
    said = json.loads(out)
    assert said["campaign_dir"] == str(path) and said["aa"] is True
    assert said["device"]["cells"] == 16 and said["device"]["spacing_s"] == 30.0
    effects = {e["effect_pct"]: e for e in said["effects"]}
    assert {0.4, 1.2} <= effects.keys()
    assert effects[1.2]["power"] > effects[0.4]["power"] and effects[1.2]["power_se"] > 0
    assert all(e["campaigns"] == 20 for e in effects.values())
    assert said["no_effect"]["effect_pct"] == 0.0 and said["target_power"] == 0.7


def test_the_table_says_what_the_budget_reaches(tmp_path: Path, device: DeviceNoise) -> None:
    source = Source(tmp_path, ("B", "C"), aa=True, device=device, settings=PairSettings())
    rows = (row(2.0, 0.5), row(3.0, 0.9))
    found = smallest_effect(rows, 0.8)
    assert found.effect_pct is not None
    text = table(source, Study(row(0.0, 0.02), rows, found, 0.8, 18), 30.0)
    two, three = (
        next(x for x in text.splitlines() if x.strip().startswith(e)) for e in ("2 %", "3 %")
    )
    assert "50.0% ± 3.0%" in two and "7 (9)" in two and "10 (12)" in two
    assert "the budget is too small" in two and "the budget is too small" not in three
    assert f"80% power within the budget of 18 pairs: {found.effect_pct:.2g} % ±" in text
    assert "36 cells of B, C (A/A)" in text and "win or loss 2.0%" in text

    within = dataclasses.replace(row(1.0, 0.1), equivalent=0.85)
    said = table(source, Study(row(0.0, 0.02), (within, *rows), found, 0.8, 18), 30.0)
    (one,) = (x for x in said.splitlines() if x.strip().startswith("1 %"))
    assert "mostly called equivalent" in one and "the budget is too small" not in one

    for rows, words in (((row(2.0, 0.9),), "below 2 %"), ((row(2.0, 0.1),), "above 2 %")):
        none_found = Study(row(0.0, 0.02), rows, smallest_effect(rows, 0.8), 0.8, 18)
        assert words in table(source, none_found, 30.0)
