"""What a cell's numbers and settings are called in MLflow, and the views that show them."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
import zlib
from typing import Any

from record_parts import paging

from harness.planned import Arm, EngineSettings
from harness.readings import ProbeResult, Probes
from harness.records import CgroupMemory, Counters, Metrics, Perplexity, Wait
from harness.tracking_cells import (
    cell_colour,
    cell_name,
    cell_order,
    cell_params,
    cell_points,
    summaries,
)
from harness.tracking_pages import COMPARED_AT_MOST
from harness.tracking_views import (
    MOST_NARROWED,
    VIEWS,
    View,
    experiment_tags,
    narrowed,
    narrowed_tags,
)

ROWS = [
    {
        "wall_ms": 4.0,
        "hits": 3.0,
        "requests": 4.0,
        "read_bytes": 10.0,
        "majflt": 0.0,
        "stall_ms": 1.0,
    },
    {
        "wall_ms": 6.0,
        "hits": 1.0,
        "requests": 4.0,
        "read_bytes": 30.0,
        "majflt": 2.0,
        "stall_ms": 2.0,
    },
]


def filled(cls: type[Any], **own: Any) -> Any:
    """Every field measured."""
    return cls(**{f.name: own.get(f.name, 1) for f in dataclasses.fields(cls)})


def full_record() -> Any:
    return dataclasses.replace(
        paging("lru", 64, metrics=filled(Metrics), counters=filled(Counters)),
        perplexity=Perplexity(value=3.0, nll=1.1, stderr=0.1, tokens=9, chunks=1, n_ctx=8),
        cgroup=CgroupMemory(4096, True, 4000, 2, 1),
        probe=Probes(ProbeResult(1.0, 2.0), ProbeResult(1.0, 2.0)),
        wait=Wait(30.0, "spacing"),
    )


def test_what_a_campaign_is_read_for_is_sorted_before_all_groups() -> None:
    names = sorted({p.key for p in cell_points(full_record(), ROWS, 0)})
    few = [n for n in names if "/" not in n]
    assert names[: len(few)] == few
    assert few[-1] == "tok_s"
    assert len(few) <= 7, "more do not fit into MLflow's box, and the speed is the last of them"
    assert {n.partition("/")[0] for n in names[len(few) :]} == {"token", "use", "vitals", "work"}


def test_a_summary_without_a_series_is_a_bar_and_a_series_a_line_over_the_tokens() -> None:
    metrics = Metrics(tok_s=200.0, hit_rate=0.5, anon_peak_bytes=7, load_s=0.5)
    record = dataclasses.replace(full_record(), metrics=metrics)
    steps: dict[str, list[int]] = {}
    for point in cell_points(record, ROWS, 0):
        steps.setdefault(point.key, []).append(point.step)
    assert (steps["anon_peak_bytes"], steps["use/load_s"]) == ([0], [0])
    assert (steps["tok_s"], steps["hit_rate"], steps["use/majflt_per_token"]) == ([0, 1],) * 3
    other = dataclasses.replace(record, metrics=Metrics(tok_s=150.0))
    last = [p for p in cell_points(other, ROWS, 0) if p.key == "tok_s"][-1]
    assert (last.value, last.step) == (150.0, 2), "the record's number has the last word"


def test_what_was_not_measured_has_no_number() -> None:
    empty = summaries(paging("lru", None, metrics=Metrics(), counters=Counters()))
    assert empty == {}


def test_a_setting_is_as_the_engine_took_it_and_says_so_where_that_was_not_asked_for() -> None:
    asked = EngineSettings(threads=4, n_ctx=512, n_batch=128, moe_stream=True, cache_mb=40)
    arm = Arm("lru", dataclasses.replace(asked, io_threads=2, evict="lru"), "In", 64)
    params = cell_params(paging("lru", 64, threads=1, cache_mb=40), arm)
    assert (params["threads"], params["asked.threads"]) == ("1", "4")
    assert [k for k in params if k.startswith("asked.")] == ["asked.threads"]
    assert (params["io_threads"], params["cache_mb"], params["n_predict"]) == ("2", "40", "64")
    assert (params["level"], params["data_limit_bytes"]) == ("64MiB", str(64 * 2**20))


def test_names_and_colours_tell_campaigns_and_arms_apart() -> None:
    first, second = "20261130T134637Z-matched_pair-5a89", "20261130T134702Z-matched_pair-b166"
    arms = ["lru", "lfu"]
    lru, lfu = (paging(name, None, index=i) for i, name in enumerate(arms))
    assert cell_name(lfu, first) == "01-lfu 5a89"
    colours = {cell_colour(r, arms, c) for r in (lru, lfu) for c in (first, second)}
    assert len(colours) == 4
    assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in colours)
    sentinel = dataclasses.replace(lru, cell="sentinel", index=2)
    assert cell_colour(sentinel, arms, first) == cell_colour(lru, arms, first)
    cells = [(c, r) for c in (second, first) for r in (lru, lfu, sentinel)]
    assert sorted(cells, key=lambda cell: cell_order(cell[1], cell[0]), reverse=True) == cells


def test_views_are_what_mlflow_reads_and_show_what_is_logged() -> None:
    tags = experiment_tags()
    assert all(len(value) <= 5000 for value in tags.values()), "MLflow refuses longer ones"
    logged = {f"metrics.`{p.key}`" for p in cell_points(full_record(), ROWS, 0)}
    settings = EngineSettings(threads=1, n_ctx=1, n_batch=1, moe_stream=True, io_threads=2)
    arm = Arm("lru", dataclasses.replace(settings, cache_mb=9), "In", 64)
    logged |= {f"params.`{k}`" for k in cell_params(paging("lru", 64), arm)}
    logged |= {
        f"tags.`harness.{k}`" for k in ("timing", "verdict", "order", "outcomes", "sweep_overrides")
    }
    logged |= {"tags.`verdict.drift`"}
    for view in VIEWS:
        saved = json.loads(tags[f"mlflow.sharedViewState.{view.key}"])
        assert saved["name"] == view.name
        state = json.loads(zlib.decompress(base64.b64decode(saved["state"].partition(";")[2])))
        shown = {*state["selectedColumns"], state["orderByKey"]}
        shown |= {f"metrics.`{c['metricKey']}`" for c in state.get("compareRunCharts", ())}
        assert shown <= logged, shown - logged
        sections = {s["uuid"] for s in state.get("compareRunSections", ())}
        assert {c["metricSectionId"] for c in state.get("compareRunCharts", ())} <= sections


def run_id(name: object) -> str:
    return hashlib.sha256(str(name).encode()).hexdigest()[:32]


def views_of(*campaigns: int, cells: int = 4) -> tuple[View, ...]:
    runs = {run_id(c): f"20261130T100000Z-x-a'{c:02d}" for c in campaigns}
    return narrowed(runs, [run_id((c, i)) for c in campaigns for i in range(cells)])


def test_views_of_campaigns_that_were_named_show_these_alone() -> None:
    campaigns, cells, tokens = views_of(1, 2)
    asked = [view.state["searchFilter"] for view in (campaigns, cells, tokens)]
    assert asked[0] == f"attributes.run_id IN ('{run_id(1)}','{run_id(2)}')"
    assert asked[1] == asked[2]
    assert {f"'{run_id((c, i))}'" for c in (1, 2) for i in range(4)} == set(
        asked[1].removeprefix("attributes.run_id IN (").removesuffix(")").split(",")
    )
    assert [v.name for v in (campaigns, cells, tokens)] == [f"a'01 a'02: {v.name}" for v in VIEWS]
    assert views_of(1, 2, 3, 4)[1].name.startswith("a'01 a'02 a'03 and 1 more: ")
    assert views_of(1, 2)[1].key == cells.key != views_of(1, 3)[1].key
    (alone,) = {v.state["searchFilter"] for v in views_of(1)[1:]}
    # by its tag, so that cells that it logs later appear, too
    named = 'tags.`harness.campaign` = "20261130T100000Z-x-a\'01"'
    assert alone == f"tags.`harness.kind` = 'cell' and {named}"


def test_an_experiment_keeps_the_views_of_the_last_that_were_named() -> None:
    own = {**experiment_tags(), "mlflow.sharedViewState.mine": "of a user", "other": "tag"}
    there = dict(own)
    asked = [1, 2, 3, 4, 5, 1, 6, 7, 8]
    for now, campaign in enumerate(asked, 1):
        tags, outdated = narrowed_tags(views_of(campaign, 99), there, now)
        assert len(tags) == len(VIEWS)
        there = {k: v for k, v in (there | tags).items() if k not in outdated}
    last = (5, 1, 6, 7, 8)
    assert len(last) == MOST_NARROWED
    kept = {f"mlflow.sharedViewState.{v.key}" for c in last for v in views_of(c, 99)}
    assert there.keys() == own.keys() | kept
    assert own.items() <= there.items(), "what is not of these stays as it is"


def test_campaigns_of_more_cells_than_a_tag_holds_have_no_views_of_their_own() -> None:
    tags, _ = narrowed_tags(views_of(1, 2, cells=COMPARED_AT_MOST // 2), {}, 1)
    assert tags
    assert all(len(value) <= 5000 for value in tags.values())
    assert narrowed_tags(views_of(*range(10), cells=36), {}, 1) == ({}, [])
