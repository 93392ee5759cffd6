"""Cells of the real engine with every mechanism armed: what they did is in their records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cell_parts import PLAIN, asked_here, make_plan

from harness.analysis.four_cell import FourCellSettings, four_cell_verdict
from harness.build import EngineBuild, ensure_engine
from harness.device.launcher import Sampling
from harness.errors import DeviceError, UsageError
from harness.journal import Journal
from harness.measuring import ModelFiles
from harness.models import ModelFile, resolve_model
from harness.models.text import given_text
from harness.planned import Arm, EngineSettings
from harness.records import CellRecord
from harness.session import run_session
from harness.targets.local import LocalTarget

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

# twice the one-token cycle of the reference model
SETTINGS = EngineSettings(
    threads=1, n_ctx=128, n_batch=32, moe_stream=True, cache_mb=10, io_threads=2, direct_io=True
)
# work is compared here, not speed
ANY_LENGTH = FourCellSettings(min_decode_s=0.0)
BASE = Arm("base", SETTINGS, "In the beginning God created", 24, time_limit_s=300)
Cells = dict[str, CellRecord]
Run = Callable[..., Cells]


def arm(name: str, **settings: Any) -> Arm:
    return replace(BASE, name=name, engine=replace(SETTINGS, **settings))


@pytest.fixture(scope="module")
def build() -> EngineBuild:
    return ensure_engine()


@pytest.fixture(scope="module")
def model() -> ModelFile:
    return resolve_model({"kind": "reference"})


@pytest.fixture(scope="module")
def run(build: EngineBuild, model: ModelFile) -> Callable[..., Cells]:
    """Runs arms as a campaign in a directory; the records by cell."""

    def session(campaign: Path, *arms: Arm) -> Cells:
        with Journal.open(campaign) as journal:
            records = run_session(
                make_plan(*arms),
                target=LocalTarget(),
                build=build,
                model=ModelFiles(model.path, model.paths, model.sha256),
                journal=journal,
                on_event=lambda _event: None,
                sampling=Sampling(probe_s=0.1),
            )
        assert {(r.status, r.status_detail) for r in records} == {("ok", None)}
        return {r.cell: r for r in records}

    return session


def test_what_does_not_drop_says_the_same_and_counts_what_it_did(run: Run, tmp_path: Path) -> None:
    cells = run(
        tmp_path,
        arm("base"),
        arm("overlap", overlap=True),
        # below one token's cycle: above it, what the previous token used is resident still
        arm("previous", prefetch=1, cache_mb=3, force_cache=True),
        arm("stale", predict_prefetch=True, predict_horizon=1, predict_spec_max=2),
        arm("retention", predict_prefetch=True, predict_spec_max=0),
        arm("warm", dense_weights="warm"),
        arm("load_all", cache_mb=0, load_all=True),
        arm("auto", cache_mb="auto", cache_floor_mb=1, cache_ceil_mb=16),
    )
    assert len({c.output_sha256 for c in cells.values()}) == 1
    assert cells["base"].counters == cells["sentinel"].counters
    assert cells["base"].counters.evictions
    assert cells["base"].counters == cells["overlap"].counters == cells["warm"].counters
    for name in ("base", "overlap", "warm", "load_all", "auto"):
        assert cells[name].counters.spec_experts is None
        assert cells[name].metrics.spec_bytes_per_token is None
        assert cells[name].counters.dropped is None
    for name in ("previous", "stale"):
        c = cells[name].counters
        assert c.spec_experts
        assert c.spec_useful is not None
        assert c.spec_useful <= c.spec_experts
        assert 0 < (c.spec_read_bytes or 0) <= (c.read_bytes or 0)
        assert cells[name].metrics.spec_useful_share is not None
    kept = cells["retention"]
    assert kept.counters.retained
    assert (kept.counters.spec_read_bytes, kept.counters.spec_experts) == (0, 0)
    assert kept.metrics.spec_useful_share is None
    assert cells["load_all"].metrics.bytes_per_token > cells["base"].metrics.bytes_per_token  # type: ignore[operator]
    assert cells["base"].identity.capacity_bytes == 10 * 2**20
    assert (cells["auto"].identity.capacity_bytes or 0) <= 16 * 2**20
    assert cells["auto"].identity.cache_mb is None


def test_dropping_repeats_itself_exactly_and_a_candidate_may_differ(
    run: Run, tmp_path: Path
) -> None:
    cells = run(
        tmp_path,
        arm("b", drop_cold_experts=0.75),
        arm("retention", drop_cold_experts=0.75, predict_prefetch=True, predict_spec_max=0),
    )
    b, sentinel = cells["b"], cells["sentinel"]
    assert (b.counters, b.output_sha256) == (sentinel.counters, sentinel.output_sha256)
    assert b.counters.dropped
    assert b.counters.routed
    assert 0 < (b.metrics.dropped_share or 0) < 1
    verdict = four_cell_verdict("c", list(cells.values()), ANY_LENGTH, None)
    assert verdict.drift.verdict != "not_comparable"
    assert verdict.verdicts[0].outcome not in ("contaminated", "confounded")


def test_cells_that_drop_otherwise_decode_one_text_and_say_what_it_cost(
    run: Run, tmp_path: Path
) -> None:
    text = given_text("heldout", "cell.text")

    def reading(name: str, **settings: Any) -> Arm:
        return replace(arm(name, n_ctx=512, **settings), text=text, n_predict=400)

    b = {"drop_cold_experts": 0.75}
    cells = run(
        tmp_path,
        reading("b", **b),
        reading("retention", predict_prefetch=True, predict_spec_max=0, **b),
        reading("spec2", predict_prefetch=True, predict_spec_max=2, **b),
        reading("keep_all"),
        reading("keep_all_ahead", predict_prefetch=True, overlap=True),
        reading("drop_100", drop_cold_experts=1.0),
        replace(reading("plain"), engine=replace(PLAIN, n_ctx=512, n_batch=32)),
    )
    assert len({c.output_sha256 for c in cells.values()}) == 1
    assert {c.identity.text_sha256 for c in cells.values()} == {text.sha256}
    for folder in (tmp_path / "cells").iterdir():
        said = (folder / "stdout.txt").read_bytes().strip()
        assert len(said) > 400
        assert said in Path(text.path).read_bytes()[:4000]
    nll = {name: cell.metrics.nll or 0.0 for name, cell in cells.items()}
    assert nll["b"] == nll["sentinel"]
    assert cells["b"].counters == cells["sentinel"].counters
    # what does not drop computes the same, however it comes by its experts
    assert nll["keep_all"] == nll["keep_all_ahead"] == nll["plain"]
    assert 0 < nll["keep_all"] <= nll["b"] <= nll["drop_100"]
    assert 0 < (cells["keep_all"].metrics.agreement or 0) < 1
    shares = [cells[name].metrics.dropped_share or 0.0 for name in ("retention", "spec2", "b")]
    assert all(0 < share < 1 for share in shares)
    verdict = four_cell_verdict("c", list(cells.values()), ANY_LENGTH, None)
    assert verdict.drift.verdict != "not_comparable"


def test_a_text_shorter_than_the_cell_is_refused_with_both_numbers(
    build: EngineBuild, model: ModelFile, tmp_path: Path
) -> None:
    short = tmp_path / "short.txt"
    short.write_text("And the earth")
    given = replace(BASE, text=given_text(str(short), "cell.text"))
    with (
        Journal.open(tmp_path / "c") as journal,
        pytest.raises(
            DeviceError, match=r"opening baseline failed.*has \d+ tokens, --predict asks for 24"
        ),
    ):
        run_session(
            make_plan(given),
            target=LocalTarget(),
            build=build,
            model=ModelFiles(model.path, model.paths, model.sha256),
            journal=journal,
            on_event=lambda _event: None,
            sampling=Sampling(probe_s=0.1),
        )


def test_scoring_changes_nothing_and_its_control_is_exact(run: Run, tmp_path: Path) -> None:
    cells = run(tmp_path, arm("base"), arm("probed", predict_log=True))
    probed, base = cells["probed"], cells["base"]
    assert (probed.counters, probed.output_sha256) == (base.counters, base.output_sha256)
    assert base.prediction is None
    scores = probed.prediction
    assert scores is not None
    control = scores.predictors["control"]
    assert control.slots_hit >= 0.999 * control.slots > 0
    for name in ("stale_gate", "stale_gate_2", "previous_token"):
        assert 0 < scores.predictors[name].slots_hit < scores.predictors[name].slots
    assert [row.layer for row in scores.layers] == list(range(8))
    assert scores.layers[0].stale_gate is None
    assert scores.layers[1].stale_gate_2 is None


def test_a_recorded_trace_forces_the_same_routing(run: Run, tmp_path: Path) -> None:
    traces = {"route_trace": True, "io_trace": True, "compute_trace": "layer"}
    cells = run(tmp_path / "a", arm("base"), arm("traced", **traces))
    assert cells["traced"].counters == cells["base"].counters
    folder = tmp_path / "a" / "cells" / "01-traced"
    for kind in ("route", "io", "compute"):
        first = (folder / f"{kind}_trace.csv").read_text().splitlines()[0]
        assert first == f"# {kind}_trace v1"
    routes = str(folder / "route_trace.csv")
    forced = run(tmp_path / "b", arm("forced", forced_routes=routes))["forced"]
    assert forced.forced_routes is not None
    assert (forced.forced_routes.path, forced.forced_routes.exact) == (routes, True)
    assert forced.output_sha256 == cells["base"].output_sha256
    assert forced.counters.requests == cells["base"].counters.requests


def test_a_cache_below_one_tokens_cycle_is_refused_before_anything_starts(
    build: EngineBuild, model: ModelFile
) -> None:
    with pytest.raises(UsageError, match=r"cells\.small: the engine refuses it: .*16 \+ 16 slots"):
        asked_here(build.engine, model.path, arm("small", cache_mb=2))
    assert asked_here(build.engine, model.path, arm("forced", cache_mb=2, force_cache=True))
