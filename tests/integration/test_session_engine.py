"""Cells of the real engine, through the real launcher, on a model made for the purpose."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from pathlib import Path

import pytest
from cell_parts import asked_here, make_plan

from harness.build import EngineBuild, ensure_engine
from harness.device.launcher import Sampling
from harness.engines import native
from harness.errors import DeviceError
from harness.journal import Journal
from harness.measuring import ModelFiles
from harness.models import ModelFile, resolve_model
from harness.planned import Arm, EngineSettings, Plan
from harness.records import CellRecord
from harness.session import run_session
from harness.targets.local import LocalTarget

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

SETTINGS = EngineSettings(
    threads=1, n_ctx=128, n_batch=32, moe_stream=True, cache_mb=64, io_threads=2, direct_io=True
)
BASELINE = Arm("baseline", SETTINGS, "In the beginning", 12, time_limit_s=120)


def arm(name: str, limit: int | None = None, **settings: object) -> Arm:
    engine = replace(SETTINGS, **settings)  # type: ignore[arg-type]
    return replace(BASELINE, name=name, engine=engine, data_limit_bytes=limit)


@pytest.fixture(scope="module")
def build() -> EngineBuild:
    return ensure_engine()


@pytest.fixture(scope="module")
def model() -> ModelFile:
    return resolve_model({"kind": "synthetic", "geometry": "tiny", "weights": "Q8_0", "seed": 0})


def run(campaign: Path, plan: Plan, build: EngineBuild, model: ModelFile) -> list[CellRecord]:
    with Journal.open(campaign) as journal:
        return run_session(
            plan,
            target=LocalTarget(),
            build=build,
            model=ModelFiles(model.path, model.paths, model.sha256),
            journal=journal,
            on_event=lambda _event: None,
            sampling=Sampling(probe_s=0.2),
        )


def test_every_mode_says_the_same_and_counts_what_it_did(
    tmp_path: Path, build: EngineBuild, model: ModelFile
) -> None:
    plain = arm(
        "plain",
        moe_stream=False,
        cache_mb=None,
        io_threads=None,
        direct_io=None,
        dense_weights="mmap",
    )
    arms = [
        BASELINE,
        arm("off", cache_mb=0),
        arm("buffered", direct_io=False, dense_weights="anon", expert_used=2),
        plain,
    ]
    records = {r.cell: r for r in run(tmp_path, make_plan(*arms), build, model)}
    assert list(records) == ["baseline", "off", "buffered", "plain", "sentinel"]
    assert {(r.status, r.status_detail) for r in records.values()} == {("ok", None)}
    baseline, sentinel = records["baseline"], records["sentinel"]
    assert baseline.counters == sentinel.counters
    assert baseline.counters.requests
    assert baseline.counters.tokens == 12
    same_words = (baseline, sentinel, records["off"], records["plain"])
    assert len({r.output_sha256 for r in same_words}) == 1
    assert records["off"].metrics.hit_rate == 0
    assert baseline.metrics.hit_rate is not None
    assert baseline.metrics.hit_rate > 0
    assert records["plain"].metrics.hit_rate is None
    assert records["plain"].identity.mode == "plain"
    assert records["buffered"].identity.direct_io is False
    assert isinstance(baseline.identity.direct_io, bool)
    assert baseline.identity.model_sha256 == model.sha256
    assert baseline.identity.engine_build_id == build.build_id
    assert baseline.identity.arena_bytes
    for record in records.values():
        assert record.metrics.tok_s
        assert record.metrics.prefill_tok_s
        assert record.metrics.load_s is not None
        assert record.metrics.anon_peak_bytes
        folder = tmp_path / "cells" / f"{record.index:02d}-{record.cell}"
        with (folder / native.TOKENS).open() as f:
            rows = list(csv.DictReader(f))
        wall_s = sum(float(row["wall_ms"]) for row in rows) / 1e3
        assert record.metrics.tok_s == pytest.approx(len(rows) / wall_s)


def test_a_cap_is_kept_or_the_cell_refused_with_both_numbers(
    tmp_path: Path, build: EngineBuild, model: ModelFile
) -> None:
    needed = asked_here(build.engine, model.path, BASELINE)
    enough, little = needed + (8 << 20), needed - (8 << 20)
    arms = [arm("enough", limit=enough), arm("little", limit=little)]
    records = run(tmp_path, make_plan(*arms), build, model)
    assert [r.status for r in records] == ["ok", "refused", "ok"]
    assert records[0].metrics.anon_within_limit is True
    assert records[0].data_limit_bytes == enough
    assert records[1].exit_code == 4
    found = re.search(r"needs (\d+) bytes .* allowed (\d+)", str(records[1].status_detail))
    assert found is not None
    assert int(found[2]) == little
    assert int(found[1]) == pytest.approx(needed, abs=1 << 20)


def test_a_model_that_cannot_be_used_fails_the_cell_with_the_engines_words(
    tmp_path: Path, build: EngineBuild, model: ModelFile
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(model.path.read_bytes()[:-4096])
    changed = replace(model, path=broken, info=replace(model.info, shards=(broken,)))
    plan = make_plan(BASELINE)
    with pytest.raises(DeviceError, match=r"opening baseline failed.*truncated"):
        run(tmp_path / "c", plan, build, changed)
