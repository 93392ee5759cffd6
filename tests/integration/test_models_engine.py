"""Made models in the real engine: they load, their facts agree, inflating changes no bit."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from engine_parts import facts_agree, outputs, run

from harness.build import EngineBuild, ensure_engine
from harness.models import model_info, resolve_model
from harness.models.geometry import GEOMETRIES
from harness.models.inflate import inflate
from harness.models.resolve import DATA, REFERENCE
from harness.models.synth import write_synthetic
from harness.models.weights import BLOCKS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

STREAM = ("--moe-stream", "--io-threads", "2", "--dense-weights", "anon")


@pytest.fixture(scope="session")
def build() -> EngineBuild:
    """The engine from the user's cache, built when it is not there yet (minutes)."""
    return ensure_engine()


def test_the_second_time_costs_nothing(build: EngineBuild) -> None:
    start = time.monotonic()
    again = ensure_engine()
    assert time.monotonic() - start < 60  # to build it takes minutes
    assert again.source == "cached"
    assert again.engine == build.engine


@pytest.mark.parametrize("weights", list(BLOCKS))
def test_every_weight_type_runs_and_its_facts_agree(
    weights: str, build: EngineBuild, tmp_path: Path
) -> None:
    path = tmp_path / "tiny.gguf"
    write_synthetic(path, GEOMETRIES["tiny"], weights=weights)
    plain = run(build.engine, path, tmp_path)
    facts_agree(model_info(path), plain["start"]["model"])
    streamed = run(build.engine, path, tmp_path, *STREAM, "--cache-mb", "0")
    assert outputs(streamed) == outputs(plain)


def bases(tmp_path: Path) -> list[Path]:
    """What is inflated: one model of each padded kind, and the reference where it is."""
    found = []
    for weights in ("Q4_K", "Q6_K", "Q8_0", "F16"):
        path = tmp_path / f"small-{weights}.gguf"
        write_synthetic(path, GEOMETRIES["small"], weights=weights, seed=7)
        found.append(path)
    reference = DATA / REFERENCE
    return [*found, reference] if reference.is_file() else found


@pytest.mark.parametrize("factor", [2, 7])
def test_inflating_changes_no_bit_of_any_logit(
    factor: int, build: EngineBuild, tmp_path: Path
) -> None:
    for base in bases(tmp_path):
        wide = tmp_path / "wide.gguf"
        inflate(base, wide, factor)
        expected = outputs(run(build.engine, base, tmp_path))
        plain = run(build.engine, wide, tmp_path)
        assert outputs(plain) == expected, base.name
        facts_agree(model_info(wide), plain["start"]["model"])
        assert model_info(wide).expert_bytes == factor * model_info(base).expert_bytes
        for cache in (["0"], ["8", "--force-cache"]):  # some models' token needs more than 8 MiB
            streamed = run(build.engine, wide, tmp_path, *STREAM, "--cache-mb", *cache)
            assert outputs(streamed) == expected, (base.name, cache)


def test_seeds_give_different_text(build: EngineBuild, tmp_path: Path) -> None:
    made = [
        resolve_model(
            {"kind": "synthetic", "geometry": "tiny", "weights": "Q4_K", "seed": seed},
            cache_dir=tmp_path / "cache",
        )
        for seed in (0, 1)
    ]
    a, b = (outputs(run(build.engine, m.path, tmp_path)) for m in made)
    assert a != b
