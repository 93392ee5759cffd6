"""Every architecture in the real engine: streamed, its text and all its logits are those of plain.

Each model has few layers of random experts (`harness/models/architectures`); the prompt is varied,
longer than a sliding window, and evaluated in batches, so that prefill and decoding are compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from engine_parts import engine, facts_agree, outputs, run

from harness.models import model_info
from harness.models.architectures import ARCHITECTURES
from harness.models.architectures.base import WINDOW
from harness.models.geometry import GEOMETRIES
from harness.models.gguf_info import EXPERT_TENSOR, read_model
from harness.models.inflate import inflate
from harness.models.synth import write_synthetic

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

# one token per byte: 5 batches, the last of them short
PROMPT = (
    "Of 7 quick foxes, 42 (so they SAY) did not jump; what, then, is a fox?\n"
    "\tx = [0x3f, -1.5e3] # ~{|}~ And the lazy dog?"
)
BATCH = 24
TOKENS = 12
MIB = 2**20
# more than all experts of any of the models
WHOLE_MB = 32

Records = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Plain:
    """A model on disk and what plain execution makes of it."""

    path: Path
    folder: Path
    records: Records


@pytest.fixture(scope="module")
def program() -> Path:
    return engine()


@pytest.fixture(scope="module", params=list(ARCHITECTURES))
def plain(
    request: pytest.FixtureRequest, program: Path, tmp_path_factory: pytest.TempPathFactory
) -> Plain:
    folder = tmp_path_factory.mktemp(request.param)
    path = folder / "model.gguf"
    write_synthetic(path, GEOMETRIES["tiny"], arch=request.param)
    return Plain(path, folder, generate(program, path, folder))


def generate(program: Path, model: Path, folder: Path, *flags: str) -> Records:
    return run(program, model, folder, *flags, prompt=PROMPT, tokens=TOKENS, batch=BATCH)


def streamed(program: Path, model: Path, folder: Path, cache_mb: int, *flags: str) -> Records:
    return generate(program, model, folder, "--moe-stream", "--cache-mb", str(cache_mb), *flags)


def smallest_cache_mb(program: Path, model: Path, folder: Path) -> int:
    """The least that holds what one token routes to."""
    start = streamed(program, model, folder, 0)["start"]
    facts = start["model"]
    cycle = facts["n_moe_layer"] * facts["n_expert_used"] * start["arena"]["slot_bytes"]
    return math.ceil(cycle / MIB)


def test_the_facts_agree_and_the_logits_are_numbers(plain: Plain) -> None:
    start, prefill = plain.records["start"], plain.records["prefill"]
    facts_agree(model_info(plain.path), start["model"])
    assert prefill["n_prompt"] > 3 * WINDOW
    assert prefill["n_prompt"] % BATCH
    # of not-a-number the greatest is always the first token
    assert plain.records["token"]["id"] != 0


def test_the_routed_experts_are_in_the_result(plain: Plain, program: Path) -> None:
    fewer = ("--expert-used", "1")
    alone = outputs(generate(program, plain.path, plain.folder, *fewer))
    assert alone != outputs(plain.records)
    assert outputs(streamed(program, plain.path, plain.folder, 0, *fewer)) == alone


@pytest.mark.parametrize("dense", ["mmap", "anon"])
@pytest.mark.parametrize("reads", ["direct", "buffered"])
@pytest.mark.parametrize("cache", ["off", "small", "whole"])
def test_streaming_changes_no_bit(
    cache: str, reads: str, dense: str, plain: Plain, program: Path
) -> None:
    facts = plain.records["start"]["model"]
    n_experts = facts["n_moe_layer"] * facts["n_expert"]
    size = {"off": 0, "whole": WHOLE_MB}.get(cache)
    if size is None:
        size = smallest_cache_mb(program, plain.path, plain.folder)
    flags = ["--dense-weights", dense, *(["--no-odirect"] if reads == "buffered" else [])]
    records = streamed(program, plain.path, plain.folder, size, *flags)
    assert outputs(records) == outputs(plain.records)

    start, total = records["start"], records["summary"]["total"]
    io = start["direct_io"]
    assert io["effective"] is False if reads == "buffered" else io["effective"] or io["reason"]
    assert total["requests"] == total["hits"] + total["misses"]
    slots = start["arena"]["slots"]
    if cache == "off":
        assert slots == facts["n_expert_used"]
        assert total["hits"] == total["evictions"] == 0
    elif cache == "small":
        assert facts["n_moe_layer"] * facts["n_expert_used"] <= slots < n_experts
        assert total["evictions"] > 0
        assert total["hits"] > 0
    else:
        assert slots == n_experts
        assert total["evictions"] == 0
        assert total["misses"] <= n_experts


@pytest.mark.parametrize(
    "flags",
    [
        "--overlap",
        "--overlap --prefetch 2",
        "--overlap --predict-prefetch --predict-spec-max 4",
        "--predict-prefetch --predict-spec-max 0",
        "--dense-weights warm",
        "--drop-cold-experts 0",
    ],
)
def test_no_mechanism_changes_a_bit(flags: str, plain: Plain, program: Path) -> None:
    small = smallest_cache_mb(program, plain.path, plain.folder)
    records = streamed(program, plain.path, plain.folder, small, *flags.split())
    assert outputs(records) == outputs(plain.records)
    total = records["summary"]["total"]
    assert total["evictions"] > 0
    if "--predict-prefetch" in flags:
        # how many of them are read in time depends on the machine
        assert total["spec_experts"] + total["retained"] > 0
    if "--drop" in flags:
        assert total["routed"] > 0
        assert total["dropped"] == 0


@pytest.mark.parametrize("flags", ["--overlap", "--load-all"])
def test_nothing_that_reads_without_a_cache_changes_a_bit(
    flags: str, plain: Plain, program: Path
) -> None:
    records = streamed(program, plain.path, plain.folder, 0, flags)
    assert outputs(records) == outputs(plain.records)
    alone = streamed(program, plain.path, plain.folder, 0)
    read, needed = (r["summary"]["total"]["read_bytes"] for r in (records, alone))
    assert read > needed if flags == "--load-all" else read == needed


def test_the_router_is_known_exactly(plain: Plain, program: Path) -> None:
    """The control repeats each layer's choice on its own input, whatever the way to choose."""
    small = smallest_cache_mb(program, plain.path, plain.folder)
    records = streamed(program, plain.path, plain.folder, small, "--predict-log")
    assert outputs(records) == outputs(plain.records)
    control = records["summary"]["prediction"]["predictors"]["control"]
    assert control["routings"] == TOKENS * records["start"]["model"]["n_moe_layer"]
    assert control["exact"] == control["routings"]


def test_a_recorded_routing_can_be_forced(plain: Plain, program: Path) -> None:
    trace = plain.folder / "routes.csv"

    def total(*flags: str) -> dict[str, Any]:
        records = streamed(program, plain.path, plain.folder, WHOLE_MB, *flags)
        assert outputs(records) == outputs(plain.records)
        forced = records["start"]["forced_routes"]
        assert forced is None if flags[0] != "--forced-routes" else forced["exact"]
        return dict(records["summary"]["total"])

    recorded = total("--route-trace", str(trace))
    forced = total("--forced-routes", str(trace))
    for counter in ("requests", "hits", "misses"):
        assert forced[counter] == recorded[counter] > 0, counter


def test_inflating_changes_no_bit(plain: Plain, program: Path) -> None:
    wide = plain.folder / "wide.gguf"
    inflate(plain.path, wide, 3)
    records = generate(program, wide, plain.folder)
    assert outputs(records) == outputs(plain.records)
    facts_agree(model_info(wide), records["start"]["model"])
    assert model_info(wide).expert_bytes == 3 * model_info(plain.path).expert_bytes
    small = smallest_cache_mb(program, wide, plain.folder)
    assert outputs(streamed(program, wide, plain.folder, small)) == outputs(plain.records)


@pytest.mark.parametrize("arch", ["laguna", "gpt-oss"])
def test_shards_change_no_bit(arch: str, program: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole.gguf"
    write_synthetic(whole, GEOMETRIES["tiny"], arch=arch)
    expected = outputs(generate(program, whole, tmp_path))
    first = tmp_path / "parts-00001-of-00003.gguf"
    write_synthetic(first, GEOMETRIES["tiny"], arch=arch, shards=3)

    shards_of: dict[int, set[Path]] = {}
    for header in read_model(first):
        for tensor in header.tensors:
            if (match := EXPERT_TENSOR.fullmatch(tensor.name)) is not None:
                shards_of.setdefault(int(match[1]), set()).add(header.path)
    # experts in every shard, and a layer whose parts are in two of them
    assert len(set().union(*shards_of.values())) == 3
    assert max(map(len, shards_of.values())) > 1

    plain = generate(program, first, tmp_path)
    facts_agree(model_info(first), plain["start"]["model"])
    assert outputs(plain) == expected
    small = smallest_cache_mb(program, first, tmp_path)
    for cache in (0, small):
        for flags in ((), ("--no-odirect", "--dense-weights", "anon")):
            records = streamed(program, first, tmp_path, cache, *flags)
            assert outputs(records) == expected, (cache, flags)
            assert (records["summary"]["total"]["evictions"] > 0) == (cache > 0)
