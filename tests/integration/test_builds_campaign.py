"""Two builds of the engine in one campaign, through the command line: what is found, what refused.

Real launcher, journal and verdict. Builds of the fake engine claim the time of each token, so that
who is faster is known; the real engine is there twice.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_builds import fake_build_at
from pairs_parts import Command, campaign_in, quick, records, run, stored
from ssh_parts import Sshd, needs_sshd

from harness.tracking_data import read_campaign

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

# of the coins: with them goes which cell is how noisy, and builds of equal speed, too, are called
# different once in a while
SEED = "design.seed=4"
MEASURING = "if '--plan-memory' not in sys.argv: "


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return fake_build_at(tmp_path / "old" / "moe-engine", "old")


def words(launcher: Path, model: Path, place: Path, experiment: str, *overrides: str) -> list[str]:
    greedy = ("cell.text=null", "cell.engine.drop_cold_experts=null")
    return quick(launcher, model, place, f"+experiment={experiment}", *greedy, *overrides)


@pytest.fixture
def command(launcher: Path, model: Path, tmp_path: Path) -> Command:
    return functools.partial(words, launcher, model, tmp_path)


def error(argv: list[str], code: int) -> str:
    (line,) = run(argv, code).stderr.strip().splitlines()[-1:]
    return line


def test_a_slower_build_is_a_loss_and_what_it_wrote_is_compared(
    command: Command, old: Path, tmp_path: Path
) -> None:
    new = fake_build_at(tmp_path / "new" / "moe-engine", "new", pace=1.25, stray=1)
    both = (f"cells.baseline.binary={old}", f"cells.candidate.binary={new}")
    done = run(command("sequential_pairs", "cells.candidate={}", SEED, *both))
    campaign = campaign_in(tmp_path)
    (v,) = stored(campaign / "verdict.json")["verdicts"]
    assert (v["outcome"], v["clean_pairs"], v["output"]) == ("loss", 7, "differs")
    assert v["effect_pct"] == pytest.approx(-20, abs=1)
    assert "7 clean pairs, but its output differs" in done.stdout
    assert "DIFFERS from baseline's: token 63: id 64, in baseline_0" in done.stdout

    plan = stored(campaign / "plan.json")
    for record in records(campaign):
        path, build_id = (new, "new") if record["arm"] == "candidate" else (old, "old")
        assert record["argv"][0] == record["binary"]["path"] == str(path)
        assert record["binary"] == plan["arms"][record["arm"]]["binary"]
        assert record["identity"]["engine_build_id"] == build_id
        assert record["identity"]["engine_sha256"] == record["binary"]["sha256"]
    engines = stored(campaign / "environment.json")["cell_engines"]
    assert [(e["cells"], e["build_id"]) for e in engines] == [
        (["baseline"], "old"),
        (["candidate"], "new"),
    ]
    logged = read_campaign(campaign)
    assert logged.parent.tags["verdict.candidate.output"] == "differs"
    params = [run.params for run in logged.cells]
    assert {(p["binary"], p["engine_build_id"]) for p in params} == {
        (str(old), "old"),
        (str(new), "new"),
    }
    page = (campaign / "report.html").read_text()
    assert "but its output differs" in page

    # no cell runs an engine of the campaign's, so none was built
    assert not (tmp_path / "cache" / "bin").exists()

    before = (campaign / "verdict.json").read_bytes()
    again = run([sys.executable, "-m", "harness", "report", str(campaign)])
    assert "the same as" in again.stdout
    assert (campaign / "verdict.json").read_bytes() == before

    resume = [sys.executable, "-m", "harness", f"resume={campaign}"]
    run(resume)
    fake_build_at(new, "new", pace=1.0)
    assert f"cells.candidate.binary: {new} is not the engine that it was" in error(resume, 2)


def test_one_build_under_two_paths_is_said_and_neither_wins(
    command: Command, old: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    copy.write_bytes(old.read_bytes())
    copy.chmod(0o755)
    own = (f"engine.binary={old}", f"cells.candidate.binary={copy}", "design.pairs=7")
    done = run(command("sequential_pairs", "cells.candidate={}", SEED, *own))
    assert f"warning: cells.candidate.binary: {copy} is, byte for byte, {old} (the" in done.stdout
    (v,) = stored(campaign_in(tmp_path) / "verdict.json")["verdicts"]
    assert v["outcome"] in ("equivalent", "inconclusive")
    assert v["output"] == "identical"
    assert {r["identity"]["engine_build_id"] for r in records(campaign_in(tmp_path))} == {"old"}


def test_a_build_that_crashes_hangs_or_is_another_is_that_cells_failure(
    command: Command, old: Path, tmp_path: Path
) -> None:
    crash = MEASURING + "sys.exit('moe-engine: error: slot 3 is nowhere')"
    hang = MEASURING + "__import__('time').sleep(60)"
    bad = {
        "crashes": fake_build_at(tmp_path / "a" / "moe-engine", "a", at_start=crash),
        "hangs": fake_build_at(tmp_path / "b" / "moe-engine", "b", at_start=hang),
        "lies": fake_build_at(tmp_path / "c" / "moe-engine", "inner", says="outer"),
    }
    cells = [f"cells.{name}={{binary:{path}}}" for name, path in bad.items()]
    run(
        command(
            *("matched_pair", f"engine.binary={old}", "~cells.retention", "~cells.spec2"),
            *cells,
            "cells.hangs.time_limit_s=2",
        ),
        1,
    )
    found = {r["cell"]: (r["status"], r["status_detail"]) for r in records(campaign_in(tmp_path))}
    assert found["baseline"] == found["sentinel"] == ("ok", None)
    assert found["crashes"][0] == "failed"
    assert "slot 3 is nowhere" in found["crashes"][1]
    assert found["hangs"][0] == "killed"
    assert found["lies"][0] == "failed"
    assert f"{bad['lies']} called itself build outer" in found["lies"][1]


def test_a_flag_that_an_older_build_does_not_know_is_refused_before_anything_starts(
    command: Command, old: Path, tmp_path: Path
) -> None:
    older = fake_build_at(tmp_path / "older" / "moe-engine", "older", unknown=("--evict",))
    argv = command("sequential_pairs", "cells.candidate={}", f"engine.binary={old}")
    argv += [f"cells.candidate.binary={older}", "cell.engine.evict=ls"]
    line = error(argv, 2)
    assert f"cells.candidate: its engine ({older}) refuses it: unknown option --evict" in line
    assert not (tmp_path / "runs").exists()
    assert "cells.candidate" in error([*argv, "cells.candidate.binary=/no/engine"], 2)


def test_a_build_that_is_rebuilt_meanwhile_ends_the_campaign(
    command: Command, old: Path, tmp_path: Path
) -> None:
    rebuilt = MEASURING + "open(__file__, 'a').write('#')"
    new = fake_build_at(tmp_path / "new" / "moe-engine", "new", at_start=rebuilt)
    argv = command("matched_pair", f"engine.binary={old}", "~cells.retention", "~cells.spec2")
    line = error([*argv, f"cells.candidate={{binary:{new}}}"], 1)
    assert f"{new}: changed since the campaign began; the cell that ran meanwhile" in line
    assert [r["cell"] for r in records(campaign_in(tmp_path))] == ["baseline"]


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    needs_sshd()
    machine = Sshd(tmp_path / "sshd")
    machine.start()
    yield machine
    machine.stop()


def test_both_builds_are_put_on_the_device_and_watched_there(
    command: Command, old: Path, tmp_path: Path, sshd: Sshd
) -> None:
    new = fake_build_at(tmp_path / "new" / "moe-engine", "new", stray=1)
    argv = [
        *command("matched_pair", "~cells.retention", "~cells.spec2", *sshd.overrides()),
        *(f"cells.baseline.binary={old}", f"cells.candidate={{binary:{new}}}"),
    ]
    run(argv)
    campaign = campaign_in(tmp_path)
    found = records(campaign)
    assert [r["status"] for r in found] == ["ok"] * 3
    assert [r["identity"]["engine_build_id"] for r in found] == ["old", "new", "old"]
    for record in found:
        place = Path(record["argv"][0])
        assert place.name == "moe-engine"
        assert place.parent.name == record["binary"]["sha256"][:16]
        assert place.is_relative_to(sshd.root / "device")
        assert record["binary"]["path"] in (str(old), str(new))
    (v,) = stored(campaign / "verdict.json")["verdicts"]
    assert v["output"] == "differs"

    # what would run there must be what was sent
    place = Path(found[1]["argv"][0])
    harm = MEASURING + f"open({str(place)!r}, 'a').write('#')"
    rebuilt = fake_build_at(tmp_path / "old" / "moe-engine", "old", at_start=harm)
    line = error([*argv, f"cells.baseline.binary={rebuilt}"], 1)
    assert f"{place}: changed on the device" in line


def test_the_real_engine_as_two_files_computes_the_same(launcher: Path, tmp_path: Path) -> None:
    """Of which the second calls itself as the first does: only their hashes tell them apart."""
    from harness.build import cached_engine, ensure_engine

    build = ensure_engine()
    other = tmp_path / "other" / "moe-engine"
    other.parent.mkdir()
    other.write_bytes(build.engine.read_bytes() + b"\0")
    other.chmod(0o755)
    own = cached_engine(build.build_id)
    assert own is not None
    assert (own.engine, own.sha256) == (build.engine, build.sha256)
    done = run(
        [
            *(sys.executable, "-m", "harness", "+experiment=matched_pair", "tracking=off"),
            *(f"runs_dir={tmp_path / 'runs'}", f"engine.launcher={launcher}", "cell.text=null"),
            *("~cells.retention", "~cells.spec2", f"cells.candidate={{binary:{other}}}"),
            *("cell.n_predict=48", "schedule.spacing_s=0", "schedule.probe_s=0"),
            f"cells.baseline.binary={own.engine}",
        ]
    )
    assert "byte for byte" not in done.stdout
    campaign = campaign_in(tmp_path)
    found = records(campaign)
    assert {r["identity"]["engine_build_id"] for r in found} == {build.build_id}
    hashes = [r["identity"]["engine_sha256"] for r in found]
    assert hashes[0] == hashes[2] == own.sha256 != hashes[1]
    assert len({r["output_sha256"] for r in found}) == 1
    (v,) = stored(campaign / "verdict.json")["verdicts"]
    assert v["output"] == "identical"
    assert v["outcome"] != "confounded"
