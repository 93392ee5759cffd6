"""Designs: the order of cells, the roles, the settings of arms."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest
from cell_parts import Numbers

from harness.configure import check, compose
from harness.engine_flags import EngineFlags
from harness.errors import UsageError
from harness.jsonable import from_json, to_json
from harness.plan import MIB, SLOT_PADDING_BYTES, cache_mib, four_cell, make_plan
from harness.planned import EngineSettings, GivenText, Plan


def planned(*overrides: str, model: Numbers | None = None, cores: int = 4) -> Plan:
    config = check(compose(["+experiment=cache_sizes", *overrides]))
    texts = {
        "heldout": GivenText("/held/out.txt", "e" * 64),
        "/my.txt": GivenText("/my.txt", "f" * 64),
    }
    return make_plan(config, model or Numbers(), cores, texts)


def test_the_baseline_opens_and_closes() -> None:
    plan = planned()
    assert [(c.index, c.name, c.arm, c.role, c.wait_s) for c in plan.cells] == [
        (0, "baseline", "baseline", "baseline", 0),
        (1, "cache_half", "cache_half", "candidate", 30),
        (2, "cache_off", "cache_off", "candidate", 30),
        (3, "sentinel", "baseline", "sentinel", 30),
    ]
    assert list(plan.arms) == ["baseline", "cache_half", "cache_off"]
    assert (plan.design, plan.baseline) == ("four_cell", "baseline")
    assert plan.candidates == ("cache_half", "cache_off")


def test_the_order_of_candidates_is_as_asked() -> None:
    plan = planned("design.candidates=[cache_off,cache_half]")
    assert [c.name for c in plan.cells] == ["baseline", "cache_off", "cache_half", "sentinel"]


def test_the_first_cell_never_waits() -> None:
    assert [c.wait_s for c in four_cell("b", ("c",), 5.0)] == [0, 5, 5]


def test_the_baseline_returns_so_that_every_candidate_has_it_as_a_neighbour() -> None:
    names = {
        n: [c.name for c in four_cell("b", tuple(f"c{i}" for i in range(n)), 1.0)]
        for n in (1, 2, 3, 4)
    }
    assert names == {
        1: ["b", "c0", "sentinel"],
        2: ["b", "c0", "c1", "sentinel"],
        3: ["b", "c0", "c1", "sentinel_1", "c2", "sentinel"],
        4: ["b", "c0", "c1", "sentinel_1", "c2", "c3", "sentinel"],
    }
    cells = four_cell("b", ("c0", "c1", "c2"), 1.0)
    assert {c.arm for c in cells if c.role == "sentinel"} == {"b"}
    assert [c.index for c in cells] == list(range(6))


def test_a_survey_runs_every_cell_once_and_compares_none() -> None:
    plan = planned("design=survey", "schedule.spacing_s=5")
    assert [(c.name, c.role, c.wait_s) for c in plan.cells] == [
        ("baseline", "candidate", 0),
        ("cache_half", "candidate", 5),
        ("cache_off", "candidate", 5),
    ]
    assert (plan.design, plan.baseline) == ("survey", None)
    assert from_json(Plan, json.loads(json.dumps(to_json(plan)))) == plan


def test_an_automatic_cache_is_left_to_the_engine() -> None:
    plan = planned("cells.cache_off.engine.cache_mb=auto", "cells.cache_off.engine.cache_ceil_mb=9")
    engine = plan.arms["cache_off"].engine
    assert (engine.cache_mb, engine.cache_ceil_mb) == ("auto", 9)
    assert from_json(Plan, json.loads(json.dumps(to_json(plan)))) == plan


def test_every_flag_of_a_cell_reaches_its_arm() -> None:
    for key, value in (("overlap", True), ("prefetch", 3), ("route_trace", True)):
        plan = planned(f"cells.cache_half.engine.{key}={str(value).lower()}")
        assert getattr(plan.arms["cache_half"].engine, key) == value
    missing = {f.name for f in fields(EngineFlags)} - {f.name for f in fields(EngineSettings)}
    assert missing == {"cache_fraction"}


def test_arms_differ_in_what_was_asked_and_in_nothing_else() -> None:
    arms = planned().arms
    base, half, off = (to_json(arms[n]) for n in ("baseline", "cache_half", "cache_off"))
    for other in (half, off):
        assert {k for k in base if base[k] != other[k]} == {"name", "engine"}
        assert {k for k in base["engine"] if base["engine"][k] != other["engine"][k]} == {
            "cache_mb"
        }


def test_a_fraction_is_of_experts_and_rounded_up_to_whole_mib() -> None:
    arms = planned().arms
    assert arms["baseline"].engine.cache_mb == 8 * 32 * 3
    assert arms["cache_half"].engine.cache_mb == 8 * 32 * 3 / 2
    assert arms["cache_off"].engine.cache_mb == 0
    assert cache_mib(0.0, Numbers()) == 0
    assert cache_mib(1 / 256, Numbers()) == 3
    assert cache_mib(1 / 255, Numbers()) == 6
    assert cache_mib(0.1, Numbers(n_expert=10, expert_bytes=(3 * MIB - SLOT_PADDING_BYTES,))) == 3


def test_before_the_model_is_made_a_fraction_has_no_size() -> None:
    config = check(
        compose(
            [
                "+experiment=cache_sizes",
                "cells.cache_off.engine.cache_mb=auto",
                "cells.cache_off.engine.cache_fraction=null",
                "cell.text=null",
            ]
        )
    )
    plan = make_plan(config, None, 4, {})
    assert {n: a.engine.cache_mb for n, a in plan.arms.items()} == {
        "baseline": None,
        "cache_half": None,
        "cache_off": "auto",
    }
    assert plan.cells == planned().cells


def test_a_cache_of_everything_has_a_slot_for_every_expert() -> None:
    """However the parts of an expert lie across 4 KiB blocks."""
    for size in (1, 4095, 110_592, 5 * MIB + 7):
        model = Numbers(expert_bytes=(size,) * 8)
        slot = size + SLOT_PADDING_BYTES
        assert cache_mib(1.0, model) * MIB // slot >= 8 * 32


def test_experts_of_two_sizes_take_what_each_needs() -> None:
    small, large = MIB - SLOT_PADDING_BYTES, 4 * MIB - SLOT_PADDING_BYTES
    model = Numbers(n_expert=10, expert_bytes=(small, small, small, large))
    assert cache_mib(1.0, model) == 30 * 1 + 10 * 4
    assert cache_mib(0.5, model) == 15 * 1 + 5 * 4


def test_every_cell_decodes_the_text_that_was_given_and_none_is_greedy() -> None:
    arms = planned("cell.text=heldout", "cells.cache_off.text=/my.txt", "design=survey").arms
    assert arms["baseline"].text == arms["cache_half"].text == GivenText("/held/out.txt", "e" * 64)
    assert arms["cache_off"].text == GivenText("/my.txt", "f" * 64)
    assert {arm.text for arm in planned("cell.text=null").arms.values()} == {None}


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (8, 7)])
def test_one_core_is_left_free(cores: int, threads: int) -> None:
    assert {a.engine.threads for a in planned(cores=cores).arms.values()} == {threads}


def test_more_threads_than_cores_are_refused() -> None:
    with pytest.raises(UsageError, match=r"threads: 5 on a machine with 4 cores.*1 to 4"):
        planned("cell.engine.threads=5", cores=4)


def test_threads_are_as_asked() -> None:
    assert planned("cell.engine.threads=3").arms["baseline"].engine.threads == 3


def test_the_limit_is_in_bytes_for_every_arm() -> None:
    plan = planned("memory.limit_mb=24")
    assert {a.data_limit_bytes for a in plan.arms.values()} == {25165824}
    assert {a.data_limit_bytes for a in planned().arms.values()} == {None}


def test_plain_cells_pass_no_streaming_flags() -> None:
    engine = planned("cells.plain=plain").arms["plain"].engine
    assert not engine.moe_stream
    assert (engine.cache_mb, engine.io_threads, engine.direct_io) == (None, None, None)
    assert engine.dense_weights is None


def test_more_experts_than_there_are_is_refused() -> None:
    with pytest.raises(UsageError, match=r"expert_used: 33.*32 experts"):
        planned("cells.cache_off.engine.expert_used=33")
    assert planned("cell.engine.expert_used=32").arms["baseline"].engine.expert_used == 32


def test_a_context_beyond_the_models_is_refused() -> None:
    with pytest.raises(UsageError, match=r"n_ctx: 8192.*4096"):
        planned("cell.n_ctx=8192")
    assert planned("cell.n_ctx=8192", model=Numbers(n_ctx_train=None))


def test_a_plan_survives_its_file() -> None:
    plan = planned("schedule.spacing_s=2")
    assert from_json(Plan, json.loads(json.dumps(to_json(plan)))) == plan
