"""Whole campaigns through the command line: real launcher, journal and verdict, a scripted engine.

The fake engine's prompt says how it behaves (tests/fake_engine.py); everything else is what a user
gets. The same with the real engine: tests/e2e.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cell_parts import FAKE_ENGINE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

REPO = Path(__file__).resolve().parents[2]
Command = Callable[..., list[str]]
Finished = tuple[subprocess.CompletedProcess[str], Path, Command]


def words(launcher: Path, model: Path, place: Path, *overrides: str, **behaviour: Any) -> list[str]:
    """The command line of a quick four-cell campaign; `behaviour` is the fake engine's.

    Its tokens claim 200 ms, so that eight of them are long enough to judge. The probes are a tenth
    as long as a user's: two seconds of every cell would be theirs.
    """
    prompt = json.dumps({"wall_ms": 200} | behaviour).replace('"', '\\"')
    return [
        *(sys.executable, "-m", "harness", "+experiment=matched_pair"),
        *("model=path", f"model.path={model}", f"runs_dir={place / 'runs'}"),
        *(f"engine.binary={FAKE_ENGINE}", f"engine.launcher={launcher}"),
        *("schedule.spacing_s=0.2", "schedule.probe_s=0.1", "cell.n_predict=8", "tracking=off"),
        *(f'cell.prompt="{prompt}"', f"engine.cache_dir={place / 'cache'}"),
        *overrides,
    ]


@pytest.fixture
def command(launcher: Path, model: Path, tmp_path: Path) -> Command:
    return functools.partial(words, launcher, model, tmp_path)


@pytest.fixture(scope="module")
def finished(launcher: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A campaign that ran to its end: what it printed, its directory, its command line."""
    place = tmp_path_factory.mktemp("finished")
    command = functools.partial(words, launcher, model, place)
    done = run(command())
    (campaign,) = campaigns(place)
    return done, campaign, command


def run(argv: list[str], code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(argv, cwd=REPO, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done


def error_line(done: subprocess.CompletedProcess[str]) -> str:
    (line,) = [x for x in done.stderr.splitlines() if x.startswith("harness: ")]
    return line


def campaigns(tmp_path: Path) -> list[Path]:
    runs = tmp_path / "runs"
    return sorted(runs.iterdir()) if runs.is_dir() else []


def records(campaign: Path) -> list[dict[str, Any]]:
    return [json.loads(p.read_text()) for p in sorted(campaign.glob("cells/*/record.json"))]


def resume(campaign: Path, *overrides: str) -> list[str]:
    return [sys.executable, "-m", "harness", f"resume={campaign}", *overrides]


def test_a_campaign_from_command_line_to_verdict(finished: Finished) -> None:
    done, campaign, _ = finished
    for name in ("config.yaml", "plan.json", "environment.json", "journal.jsonl", "verdict.json"):
        assert (campaign / name).is_file(), name
    page = (campaign / "report.html").read_text()
    assert f"report: {campaign / 'report.html'}" in done.stdout
    assert "Every cell, with the device at its entry (4)" in page
    assert "+experiment=matched_pair" in page
    assert [r["cell"] for r in records(campaign)] == [
        "baseline",
        "retention",
        "spec2",
        "sentinel",
    ]
    verdict = json.loads((campaign / "verdict.json").read_text())
    assert verdict["campaign"] == campaign.name
    assert [v["candidate"] for v in verdict["verdicts"]] == ["retention", "spec2"]
    text = done.stdout
    for word in ("tok/s", "hit rate", "MiB/token", "anon MiB", "ppl", "drift:", "sentinel"):
        assert word in text
    for word in ("of it spec", "useful", "75.0%", "dropped", "12.5%"):
        assert word in text
    assert "retention against baseline" in text
    assert str(campaign) in text
    assert not any(ord(c) < 32 and c != "\n" for c in text), "control characters"
    assert done.stderr == ""


def test_the_work_that_mechanisms_did_is_in_the_records(finished: Finished) -> None:
    _, campaign, _ = finished
    baseline, retention, spec2, sentinel = (r["counters"] for r in records(campaign))
    assert baseline == sentinel
    assert baseline["dropped"] > 0
    assert baseline["spec_experts"] is None
    for counters in (retention, spec2):
        assert counters["spec_experts"] > counters["spec_useful"] > 0
    assert {r["prediction"] for r in records(campaign)} == {None}
    flags = [" ".join(r["argv"]) for r in records(campaign)]
    assert ["--predict-spec-max 0" in f for f in flags] == [False, True, False, False]
    assert all("--drop-cold-experts 0.75" in f for f in flags)


def test_a_level_at_which_the_engine_refuses_is_a_result(command: Command, tmp_path: Path) -> None:
    ladder = (
        "design=levels",
        "design.levels=null",
        "design.levels_mb=[40,90,200]",
    )
    cells = ("cells={ref:plain,lru:{},lfu:{engine:{evict:lfu}}}", "cells.ref.capped=false")
    words = [w for w in command(needed_bytes=60 << 20) if w != "+experiment=matched_pair"]
    words += ["+experiment=cache_sizes", "cell.text=null", "schedule.probe_s=0", *ladder, *cells]
    done = run(words)
    (campaign,) = campaigns(tmp_path)
    found = {r["cell"]: r for r in records(campaign)}
    assert {name: r["status"] for name, r in found.items()} == {
        "ref": "ok",
        **dict.fromkeys(("lru@40MiB", "lfu@40MiB"), "refused"),
        **dict.fromkeys(("lru@90MiB", "lfu@90MiB", "lru@200MiB", "lfu@200MiB"), "ok"),
    }
    assert "allowed 41943040 (--ram-budget-mb)" in found["lru@40MiB"]["status_detail"]
    largest = found["lfu@200MiB"]
    assert largest["data_limit_bytes"] == largest["budget"]["ram_budget_bytes"] == 200 << 20
    assert largest["level"] == {"cell": "lfu", "limit_mb": 200, "fraction": None}
    assert largest["identity"]["evict"] == "lfu"
    assert [c["slot_bytes"] for c in largest["arena"]["classes"]] == [1 << 20, 3 << 20]
    assert largest["counters"]["evict_stale_right"] == largest["counters"]["evictions"] > 0
    assert found["ref"]["arena"] is found["ref"]["budget"] is found["ref"]["level"] is None
    assert done.stdout.count("refused") >= 2
    assert run(resume(campaign)).stdout.count("everything measured") == 1


def capped(command: Command, cells: str, **behaviour: Any) -> list[str]:
    """The command line of cells at two levels, of which the engine refuses the first."""
    words = [w for w in command(needed_bytes=60 << 20, **behaviour) if "matched_pair" not in w]
    ladder = ("design=levels", "design.levels=null", "design.levels_mb=[40,90]")
    return [
        *words,
        "+experiment=cache_sizes",
        "cell.text=null",
        "schedule.probe_s=0",
        *ladder,
        cells,
    ]


def test_greedy_output_is_compared_with_plain_and_a_refused_cell_shows_nothing(
    command: Command, tmp_path: Path
) -> None:
    cells = "cells={ref:plain,lru:{},ls:{engine:{evict:ls}}}"
    done = run([*capped(command, cells, strays="ls"), "cells.ref.capped=false"])
    (campaign,) = campaigns(tmp_path)
    verdict = json.loads((campaign / "verdict.json").read_text())
    found = {(row["cap_bytes"] >> 20, row["policy"]): row for row in verdict["identity"]}
    assert {key: row["likeness"] for key, row in found.items()} == {
        (40, "lru"): "not shown",
        (40, "ls"): "not shown",
        (90, "lru"): "identical",
        (90, "ls"): "differs",
    }
    assert found[90, "ls"]["detail"] == "token 7: id 8, in ref id 7"
    assert (found[90, "lru"]["tokens"], found[90, "lru"]["text_bytes"]) == (8, len("fake text"))
    assert "1 of 4 cells identical to plain, 1 differs, 2 not shown" in done.stdout
    assert [row["policy"] for row in verdict["eviction"]] == ["lru", "ls"] * 2
    assert "stale right" in done.stdout
    assert verdict["topk"] == []


def test_top_k_is_joined_with_its_perplexity_and_its_greedy_output(
    command: Command, tmp_path: Path
) -> None:
    cells = (
        "cells={top_4:{},top_2:{engine:{expert_used:2}},"
        "ppl_4:{capped:false,perplexity:heldout,engine:{cache_mb:8}},"
        "ppl_2:{capped:false,perplexity:heldout,engine:{cache_mb:8,expert_used:2}}}"
    )
    done = run(capped(command, cells))
    (campaign,) = campaigns(tmp_path)
    verdict = json.loads((campaign / "verdict.json").read_text())
    assert [(r["cap_bytes"] >> 20, r["top_k"], r["status"]) for r in verdict["topk"]] == [
        (40, 4, "refused"),
        (40, 2, "refused"),
        (90, 4, "ok"),
        (90, 2, "ok"),
    ]
    assert [row["perplexity"] for row in verdict["topk"]] == [30.0, 32.0] * 2
    assert [row["greedy_tokens"] for row in verdict["topk"]] == [None, 8] * 2
    assert "perplexity 32.0000 +- 0.5000 of 512 tokens" in done.stdout
    assert "not in 8 tokens" in done.stdout
    assert verdict["identity"] == verdict["eviction"] == []


def test_a_level_at_which_the_engine_was_killed_is_no_result(
    command: Command, tmp_path: Path
) -> None:
    words = [w for w in command(signal=signal.SIGKILL) if w != "+experiment=matched_pair"]
    words += ["+experiment=memory_levels", "design.levels=null", "design.levels_mb=[90]"]
    done = run([*words, 'memory.cgroup="off"'], code=1)
    (campaign,) = campaigns(tmp_path)
    (row,) = json.loads((campaign / "verdict.json").read_text())["levels"]
    assert (row["level"], row["result"], row["cgroup_limit_bytes"]) == ("90MiB", "KILLED", None)
    assert "KILLED" in done.stdout
    assert "0 of 1 level passed" in done.stdout


def test_a_survey_shows_its_table_and_judges_no_speed(command: Command, tmp_path: Path) -> None:
    words = [w for w in command() if w != "+experiment=matched_pair"]
    done = run([*words, "+experiment=predictor_accuracy"])
    (campaign,) = campaigns(tmp_path)
    (record,) = records(campaign)
    assert record["prediction"]["predictors"]["stale_gate"]["slots_hit"] == 30
    verdict = json.loads((campaign / "verdict.json").read_text())
    assert verdict["verdicts"] == []
    assert verdict["drift"]["verdict"] == "unknown"
    assert "no sentinel" in verdict["drift"]["reasons"][0]
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "stale gate 75.0% 30.0% 40 10" in lines
    assert "1 75.0% - 30.0% 100.0% 5" in lines
    assert any("the speed of a probed run says nothing" in line for line in lines)
    # all that stands after the records can be had again
    assert run(resume(campaign)).stdout.count("75.0%") == done.stdout.count("75.0%")


@pytest.mark.parametrize("name", ["io_lanes", "drop_sweep", "prefetch"])
def test_a_sweep_knows_its_drift(name: str, command: Command, tmp_path: Path) -> None:
    words = [w for w in command() if w != "+experiment=matched_pair"]
    run([*words, f"+experiment={name}"])
    (campaign,) = campaigns(tmp_path)
    cells = records(campaign)
    assert [c["cell"] for c in cells if c["role"] == "sentinel"] == ["sentinel_1", "sentinel"]
    verdict = json.loads((campaign / "verdict.json").read_text())
    assert isinstance(verdict["drift"]["sentinel_change_pct"], float)
    candidates = {c["cell"] for c in cells if c["role"] == "candidate"}
    assert {v["candidate"] for v in verdict["verdicts"]} == candidates
    for v in verdict["verdicts"]:
        assert "next to it" not in " ".join(v["reasons"])


def test_the_next_plan_knows_how_long_such_cells_take(finished: Finished) -> None:
    _, _, command = finished
    assert "by earlier campaigns" in run(command("plan_only=true")).stdout
    text = run(command("plan_only=true", "cells.spec2.n_predict=9")).stdout
    assert "1 cell unknown" in text


def test_plan_only_prints_the_plan_and_makes_nothing(command: Command, tmp_path: Path) -> None:
    text = run(command("plan_only=true", "engine.binary=/no/engine/needed")).stdout
    for word in ("baseline", "retention", "spec2", "sentinel", "0.2", "unknown"):
        assert word in text
    assert campaigns(tmp_path) == []


def test_a_limit_below_the_needs_is_refused_with_both_numbers(
    command: Command, tmp_path: Path
) -> None:
    done = run(command("memory.limit_mb=24", needed_bytes=99_000_000), code=2)
    line = error_line(done)
    assert "99000000" in line
    assert "25165824" in line
    assert "memory.limit_mb=95" in line
    assert campaigns(tmp_path) == []


def test_an_arm_that_the_engine_refuses_is_found_before_the_first_cell(
    command: Command, tmp_path: Path
) -> None:
    line = error_line(run(command(refuse="the prompt does not fit"), code=2))
    assert "cells.baseline" in line
    assert "the prompt does not fit" in line
    assert campaigns(tmp_path) == []


def test_a_text_that_is_not_there_is_refused_before_anything_runs(
    command: Command, tmp_path: Path
) -> None:
    line = error_line(run(command(f"cell.text={tmp_path}/ruth.txt"), code=2))
    assert f"cells.baseline.text: {tmp_path}/ruth.txt: there is no such file" in line
    assert campaigns(tmp_path) == []


def test_a_resumed_campaign_decodes_the_text_that_it_began_with(
    command: Command, tmp_path: Path
) -> None:
    text = tmp_path / "mine.txt"
    text.write_text("Es war einmal ein Mann.")
    run(command(f"cell.text={text}"))
    (campaign,) = campaigns(tmp_path)
    for record in records(campaign):
        assert record["identity"]["text_sha256"] == hashlib.sha256(text.read_bytes()).hexdigest()
        assert str(text) in record["argv"]
        assert (record["metrics"]["nll"], record["metrics"]["agreement"]) == (3.5, 0.25)
    run(resume(campaign))
    text.write_text("Es war einmal eine Frau.")
    line = error_line(run(resume(campaign), code=2))
    assert f"cells.baseline.text: {text} is not what it was when the campaign began" in line


def test_a_cell_that_fails_is_told_and_the_rest_goes_on(command: Command, tmp_path: Path) -> None:
    prompt = 'cells.spec2.prompt="{\\"exit\\": 5, \\"complain\\": \\"read error\\"}"'
    done = run(command(prompt), code=1)
    (campaign,) = campaigns(tmp_path)
    assert [r["status"] for r in records(campaign)] == ["ok", "ok", "failed", "ok"]
    assert "read error" in done.stdout
    assert (campaign / "verdict.json").is_file()


def test_an_opening_baseline_that_fails_ends_the_campaign(command: Command, tmp_path: Path) -> None:
    line = error_line(run(command(exit=5, complain="read error"), code=1))
    assert "baseline" in line
    assert "read error" in line
    (campaign,) = campaigns(tmp_path)
    assert len(records(campaign)) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_campaign_is_kept_and_resumed(
    number: signal.Signals, command: Command, tmp_path: Path
) -> None:
    process = subprocess.Popen(
        command("schedule.spacing_s=3"),
        cwd=REPO,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 600
    while not list(tmp_path.glob("runs/*/cells/00-*/record.json")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, number)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130, (out, err)
    (line,) = err.splitlines()
    (campaign,) = campaigns(tmp_path)
    assert (
        f"resume with: python -m harness resume={campaign.name} runs_dir={campaign.parent}" in line
    )
    kept = records(campaign)
    assert len(kept) >= 1
    page = campaign / "report.html"
    assert "planned cell" in page.read_text(), "what there is, and what there is not"

    hint = line.partition("python -m harness ")[2].split()
    done = run([sys.executable, "-m", "harness", *hint])
    assert records(campaign)[: len(kept)] == kept
    assert len(records(campaign)) == 4
    assert "all 4 cells" in page.read_text()
    assert "drift:" in done.stdout
    assert campaigns(tmp_path) == [campaign]


def test_a_campaign_that_was_killed_before_its_first_cell_is_resumed_and_knows_its_command(
    command: Command, tmp_path: Path
) -> None:
    run(command())
    (campaign,) = campaigns(tmp_path)
    created, *_ = (campaign / "journal.jsonl").read_text().splitlines(keepends=True)
    for path in campaign.iterdir():  # as it is once the plan is written, and nothing after it
        if path.name not in ("config.yaml", "environment.json", "plan.json"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    (campaign / "journal.jsonl").write_text(created)
    run(resume(campaign))
    assert len(list(campaign.glob("cells/*/record.json"))) == 4
    repeats = [str(w) for w in json.loads(created)["overrides"]]
    assert "+experiment=matched_pair" in repeats
    assert "+experiment=matched_pair" in (campaign / "report.html").read_text()


def test_a_campaign_whose_command_line_is_lost_does_not_make_one_up(
    command: Command, tmp_path: Path
) -> None:
    run(command())
    (campaign,) = campaigns(tmp_path)
    (campaign / "journal.jsonl").unlink()  # of an older version, killed before it began
    shutil.rmtree(campaign / "cells")
    run(resume(campaign))
    created = json.loads((campaign / "journal.jsonl").read_text().splitlines()[0])
    assert (created["event"], created["overrides"]) == ("campaign_created", None)
    report = run([sys.executable, "-m", "harness", "report", str(campaign), "--md"]).stdout
    assert "resume=" not in report


def test_a_finished_campaign_has_nothing_to_resume(finished: Finished) -> None:
    _, campaign, _ = finished
    before = {p: p.stat().st_mtime_ns for p in campaign.glob("cells/*/*")}
    verdict = (campaign / "verdict.json").read_text()
    done = run(resume(campaign))
    assert {p: p.stat().st_mtime_ns for p in campaign.glob("cells/*/*")} == before
    assert "drift:" in done.stdout
    assert (campaign / "verdict.json").read_text() == verdict
    assert "+experiment=matched_pair" in verdict, "the command that repeats it"


def test_a_resume_with_another_configuration_is_refused_with_the_difference(
    finished: Finished,
) -> None:
    _, campaign, command = finished
    line = error_line(run(resume(campaign, "cell.n_predict=9"), code=2))
    assert "cell.n_predict: 8 -> 9" in line
    line = error_line(run(resume(campaign, "memory=half"), code=2))
    assert "memory=half" in line
    whole = command("schedule.spacing_s=7", f"resume={campaign.name}")
    line = error_line(run(whole, code=2))
    assert "schedule.spacing_s: 0.2 -> 7" in line
    run(command(f"resume={campaign.name}"))


def test_a_store_that_cannot_be_used_costs_one_line(command: Command, tmp_path: Path) -> None:
    done = run(command("tracking=local", "tracking.uri=http://127.0.0.1:9"))
    assert "not logged to MLflow" in done.stdout
    assert "127.0.0.1:9" in done.stdout
    (campaign,) = campaigns(tmp_path)
    assert (campaign / "verdict.json").is_file()


def small_disk(tmp_path: Path, size: str, argv: list[str]) -> subprocess.CompletedProcess[str]:
    """The command with a real small disk as its runs_dir, and a look at what is left there."""
    disk = tmp_path / "disk"
    disk.mkdir(exist_ok=True)
    script = (
        f'mount -t tmpfs -o size={size} none "$1" || exit 99; disk=$1; shift; "$@"; code=$?;'
        'find "$disk" -name record.json | wc -l; exit $code'
    )
    words = [a.replace(f"runs_dir={tmp_path / 'runs'}", f"runs_dir={disk}") for a in argv]
    done = subprocess.run(
        ["unshare", "-m", "bash", "-c", script, "sh", str(disk), *words],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    if done.returncode == 99 or "unshare" in done.stderr:
        pytest.skip("mounting a small disk is not allowed here")
    assert "Traceback" not in done.stderr
    return done


def test_a_disk_that_is_full_before_the_start_is_refused(command: Command, tmp_path: Path) -> None:
    done = small_disk(tmp_path, "100k", command())
    assert done.returncode == 2, done.stderr
    assert "no space left" in error_line(done)
    assert done.stdout.strip() == "0"


def test_a_disk_that_fills_up_keeps_what_was_measured(command: Command, tmp_path: Path) -> None:
    done = small_disk(tmp_path, "900k", command("cell.n_predict=400"))
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert "no space left" in error_line(done).lower()
    assert int(done.stdout.split()[-1]) >= 1
