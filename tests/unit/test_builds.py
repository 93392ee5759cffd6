"""Several engines in one campaign: what cells may ask for, what is confounded, what compared."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest
from cell_parts import FAKE_ENGINE, Numbers, fake_build, make_arm
from cell_parts import make_plan as plan_of
from fake_builds import fake_build_at
from record_parts import paging, plain

from harness.analysis.builds import with_builds
from harness.analysis.counters import unasked_differences
from harness.analysis.found import with_findings
from harness.analysis.outputs import Output
from harness.analysis.verdict_words import headline, numbers_in_words
from harness.build import cached_engine, given_binary, given_engine
from harness.build.machine import TargetMachine
from harness.build.types import EngineFile
from harness.campaign.inputs import Engines, binaries, check_given, say_alike
from harness.collect import collect_cell
from harness.configure import check, compose
from harness.errors import UsageError
from harness.history import expected_seconds
from harness.journal import write_json
from harness.jsonable import from_json, to_json
from harness.plan import make_plan
from harness.planned import Arm, GivenBinary, Plan
from harness.records import CellRecord, Metrics, TargetId, Wait
from harness.report.tables import differing_settings, settings_of
from harness.schema import Config
from harness.verdicts import CampaignVerdict, CandidateVerdict, Drift

PAIRS = ("+experiment=sequential_pairs", "cells.candidate={}", "cell.text=null")
OLD, NEW = GivenBinary("/old/moe-engine", "a" * 64), GivenBinary("/new/moe-engine", "b" * 64)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return fake_build_at(tmp_path / "old" / "moe-engine", "old")


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return fake_build_at(tmp_path / "new" / "moe-engine", "new", pace=1.1)


def config_with(*overrides: str) -> Config:
    return check(compose([*PAIRS, *overrides]))


def planned(*overrides: str) -> Plan:
    config = config_with(*overrides)
    return make_plan(config, Numbers(), 4, {}, binaries(config))


def fault(*overrides: str) -> str:
    with pytest.raises(UsageError) as refused:
        planned(*overrides)
    assert "\n" not in str(refused.value)
    return str(refused.value)


# --- what may be asked for -----------------------------------------------------------------------


def test_an_arm_knows_its_binary_by_content(old: Path, new: Path) -> None:
    plan = planned(f"cells.candidate.binary={new}")
    assert plan.arms["baseline"].binary is None
    sha256 = hashlib.sha256(new.read_bytes()).hexdigest()
    assert plan.arms["candidate"].binary == GivenBinary(str(new), sha256)
    both = planned(f"cells.candidate.binary={new}", f"cells.baseline.binary={old}")
    assert {a.binary.path for a in both.arms.values() if a.binary} == {str(old), str(new)}
    of_all = planned(f"cell.binary={new}")
    assert {a.binary for a in of_all.arms.values()} == {plan.arms["candidate"].binary}


def test_a_path_is_of_the_home_and_of_where_the_harness_runs(
    new: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(new.parent)
    monkeypatch.setenv("HOME", str(new.parent))
    for text in ("moe-engine", "'~/moe-engine'"):
        arm = planned(f"cells.candidate.binary={text}").arms["candidate"]
        assert arm.binary is not None
        assert arm.binary.path == str(new)


def test_every_level_of_a_cell_runs_its_binary(new: Path) -> None:
    config = check(
        compose(
            [
                *("+experiment=memory_levels", "cell.text=null", "design.levels=null"),
                *("design.levels_mb=[200,400]", "cells={lru:{},own:{}}"),
                f"cells.own.binary={new}",
            ]
        )
    )
    arms = make_plan(config, Numbers(), 4, {}, binaries(config)).arms
    assert {name for name, arm in arms.items() if arm.binary} == {"own@200MiB", "own@400MiB"}
    assert arms["own@200MiB"].cell == "own"


def test_what_is_no_executable_is_refused_with_its_cell(tmp_path: Path) -> None:
    key = "cells.candidate.binary"
    assert f"{key}: {tmp_path / 'no'} does not exist" in fault(f"{key}={tmp_path / 'no'}")
    (tmp_path / "text").write_text("text")
    assert f"{key}: {tmp_path / 'text'} is not executable" in fault(f"{key}={tmp_path / 'text'}")
    assert f"{key}: empty" in fault(f"{key}=' '")
    assert f"{key}: found 3; needs" in fault(f"{key}=3")
    assert "does not exist" in fault(f"{key}={tmp_path}")


def test_how_the_campaigns_engine_is_come_by_cannot_act_where_no_cell_runs_it(new: Path) -> None:
    all_own = f"cell.binary={new}"
    assert "engine.binary: /x cannot act, as every cell" in fault(all_own, "engine.binary=/x")
    assert "engine.llama_cpp_dir: /x cannot" in fault(all_own, "engine.llama_cpp_dir=/x")
    assert planned(f"cells.candidate.binary={new}", f"engine.binary={new}")
    given = (all_own, "engine.launcher=/x")
    assert "build.toolchain: zig cannot act" in fault(*given, "build.toolchain=zig")
    # the launcher is still to be compiled
    assert planned(all_own, "build.toolchain=zig")


# --- is it an engine? ----------------------------------------------------------------------------


def test_a_build_names_itself(new: Path) -> None:
    engine = given_engine(given_binary(str(new), "k"), "k", None)
    assert (engine.build_id, engine.version) == ("new", "moe-engine 0.1.0 build new llama.cpp fake")
    assert engine.sha256 == hashlib.sha256(new.read_bytes()).hexdigest()


@pytest.mark.parametrize("does", ["echo moe-engine", "exit 1", "echo llama-cli build 3"])
def test_another_program_is_refused_with_its_cell(does: str, tmp_path: Path) -> None:
    path = tmp_path / "program"
    path.write_text(f"#!/bin/sh\n{does}\n")
    path.chmod(0o755)
    with pytest.raises(UsageError, match=f"cells.c.binary: {path} is no moe-engine") as refused:
        given_engine(given_binary(str(path), "k"), "cells.c.binary", None)
    assert "`moe-engine VERSION build ID`" in str(refused.value)


def test_a_program_that_cannot_be_started_is_refused_with_its_cell(tmp_path: Path) -> None:
    path = tmp_path / "program"
    path.write_bytes(b"\x7fELF no such thing")
    path.chmod(0o755)
    with pytest.raises(UsageError, match=r"^cells.c.binary: .* cannot be run on this machine"):
        given_engine(given_binary(str(path), "k"), "cells.c.binary", None)


def test_an_engine_for_another_processor_than_the_targets_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "moe-engine"
    path.write_bytes(b"\x7fELF\x02\x01" + bytes(12) + (62).to_bytes(2, "little"))
    path.chmod(0o755)
    with pytest.raises(UsageError, match=r"^cells.c.binary: .* is for x86_64, the target is aarch"):
        given_engine(
            given_binary(str(path), "k"), "cells.c.binary", TargetMachine("aarch64", frozenset())
        )


def cached(cache: Path, key: str, build_id: str) -> Path:
    folder = cache / "bin" / f"moe-engine-{key}"
    engine = fake_build_at(folder / "moe-engine", build_id)
    sha256 = hashlib.sha256(engine.read_bytes()).hexdigest()
    manifest = {"build_id": build_id, "sha256": sha256, "version": f"moe-engine 1 build {build_id}"}
    write_json(folder / "manifest.json", manifest)
    return engine


def test_an_engine_in_the_cache_is_found_by_its_build_id_unless_it_was_altered(
    tmp_path: Path,
) -> None:
    engine = cached(tmp_path, "k1", "one")
    other = cached(tmp_path, "k2", "two")
    found = cached_engine("two", tmp_path)
    sha256 = hashlib.sha256(other.read_bytes()).hexdigest()
    assert found == EngineFile(other, "two", "moe-engine 1 build two", sha256)
    assert cached_engine("three", tmp_path) is None
    engine.write_text(engine.read_text() + "#")
    assert cached_engine("one", tmp_path) is None
    other.unlink()
    assert cached_engine("two", tmp_path) is None


def test_two_files_of_one_content_are_said(old: Path, new: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.write_bytes(new.read_bytes())
    copy.chmod(0o755)

    def said(*overrides: str) -> list[str]:
        lines: list[str] = []
        plan = planned(*overrides)
        sha256 = hashlib.sha256(old.read_bytes()).hexdigest()
        build = dataclasses.replace(fake_build(old), engine=old, sha256=sha256)
        say_alike(plan, Engines(build, {}), lines.append)
        return lines

    assert said(f"cells.candidate.binary={new}") == []
    assert said(f"cell.binary={new}") == []  # the same path is no second build
    (line,) = said(f"cells.baseline.binary={new}", f"cells.candidate.binary={copy}")
    assert line.startswith(f"warning: cells.candidate.binary: {copy} is, byte for byte, {new} (")
    again = tmp_path / "again"
    again.write_bytes(old.read_bytes())
    again.chmod(0o755)
    (line,) = said(f"cells.candidate.binary={again}")
    assert f"{old} (the campaign's engine): one build, not two" in line
    (line,) = said(f"cells.candidate.binary={old}")
    assert "one build, not two" in line


def test_a_resume_with_another_content_is_refused_with_its_cell(new: Path) -> None:
    plan = planned(f"cells.candidate.binary={new}")
    check_given(plan)
    fake_build_at(new, "new", pace=1.2)
    with pytest.raises(UsageError, match=f"^cells.candidate.binary: {new} is not the engine that"):
        check_given(plan)
    new.unlink()
    with pytest.raises(UsageError, match=f"^cells.candidate.binary: {new} does not exist"):
        check_given(plan)


# --- plans and records, and those of before ------------------------------------------------------


def test_plan_and_record_come_back_from_json_also_those_from_before_there_was_a_choice() -> None:
    plan = plan_of(make_arm(), dataclasses.replace(make_arm("candidate"), binary=NEW))
    stored = json.loads(json.dumps(to_json(plan)))
    assert from_json(Plan, stored) == plan
    record = of("candidate_01", NEW)
    kept = json.loads(json.dumps(to_json(record)))
    assert from_json(CellRecord, kept) == record
    for arm in stored["arms"].values():
        del arm["binary"]
    assert {a.binary for a in from_json(Plan, stored).arms.values()} == {None}
    del kept["binary"], kept["identity"]["engine_sha256"]
    before = from_json(CellRecord, kept)
    assert before.binary is before.identity.engine_sha256 is None


def test_the_table_of_settings_tells_builds_of_one_name_apart() -> None:
    arms = [dataclasses.replace(make_arm(n), binary=b) for n, b in (("o", OLD), ("n", NEW))]
    assert differing_settings(arms) == ["engine"]
    assert [settings_of(a)["engine"] for a in arms] == [
        "moe-engine aaaaaaaa",
        "moe-engine bbbbbbbb",
    ]
    assert settings_of(make_arm())["engine"] == "-"


def test_how_long_a_cell_takes_is_of_its_build_wherever_that_lies(tmp_path: Path) -> None:
    from harness.journal import Journal
    from harness.judgement import CREATED

    arms = [dataclasses.replace(make_arm(n), binary=b) for n, b in (("base", None), ("own", NEW))]
    plan = plan_of(*arms)
    directory = tmp_path / "20260101T000000Z-x-0000"
    directory.mkdir()
    write_json(directory / "plan.json", plan)
    write_json(directory / "environment.json", {"model_sha256": "m"})
    with Journal.open(directory) as journal:
        journal.append(CREATED, overrides=[])
        for cell, seconds in zip(plan.cells[:2], (10.0, 7.0), strict=True):
            record = dataclasses.replace(
                of(cell.name, plan.arms[cell.arm].binary),
                index=cell.index,
                started_unix_s=100.0,
                ended_unix_s=100.0 + seconds,
            )
            journal.append("cell_started", index=cell.index, cell=cell.name)
            cell_dir = journal.make_cell_dir(f"{cell.index:02d}-{cell.name}")
            journal.write_record(cell_dir, record)

    def expected(binary: GivenBinary | None) -> dict[str, float]:
        asked = plan_of(dataclasses.replace(make_arm("x"), binary=binary))
        return expected_seconds(tmp_path, asked, "m", None)

    assert expected(None) == {"x": 10.0}
    assert expected(NEW) == {"x": 7.0}
    assert expected(dataclasses.replace(NEW, path="/moved/moe-engine")) == {"x": 7.0}
    assert expected(OLD) == {}


def test_a_script_that_starts_another_engine_than_it_names_is_no_measurement(
    tmp_path: Path,
) -> None:
    arm = dataclasses.replace(make_arm(), binary=NEW)
    start = {"type": "start", "build_id": "inner"}
    (tmp_path / "telemetry.jsonl").write_text(json.dumps(start) + "\n")
    (tmp_path / "result.json").write_text('{"status": "ok", "exit_code": 0}')

    def record(arm: Arm, build_id: str) -> CellRecord:
        return collect_cell(
            tmp_path,
            plan_of(arm).cells[0],
            arm,
            engine_argv=[],
            target=TargetId("local", "here"),
            model_sha256=None,
            wait=Wait(0.0, "first cell"),
            engine=EngineFile(Path(NEW.path), build_id, None, NEW.sha256),
        )

    other = record(arm, "outer")
    assert other.status == "failed"
    assert other.status_detail is not None
    words = "/new/moe-engine called itself build outer, the engine that it ran is build inner"
    assert words in other.status_detail
    assert words not in (record(arm, "inner").status_detail or "")
    assert (other.binary, other.identity.engine_sha256) == (NEW, NEW.sha256)


# --- what is confounded --------------------------------------------------------------------------


def of(cell: str, binary: GivenBinary | None, index: int = 0, **identity: object) -> CellRecord:
    record = paging(cell, None, index=index, **identity)
    return dataclasses.replace(record, arm=cell.partition("_")[0], binary=binary)


def unasked(candidate: CellRecord, baseline: CellRecord) -> tuple[str, ...]:
    return unasked_differences(candidate, baseline).problems


def test_builds_that_were_asked_for_are_no_confounder_others_are() -> None:
    baseline = of("baseline_01", None)
    assert unasked(of("candidate_01", NEW, engine_build_id="n"), baseline) == ()
    assert unasked(of("candidate_01", NEW, engine_build_id="n"), of("baseline_01", OLD)) == ()
    (line,) = unasked(of("candidate_01", None, engine_build_id="n"), baseline)
    assert line == "engine_build_id is n in candidate_01, e in baseline_01"
    # the same file asked for by both, and yet two builds
    same = of("baseline_01", dataclasses.replace(NEW, path="/elsewhere"))
    assert unasked(of("candidate_01", NEW, engine_build_id="n"), same) != ()


def test_another_build_may_need_other_buffers_but_has_the_same_cache_and_direct_io() -> None:
    baseline = of("baseline_01", None, arena_bytes=10, capacity_bytes=8, direct_io=True)
    own = {"engine_build_id": "n", "arena_bytes": 12}
    assert unasked(of("c", NEW, capacity_bytes=8, direct_io=True, **own), baseline) == ()
    (line,) = unasked(of("c", NEW, capacity_bytes=9, direct_io=True, **own), baseline)
    assert line.startswith("capacity_bytes is 9 in c")
    (line,) = unasked(of("c", NEW, capacity_bytes=8, direct_io=False, **own), baseline)
    assert line.startswith("direct_io is False in c")
    (line,) = unasked(of("c", NEW, capacity_bytes=8, direct_io=None, **own), baseline)
    assert line == "direct_io is recorded for baseline_01 only"


def test_an_engine_from_before_there_were_policies_can_be_compared() -> None:
    older, newer = of("baseline_01", OLD, evict=None), of("candidate_01", None)
    assert unasked(newer, older) == ()
    assert unasked(newer, dataclasses.replace(older, binary=None)) != ()
    (line,) = unasked(newer, of("baseline_01", OLD, evict="ls"))
    assert line.startswith("evict is lru in candidate_01")


# --- what they wrote -----------------------------------------------------------------------------

TEXT = b"the same words"


def judged(
    candidate: Output | None = None,
    *,
    arms: tuple[Arm, Arm] | None = None,
    own: GivenBinary | None = NEW,
    flags: tuple[str, ...] = (),
    nll: tuple[float | None, float | None] = (None, None),
    again: str | None = None,
) -> CandidateVerdict:
    """The verdict of one pair whose baseline wrote three tokens; `again`: hash of a third cell."""
    outputs = {0: Output((1, 2, 3), TEXT)} | ({} if candidate is None else {1: candidate})
    records = [
        dataclasses.replace(
            of(cell, binary, index=i, engine_build_id=build),
            output_sha256=None if out is None else hashlib.sha256(repr(out).encode()).hexdigest(),
            metrics=Metrics(tok_s=5.0, nll=likelihood),
        )
        for i, (cell, binary, build, out, likelihood) in enumerate(
            (
                ("baseline_01", None, "e", outputs[0], nll[0]),
                ("candidate_01", own, "n", outputs.get(1), nll[1]),
            )
        )
    ]
    records = [dataclasses.replace(r, argv=(*r.argv, *flags)) for r in records]
    if again is not None:
        records.append(dataclasses.replace(records[1], index=2, output_sha256=again))
    verdict = CampaignVerdict(
        "c", Drift("stable", 0.0), (CandidateVerdict("candidate", "baseline", "win", 5.0),)
    )
    plan = plan_of(*(arms or (make_arm(), make_arm("candidate"))))
    found = with_builds(
        verdict,
        plan,
        records,
        lambda cells: {r.index: outputs[r.index] for r in cells if r.index in outputs},
    )
    (v,) = found.verdicts
    return v


def test_the_same_output_is_said() -> None:
    v = judged(Output((1, 2, 3), TEXT))
    assert v.output == "identical"
    assert v.reasons == (
        "the output is baseline's: 3 tokens, 14 bytes, all the same",
        "engines: build n, the baseline's build e",
    )
    assert "differs" not in numbers_in_words(v)


def test_another_output_stands_beside_the_win() -> None:
    v = judged(Output((1, 2, 4), TEXT))
    assert v.output == "differs"
    expected = "THE OUTPUT DIFFERS from baseline's: token 2: id 4, in baseline_01 id 3"
    assert v.reasons[0] == expected
    assert numbers_in_words(v) == ", +5.0 % tok/s, but its output differs"
    whole = CampaignVerdict("c", Drift("stable", 0.0), (v,))
    assert headline(whole).endswith("5.0 % faster than baseline, but its output differs")


def test_one_engine_is_not_compared_with_itself() -> None:
    v = judged(Output((9,), b""), own=None)
    assert (v.output, v.reasons) == (None, ())


def test_a_given_text_is_compared_by_its_likelihood() -> None:
    given = ("--given-text", "t")
    same = Output((1, 2, 3), TEXT)
    assert judged(same, flags=given, nll=(3.5, 3.5)).output == "identical"
    other = judged(same, flags=given, nll=(3.5, 3.25))
    assert other.output == "differs"
    assert "log-likelihood of the given text 3.25, not 3.5" in other.reasons[0]
    assert judged(same, flags=given).output == "not shown"


def test_what_changes_the_output_by_itself_is_not_held_against_the_build() -> None:
    other = Output((1, 2, 4), TEXT)
    engine = dataclasses.replace(make_arm().engine, expert_used=2)
    fewer = dataclasses.replace(make_arm("candidate"), engine=engine)
    v = judged(other, arms=(make_arm(), fewer))
    assert v.output == "not shown"
    assert "so do other settings" in v.reasons[0]
    timed = ("--drop-cold-experts", "0.5", "--prefetch", "1")
    assert judged(other, flags=timed).output == "not shown"
    dropping = judged(other, flags=timed[:2])
    assert dropping.output == "differs"
    assert "depends on which experts" in dropping.reasons[0]
    assert judged(other, again="f" * 64).output == "not shown"
    assert judged(None).output == "not shown"


def test_policies_and_identity_are_of_one_engine_each() -> None:
    def cells(binary: GivenBinary | None, index: int, read: float) -> list[CellRecord]:
        name = "own" if binary else "its"
        made = [
            paging(f"{name}_lru", 90, index=index, metrics=Metrics(bytes_per_token=read)),
            paging(
                f"{name}_ls", 90, index=index + 1, evict="ls", metrics=Metrics(bytes_per_token=8.0)
            ),
            plain(cell=f"{name}_plain", index=index + 2),
        ]
        return [dataclasses.replace(r, binary=binary) for r in made]

    def found(records: list[CellRecord]) -> CampaignVerdict:
        outputs = {r.index: Output((r.index // 3,), b"") for r in records}
        return with_findings(CampaignVerdict("c", Drift("unknown", None), ()), records, outputs)

    records = cells(None, 0, 10.0) + cells(NEW, 3, 4.0)
    both = found(records)
    assert [(r.cell, r.read_vs_lru) for r in both.eviction] == [
        *(("its_lru", 1.0), ("its_ls", 0.8), ("own_lru", 1.0), ("own_ls", 2.0)),
    ]
    # each wrote what its own plain cell wrote, and not what the other engine did
    assert {r.likeness for r in both.identity} == {"identical"}
    without = {r.cell: r for r in found(records[:-1]).identity}
    assert without["its_ls"].likeness == "identical"
    assert (without["own_ls"].likeness, without["own_ls"].detail) == (
        "not shown",
        "its_plain ran another engine",
    )


def test_the_fake_engine_is_no_build_to_compare_with() -> None:
    """As other programs that speak the contract but do not say which build they are."""
    with pytest.raises(UsageError, match="is no moe-engine"):
        given_engine(given_binary(str(FAKE_ENGINE), "k"), "k", None)
