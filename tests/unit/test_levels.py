"""Ladders of memory limits: what may be asked for, and what is planned at each level."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cell_parts import FAKE_ENGINE, Numbers, asked_here, make_arm, with_engine

from harness.configure import check, compose, conf_dir, options, resolved
from harness.errors import UsageError
from harness.jsonable import from_json, to_json
from harness.memory_config import as_said_now
from harness.plan import MIB, make_plan
from harness.planned import Arm, MemoryLevel, Plan
from harness.records import CellRecord, TargetId
from harness.report.tables import settings_of
from harness.rundir import difference
from harness.validation import check_config

LADDER = ("+experiment=cache_sizes", "design=levels", "cell.text=null")
CELLS = ("cells={ref:plain,lru:{},lfu:{engine:{evict:lfu}}}", "cells.ref.capped=false")
MODEL = Numbers(file_bytes=1000 * MIB)


def planned(*overrides: str, model: Numbers | None = MODEL) -> Plan:
    return make_plan(check(compose([*LADDER, *CELLS, *overrides])), model, 4, {})


def fault(*overrides: str) -> str:
    with pytest.raises(UsageError) as refused:
        check(compose([*LADDER, *CELLS, *overrides]))
    assert "\n" not in str(refused.value)
    return str(refused.value)


# --- the plan ---


def test_every_capped_cell_runs_at_every_level_and_the_others_once() -> None:
    plan = planned("design.levels=[0.1,0.5]")
    names = ["ref", "lru@0.1", "lfu@0.1", "lru@0.5", "lfu@0.5"]
    assert [c.name for c in plan.cells] == names == list(plan.arms) == list(plan.candidates)
    assert {c.role for c in plan.cells} == {"candidate"}
    assert (plan.design, plan.baseline) == ("levels", None)
    assert from_json(Plan, json.loads(json.dumps(to_json(plan)))) == plan


def test_a_level_is_the_limit_and_the_engines_budget() -> None:
    arms = planned("design.levels=[0.1,0.5]").arms
    arm = arms["lfu@0.5"]
    assert arm.level == MemoryLevel("lfu", 500, 0.5)
    assert (arm.data_limit_bytes, arm.engine.ram_budget_mb) == (500 * MIB, 500)
    assert (arm.engine.evict, arm.engine.cache_mb) == ("lfu", None)
    assert (arm.cgroup_limit_bytes, arm.cgroup_mode) == (564 * MIB, "wanted")
    assert arms["lru@0.1"].data_limit_bytes == 100 * MIB


def test_an_uncapped_cell_has_no_limit_at_all() -> None:
    ref = planned().arms["ref"]
    assert (ref.level, ref.data_limit_bytes, ref.cgroup_limit_bytes) == (None, None, None)
    assert ref.engine.ram_budget_mb is None


def test_a_capped_cell_without_streaming_has_the_limits_and_no_budget() -> None:
    arm = planned("cells.ref.capped=true", "design.levels=[0.5]").arms["ref@0.5"]
    assert (arm.data_limit_bytes, arm.engine.ram_budget_mb) == (500 * MIB, None)


def test_levels_are_given_in_mib_too() -> None:
    arms = planned("design.levels=null", "design.levels_mb=[64,8]").arms
    assert list(arms) == ["ref", "lru@64MiB", "lfu@64MiB", "lru@8MiB", "lfu@8MiB"]
    assert arms["lru@8MiB"].level == MemoryLevel("lru", 8)
    assert arms["lru@8MiB"].data_limit_bytes == 8 * MIB


def test_the_shipped_ladder_reaches_from_nothing_to_most_of_the_model() -> None:
    limits = [
        a.level.limit_mb for a in planned().arms.values() if a.level and a.level.cell == "lru"
    ]
    assert limits == [10, 70, 120, 200, 400, 700]


def test_before_the_model_is_made_a_share_of_it_has_no_size() -> None:
    arm = planned(model=None).arms["lru@0.2"]
    assert arm.level == MemoryLevel("lru", None, 0.2)
    assert (arm.data_limit_bytes, arm.engine.ram_budget_mb) == (None, None)


def test_a_level_is_within_what_the_engine_takes() -> None:
    arms = planned("design.levels=null", f"design.levels_mb=[{2**24}]").arms
    assert arms[f"lru@{2**24}MiB"].engine.ram_budget_mb == 2**24
    large = Numbers(file_bytes=2**44)
    with pytest.raises(UsageError, match="2 of this model is 33554432 MiB; the engine takes at"):
        planned("design.levels=[2]", model=large)


def test_what_excludes_a_budget_is_refused_by_its_own_name() -> None:
    for setting in ("load_all=true", "force_cache=true", "cache_mb=4", "ram_budget_mb=4"):
        line = fault(f"cells.lru.engine.{setting}")
        name, _, value = setting.partition("=")
        assert f"engine.{name}: {value} where each level is the engine's ram_budget_mb" in line
        assert f"set it to {'false' if value == 'true' else 'null'}, or" in line


def test_levels_that_are_the_same_number_of_mib_are_refused() -> None:
    with pytest.raises(
        UsageError, match=r"levels: 0\.0001 and 0\.001 of this model are both 1 MiB"
    ):
        planned("design.levels=[0.0001,0.001]")


@pytest.mark.parametrize(
    ("cgroup", "limit"), [('"off"', None), ("wanted", 516 * MIB), ("required", 516 * MIB)]
)
def test_a_cgroup_allows_the_headroom_beside_the_level(cgroup: str, limit: int | None) -> None:
    settings = (f"memory.cgroup={cgroup}", "memory.cgroup_headroom_mb=16", "design.levels=[0.5]")
    arm = planned(*settings).arms["lru@0.5"]
    assert arm.cgroup_limit_bytes == limit
    assert limit is None or arm.cgroup_mode == cgroup


def test_one_limit_for_all_cells_may_have_its_cgroup_too() -> None:
    words = ("+experiment=cache_sizes", "memory.limit_mb=100", "cell.text=null")
    config = check(compose([*words, "memory.cgroup=required", "cells.cache_half.capped=false"]))
    arms = make_plan(config, MODEL, 4, {}).arms
    assert arms["baseline"].cgroup_limit_bytes == 164 * MIB
    assert arms["cache_half"].data_limit_bytes is arms["cache_half"].cgroup_limit_bytes is None


def test_a_limit_by_the_size_of_the_model_comes_to_mib_in_the_plan() -> None:
    words = ("+experiment=cache_sizes", "memory=half", "cell.text=null")
    own = ("memory.limit_beside_mb=20", "memory.cgroup=wanted", "cells.cache_half.capped=false")
    config = check(compose([*words, *own]))
    plan = make_plan(config, MODEL, 4, {})
    arm = plan.arms["baseline"]
    assert (arm.limit_share, arm.data_limit_bytes) == (0.5, 520 * MIB)
    assert arm.cgroup_limit_bytes == 584 * MIB
    assert settings_of(arm)["limit MiB"] == "520"
    free = plan.arms["cache_half"]
    assert (free.limit_share, free.data_limit_bytes, free.cgroup_limit_bytes) == (None, None, None)
    assert settings_of(free)["limit MiB"] == "-"
    assert from_json(Plan, json.loads(json.dumps(to_json(plan)))) == plan
    unmade = make_plan(config, None, 4, {}).arms["baseline"]
    assert (unmade.data_limit_bytes, settings_of(unmade)["limit MiB"]) == (None, "unknown")


def test_every_option_of_memory_goes_with_every_design_but_a_ladder_with_a_limit() -> None:
    for memory in options(conf_dir(), "memory"):
        for design in options(conf_dir(), "design"):
            words = ["+experiment=cache_sizes", "cell.text=null", f"memory={memory}"]
            words += [f"design={design}"]
            if design == "levels":
                words.append("cells={lru:{}}")
            if design == "levels" and memory != "uncapped":
                with pytest.raises(UsageError, match="excludes design=levels"):
                    check(compose(words))
                continue
            arms = make_plan(check(compose(words)), MODEL, 4, {}).arms.values()
            assert {arm.data_limit_bytes is None for arm in arms} == {
                memory == "uncapped" and design != "levels"
            }


@pytest.mark.parametrize("kind", ["levels", "survey"])
def test_an_earlier_campaign_is_gone_on_with_as_its_ladder_is_said_now(kind: str) -> None:
    """`memory` as it was stored when the ladder stood there."""
    of_levels = kind == "levels"
    cells = "cells={lru:{}}" if of_levels else "cells={lru:{engine:{cache_mb:8}}}"
    words = ["+experiment=cache_sizes", f"design={kind}", "cell.text=null", cells]
    now = resolved(compose(words))
    memory = {
        "limit_mb": None,
        "levels": now["design"].get("levels"),
        "levels_mb": None,
        "cgroup": "wanted" if of_levels else "off",
        "cgroup_headroom_mb": 64,
    }
    ladder = ("levels", "levels_mb")
    design = {k: v for k, v in now["design"].items() if k not in ladder}
    then = {**now, "memory": memory, "design": design}
    with pytest.raises(UsageError, match=r"memory\.levels: is design\.levels now"):
        check_config(then)
    said = as_said_now(then)
    assert check_config(said).design == check_config(now).design
    assert difference(said, now) == [
        "memory.limit_share: (absent) -> None",
        "memory.limit_beside_mb: (absent) -> 128",
    ]
    assert as_said_now(now) == now


# --- what is refused ---


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ("design.levels=null", "design.levels: null; a ladder needs its limits there"),
        ("memory.limit_mb=9", "memory.limit_mb: excludes design=levels"),
        (
            "memory=half",
            "memory.limit_share: excludes design=levels, whose ladder limits the cells; use",
        ),
        (
            "memory=half memory.limit_mb=9 design=survey",
            "memory.limit_mb: excludes memory.limit_share",
        ),
        ("design.levels_mb=[9]", "design.levels_mb: excludes design.levels"),
        ("design.levels=[]", "design.levels: empty"),
        ("design.levels=[0.1,0]", "design.levels: 0 is out of range; needs more than 0 and at"),
        ("design.levels=[0.1,-1]", "design.levels: -1 is out of range"),
        ("design.levels=[0.1,1e9]", "levels: 1000000000 is out of range; needs more than 0 and at"),
        ("design.levels=[100.5]", "more than 0 and at most 100"),
        ("design.levels=[nan]", "design.levels: nan is out of range"),
        (
            "design.levels=null design.levels_mb=[99999999999]",
            "design.levels_mb: 99999999999 is out of range; needs 1 or more and at most 16777216",
        ),
        ("design.levels=null design.levels_mb=[0]", "levels_mb: 0 is out of range; needs 1 or"),
        ("design.levels=[0.1,0.2,0.1]", "design.levels: 0.1 stands there twice"),
        ("design.levels=0.1", "design.levels: found 0.1; needs a list"),
        ("memory.cgroup=maybe", "needs one of off, wanted, required"),
        ("design=survey design.levels=[0.5]", "design.levels: only design=levels"),
        ("design=survey cells.lru.capped=true", "cells.ref.capped: false where"),
        (
            "design=survey memory.cgroup=wanted",
            "memory.cgroup: wanted has no limit",
        ),
        ("cell.capped=false", "cells: none is capped"),
        ("design.baseline=lru", "design.baseline: a levels compares nothing"),
        ("cells.lru.engine.cache_mb=8", "cells.lru.engine.cache_mb: 8 where each level"),
        ("cells.lru.engine.ram_budget_mb=8", "cells.lru.engine.ram_budget_mb: 8 where each"),
        (
            "cells.lru.engine.load_all=true",
            "cells.lru.engine.load_all: true where each level is the engine's ram_budget_mb",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(overrides: str, words: str) -> None:
    assert words in fault(*overrides.split(" "))


def test_a_cell_that_streams_without_a_cap_needs_a_size_of_its_own() -> None:
    assert "needs a cache size" in fault("cells.lru.capped=false")
    sized = planned("cells.lru.capped=false", "cells.lru.engine.cache_mb=8", "design.levels=[0.5]")
    assert list(sized.arms) == ["ref", "lru", "lfu@0.5"]
    assert sized.arms["lru"].engine.cache_mb == 8


# --- before anything starts ---


def arm_of(needed_mb: int, budget_mb: int, level: MemoryLevel | None) -> Arm:
    arm = make_arm("lru", needed_bytes=needed_mb * MIB)
    limited = replace(arm, level=level, data_limit_bytes=budget_mb * MIB)
    return with_engine(limited, cache_mb=None, ram_budget_mb=budget_mb)


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """The fake engine as one program."""
    path = tmp_path / "engine"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE_ENGINE} "$@"\n')
    path.chmod(0o755)
    return path


def test_a_level_that_is_too_small_does_not_stop_a_campaign_that_looks_for_it(engine: Path) -> None:
    level = MemoryLevel("lru", 40)
    assert asked_here(engine, Path("m"), arm_of(100, 40, level)) is None
    assert asked_here(engine, Path("m"), arm_of(100, 200, replace(level, limit_mb=200)))
    with pytest.raises(UsageError, match=r"cells\.lru: the engine refuses it: needs"):
        asked_here(engine, Path("m"), arm_of(100, 40, None))


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (None, "memory.limit_mb allows 41943040; use memory.limit_mb=100 or more"),
        (0.5, "memory.limit_share allows 41943040; use memory=uncapped memory.limit_mb=100 or"),
    ],
)
def test_a_limit_below_the_needs_names_the_key_that_set_it(
    engine: Path, share: float | None, words: str
) -> None:
    arm = make_arm("lru", needed_bytes=100 * MIB)
    with pytest.raises(UsageError) as refused:
        asked_here(engine, Path("m"), replace(arm, data_limit_bytes=40 * MIB, limit_share=share))
    assert words in str(refused.value)


def test_any_other_refusal_stops_it_at_a_level_too(engine: Path) -> None:
    arm = arm_of(100, 200, MemoryLevel("lru", 200))
    odd = replace(arm, prompt=json.dumps({"refuse": "no such flag"}))
    with pytest.raises(UsageError, match="no such flag"):
        asked_here(engine, Path("m"), odd)


# --- records ---


@pytest.mark.parametrize(
    ("status", "at_a_level", "counts"),
    [
        ("ok", True, True),
        ("refused", True, True),
        ("refused", False, False),
        ("killed", True, False),
    ],
)
def test_a_refusal_is_a_result_at_a_level_only(status: str, at_a_level: bool, counts: bool) -> None:
    record = CellRecord(
        *("lru", "lru", "candidate", 0),
        status=status,  # type: ignore[arg-type]
        exit_code=4,
        argv=(),
        target=TargetId("local", "x"),
        level=MemoryLevel("lru", 8) if at_a_level else None,
    )
    assert record.is_result is counts
