"""Traces of real runs, read by column name as users read them: they add up to what is counted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from engine_parts import engine, run

from harness.models import model_info
from harness.models.architectures import ARCHITECTURES
from harness.models.geometry import GEOMETRIES
from harness.models.synth import write_synthetic

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

PROMPT = "Sphinx of black quartz, judge my vow: 0123456789!"
TOKENS, BATCH = 24, 32
# half of the experts
CACHE_MB = "7"


@dataclass(frozen=True)
class Traced:
    """A run's counters and its traces."""

    total: dict[str, Any]
    wall_ms: float
    route: pd.DataFrame
    io: pd.DataFrame
    compute: pd.DataFrame


@pytest.fixture(scope="module")
def program() -> Path:
    return engine()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traced") / "small.gguf"
    write_synthetic(path, GEOMETRIES["small"])
    return path


def traced(program: Path, model: Path, folder: Path, *flags: str, arch: str = "qwen3moe") -> Traced:
    files = {kind: folder / f"{kind}.csv" for kind in ("route", "io", "compute")}
    written = [word for kind, path in files.items() for word in (f"--{kind}-trace", str(path))]
    records = run(
        *(program, model, folder, "--moe-stream", *written, *flags),
        prompt=PROMPT,
        tokens=TOKENS,
        batch=BATCH,
    )
    tables = {}
    for kind, path in files.items():
        assert path.read_text().startswith(f"# {kind}_trace v1\n# model={model} arch={arch} ")
        tables[kind] = pd.read_csv(path, comment="#")
        assert not tables[kind].drop(columns="weight", errors="ignore").isna().any().any()
    total = records["summary"]["total"]
    return Traced(total, total["wall_ms"], **tables)


RUNS = {
    "no cache": (),
    "a cache": ("--cache-mb", CACHE_MB),
    "overlap": ("--cache-mb", CACHE_MB, "--overlap"),
    # a cache that holds a token's cycle holds what the previous token used: nothing to prefetch
    "previous token": ("--cache-mb", "1", "--force-cache", "--overlap", "--prefetch", "2"),
    "prediction": ("--cache-mb", CACHE_MB, "--predict-prefetch", "--predict-horizon", "1"),
    "dropping": ("--cache-mb", CACHE_MB, "--drop-cold-experts", "1"),
}


@pytest.mark.parametrize("kind", RUNS)
def test_traces_add_up_to_the_counters(
    kind: str, program: Path, model: Path, tmp_path: Path
) -> None:
    run_of = traced(program, model, tmp_path, *RUNS[kind])
    total, info = run_of.total, model_info(model)
    io, route, compute = run_of.io, run_of.route, run_of.compute

    assert io["read_bytes"].sum() == total["read_bytes"] > 0
    assert io.loc[io["spec"] == 1, "read_bytes"].sum() == (total["spec_read_bytes"] or 0)
    assert (io["read_bytes"] >= io["req_bytes"]).all()

    # every part of what was missed is read once: by demand, or already by speculation
    assert route["expert_bytes"].sum() == total["misses"] * info.expert_bytes_max
    if total["spec_experts"] is None:
        assert io["req_bytes"].sum() == route["expert_bytes"].sum()

    cell = ["turn", "phase", "step", "layer", "slot"]
    assert not route.duplicated(cell).any()
    assert set(route.groupby(cell[:-1]).size()) == {info.n_expert_used}
    steps = route.loc[route["phase"] == 1, "step"]
    assert sorted(set(steps)) == list(range(len(PROMPT), len(PROMPT) + TOKENS))
    asked = route[route["dropped"] == 0]
    # in a prompt's batches an expert is requested once for many tokens
    decoded = asked[asked["phase"] == 1]
    requests = decoded.groupby(["step", "layer"])["expert"].nunique().sum()
    prompt = asked[asked["phase"] == 0]
    requests += prompt.groupby([prompt["step"] // BATCH, "layer"])["expert"].nunique().sum()
    assert requests == total["requests"]
    first_uses = (route["residency"] == 2).sum()
    assert first_uses == (total["spec_useful"] or 0)
    assert route["dropped"].sum() == (total["dropped"] or 0)

    # nodes in order of execution, of every layer, within the time of their decodes
    assert (compute.groupby("step")["seq"].diff().dropna() == 1).all()
    assert set(compute["layer"]) == {-1, *range(info.n_layer)}
    assert 0 < compute["wall_ns"].sum() < 1e6 * run_of.wall_ms

    if kind in ("previous token", "prediction"):
        assert total["spec_read_bytes"] > 0
    if kind == "dropping":
        assert total["dropped"] > 0


def test_layers_of_the_compute_trace_are_whole(program: Path, model: Path, tmp_path: Path) -> None:
    by_layer = ("--cache-mb", CACHE_MB, "--compute-trace-by", "layer")
    compute = traced(program, model, tmp_path, *by_layer).compute
    assert set(compute["op"]) == {"layer"}
    rows = compute.groupby(["step", "name"]).size()
    n_layer = model_info(model).n_layer
    last = compute["step"].max()
    assert {f"layer-{i}" for i in range(n_layer)} <= set(rows[last].index)
    assert (rows[last].drop("other", errors="ignore") == 1).all()


@pytest.mark.parametrize("arch", list(ARCHITECTURES))
def test_of_a_prompt_the_last_layer_computes_the_last_token(
    arch: str, program: Path, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    write_synthetic(path, GEOMETRIES["tiny"], arch=arch)
    route = traced(program, path, tmp_path, arch=arch).route
    prompt = route[route["phase"] == 0]
    last = prompt["layer"].max()
    assert set(prompt.loc[prompt["layer"] == last, "step"]) == {len(PROMPT) - 1}
    assert set(prompt.loc[prompt["layer"] != last, "step"]) == set(range(len(PROMPT)))
