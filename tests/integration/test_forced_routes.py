"""Recorded routings forced upon the real engine: its cache does what the traced engine's did.

The recorded traces of Qwen3-30B-A3B and gpt-oss-120B are not part of the project. They are looked
for in `data/routes` of MOE_SHARED_DIR, or of `shared` beside the project.
"""

from __future__ import annotations

import json
import resource
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from engine_parts import engine, run
from shared_data import SHARED

from harness.models.geometry import GEOMETRIES, Geometry
from harness.models.synth import write_synthetic

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

MIB = 2**20
AGES, SIDES = ("stale", "current"), ("left", "right")
CELL = ["turn", "phase", "step", "layer", "slot"]

Make = Callable[..., Path]


@pytest.fixture(scope="module")
def program() -> Path:
    return engine()


@pytest.fixture(scope="module")
def routed(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Makes the smallest model of so many layers, experts and experts per token."""

    def make(n_layer: int, n_expert: int, n_used: int, arch: str = "qwen3moe") -> Path:
        path = tmp_path_factory.mktemp("routed") / "model.gguf"
        shape = Geometry("", n_layer, n_expert, n_used, 32, 32, n_head=1, n_head_kv=1, head_dim=32)
        write_synthetic(path, shape, arch=arch, weights="Q8_0")
        return path

    return make


def forced(
    program: Path,
    model: Path,
    trace: Path,
    cache_mb: int,
    *flags: str,
    prompt: int,
    tokens: int,
) -> dict[str, dict[str, Any]]:
    """Generates with the trace's routing, the whole prompt in one batch; traces it anew."""
    streaming = ["--moe-stream", "--cache-mb", str(cache_mb), "--forced-routes", str(trace)]
    written = ["--route-trace", str(model.with_name("route.csv"))]
    return run(
        *(program, model, model.parent, *streaming, *written, *flags),
        prompt="x" * prompt,
        tokens=tokens,
        batch=prompt,
    )


def routes(path: Path) -> pd.DataFrame:
    """The rows of a route trace, with what is comparable of their bytes: whether there are any."""
    rows = pd.read_csv(path, comment="#")
    rows["charged"] = rows["expert_bytes"] > 0
    return rows


@dataclass(frozen=True)
class Recorded:
    """What is known of a recorded run: its model, its length, and its log's hit rate."""

    name: str
    arch: str
    n_layer: int
    n_used: int
    prompt: int
    tokens: int
    cache_mb: int
    hit_percent: float
    requests: int
    misses: int

    @property
    def trace(self) -> Path:
        path = SHARED / "data" / "routes" / f"{self.name}.route.csv"
        if not path.is_file():
            pytest.skip(f"no {path}: MOE_SHARED_DIR names the folder above data/")
        return path


RECORDED = [
    Recorded("qwen", "qwen3moe", 48, 6, 28, 128, 4000, 74.9, 39526, 9929),
    Recorded("gptoss", "gpt-oss", 36, 2, 85, 64, 3000, 32.4, 6375, 4309),
]


@pytest.mark.parametrize("was", RECORDED, ids=lambda was: was.name)
def test_a_recorded_run_is_repeated_hit_by_hit(was: Recorded, program: Path, routed: Make) -> None:
    trace, model = was.trace, routed(was.n_layer, 128, was.n_used, was.arch)
    length = {"prompt": was.prompt, "tokens": was.tokens}
    records = forced(program, model, trace, was.cache_mb, **length)
    assert records["start"]["forced_routes"]["exact"]
    assert records["prefill"]["n_prompt"] == was.prompt
    total = records["summary"]["total"]
    assert (total["requests"], total["misses"]) == (was.requests, was.misses)
    assert round(100 * total["hits"] / total["requests"], 1) == was.hit_percent
    assert total["evictions"] > 0

    theirs, ours = routes(trace), routes(model.with_name("route.csv"))
    told = [*CELL, "expert", "residency", "charged"]
    pd.testing.assert_frame_equal(ours[told], theirs[told])

    # below one token's cycle nothing is ever there when it is needed
    records = forced(program, model, trace, 500, "--force-cache", **length)
    assert records["start"]["arena"]["cycle_bytes"] > 500 * MIB
    total = records["summary"]["total"]
    assert (total["requests"], total["hits"]) == (was.requests, 0)


# Hits of all requests by policy, in percent, at the recorded sizes: the table in docs/eviction.md.
HIT_PERCENT = {
    "qwen": {
        "lru": 74.88, "ls": 57.14, "ls_pos": 60.57, "lfu": 75.35, "layer": 74.67,
        "reuse_distance": 77.27,
    },
    "gptoss": {
        "lru": 32.41, "ls": 17.73, "ls_pos": 17.36, "lfu": 31.50, "layer": 33.40,
        "reuse_distance": 33.77,
    },
}  # fmt: skip


@pytest.mark.parametrize("was", RECORDED, ids=lambda was: was.name)
def test_policies_differ_in_hits_alone_and_our_own_beats_lru(
    was: Recorded, program: Path, routed: Make
) -> None:
    trace, model = was.trace, routed(was.n_layer, 128, was.n_used, was.arch)
    hit_percent = {}
    for policy in HIT_PERCENT[was.name]:
        records = forced(
            *(program, model, trace, was.cache_mb, "--evict", policy),
            prompt=was.prompt,
            tokens=was.tokens,
        )
        total = records["summary"]["total"]
        assert total["requests"] == was.requests
        groups = [total[f"evict_{age}_{side}"] for age in AGES for side in SIDES]
        assert sum(groups) == total["evictions"] > 0
        hit_percent[policy] = 100 * total["hits"] / total["requests"]
    assert hit_percent == pytest.approx(HIT_PERCENT[was.name], abs=0.05)
    assert hit_percent["reuse_distance"] > hit_percent["lru"]


# Experts of layer 0 weigh 2 MiB, those of layer 1 one; the cache holds 4 MiB. Of layer 1 only the
# prompt's last token is computed. Beside each route: what is resident after it, least recent first.
PREAMBLE = """\
# route_trace v1
# model=/traced.gguf arch=qwen3moe n_layer=2 n_expert=4 n_expert_used=1
# layer=0 expert_bytes=2097152 dense_bytes=1
# layer=1 expert_bytes=1048576 dense_bytes=1
turn,phase,step,layer,slot,expert,weight,residency,expert_bytes
"""
ROUTES = [
    # step, layer, expert, residency
    (0, 0, 0, 0),
    (1, 0, 1, 0),  # a0 a1: 4 MiB
    (1, 1, 0, 0),  # a1 b0: 3 MiB, a0 went
    (2, 0, 1, 1),  # b0 a1
    (2, 1, 1, 0),  # b0 a1 b1: 4 MiB
    (3, 0, 0, 0),  # b1 a0: 3 MiB, b0 and a1 went
    (3, 1, 1, 1),  # a0 b1
    (4, 0, 0, 1),  # b1 a0
    (4, 1, 0, 0),  # b1 a0 b0: 4 MiB
]
PROMPT, TOKENS, CACHE_MB, CYCLE_MB = 2, 3, 4, 3
HITS, EVICTIONS = 3, 3


def trace_lines() -> list[str]:
    """The trace above, a line each."""
    sizes = (2 * MIB, MIB)
    rows = (
        f"0,{int(step >= PROMPT)},{step},{layer},0,{expert},1,{residency},"
        f"{0 if residency else sizes[layer]}"
        for step, layer, expert, residency in ROUTES
    )
    return [*PREAMBLE.splitlines(), *rows]


def write_trace(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.fixture
def by_hand(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "by-hand.csv", trace_lines())


@pytest.mark.parametrize("overlap", [False, True])
def test_the_cache_counts_in_the_traces_bytes(
    overlap: bool, by_hand: Path, program: Path, routed: Make
) -> None:
    model = routed(2, 4, 1)
    flags = ["--overlap"] if overlap else []
    records = forced(program, model, by_hand, CACHE_MB, *flags, prompt=PROMPT, tokens=TOKENS)
    start, total = records["start"], records["summary"]["total"]
    assert start["forced_routes"] == {
        "path": str(by_hand), "layers": 2, "experts": 4, "top_k": 1, "exact": True,
    }  # fmt: skip
    assert start["arena"]["capacity_bytes"] == CACHE_MB * MIB
    assert start["arena"]["cycle_bytes"] == CYCLE_MB * MIB
    assert total["requests"] == len(ROUTES)
    assert (total["hits"], total["evictions"]) == (HITS, EVICTIONS)

    theirs, ours = routes(by_hand), routes(model.with_name("route.csv"))
    told = [*CELL, "expert", "residency", "charged"]
    pd.testing.assert_frame_equal(ours[told], theirs[told])
    assert ours["expert_bytes"].sum() == total["misses"] * start["model"]["expert_bytes_max"]


def test_another_model_gets_routes_of_the_same_rhythm(
    by_hand: Path, program: Path, tmp_path: Path
) -> None:
    model = tmp_path / "tiny.gguf"
    shape = GEOMETRIES["tiny"]
    write_synthetic(model, shape)
    used = ("--expert-used", "1")
    records = forced(program, model, by_hand, 64, *used, prompt=PROMPT, tokens=TOKENS)
    assert records["start"]["forced_routes"]["exact"] is False
    chosen = routes(model.with_name("route.csv")).set_index(["step", "layer"])["expert"]
    last = shape.n_layer - 1
    for step, layer, expert, _ in ROUTES:
        for follower in range(last) if layer == 0 else [last]:
            assert chosen[step, follower] == expert * shape.n_expert // 4


def arguments(program: Path, model: Path, trace: Path, *flags: str) -> list[str]:
    return [
        *(str(program), "-m", str(model), "-p", "x" * PROMPT, "-t", "1", "--moe-stream"),
        *("--forced-routes", str(trace), *flags),
    ]


def test_a_cache_below_the_cycle_is_refused(by_hand: Path, program: Path, routed: Make) -> None:
    small = ("-n", str(TOKENS), "--cache-mb", str(CYCLE_MB - 1))
    command = arguments(program, routed(2, 4, 1), by_hand, *small)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 4
    assert f"--cache-mb {CYCLE_MB} or more" in done.stderr
    done = subprocess.run(
        [*command, "--force-cache"], capture_output=True, check=False, timeout=600
    )
    assert done.returncode == 0


LINES = trace_lines()
WRONG = {
    "no file": (None, (), 5, "cannot read route trace file"),
    "not a trace": (["step,layer"], (), 2, ":1: does not start with '# route_trace v1'"),
    "another top-k": (LINES, ("--expert-used", "2"), 2, "give --expert-used 1"),
    "too few positions": (LINES, ("-n", "4"), 2, "has routes for 5 positions"),
    "a damaged line": ([*LINES[:7], "0,0,1;1,0", *LINES[8:]], (), 2, ":8: 4 columns"),
    "no such expert": ([*LINES[:-1], "0,1,4,1,0,4,1,0,1"], (), 2, "'4' in column 'expert'"),
    "two turns": ([*LINES, "1,0,0,0,0,0,1,1,0"], (), 2, "only traces of one turn"),
    "cut off": (LINES[:-1], (), 2, "has routes for 4 positions"),
    "an automatic cache": (LINES, ("--cache-mb", "auto"), 2, "--cache-mb auto cannot be combined"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_trace_is_refused_in_one_line(
    kind: str, program: Path, routed: Make, tmp_path: Path
) -> None:
    lines, flags, code, words = WRONG[kind]
    trace = tmp_path / "wrong.csv"
    if lines is not None:
        write_trace(trace, lines)
    given = {"-n": str(TOKENS), "--cache-mb": str(CACHE_MB)}
    given |= dict(zip(flags[::2], flags[1::2], strict=True))
    flat = [word for pair in given.items() for word in pair]
    command = arguments(program, routed(2, 4, 1), trace, *flat)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == code
    assert done.stdout == ""
    assert words in done.stderr
    assert done.stderr.startswith("moe-engine: error: ")
    assert done.stderr.count("\n") == 1


def test_the_memory_plan_counts_real_bytes_and_is_kept(
    by_hand: Path, program: Path, routed: Make, tmp_path: Path
) -> None:
    telemetry = tmp_path / "telemetry.jsonl"
    size = ("-n", str(TOKENS), "--cache-mb", str(CACHE_MB))
    command = arguments(program, routed(2, 4, 1), by_hand, *size)
    planned = subprocess.run([*command, "--plan-memory"], capture_output=True, check=True)
    plan = json.loads(planned.stdout)

    def limited(n_bytes: int) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*command, "--telemetry", str(telemetry)],
            capture_output=True,
            check=False,
            timeout=600,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (n_bytes, n_bytes)),
        )

    # plan and run are two processes, and the heaps of two processes differ by a few pages
    done = limited(plan["needed_bytes"] + MIB // 4)
    assert done.returncode == 0, done.stderr
    records = {r["type"]: r for r in map(json.loads, telemetry.read_text().splitlines())}
    arena = records["start"]["arena"]
    assert plan["arena_bytes"] == arena["bytes"] == arena["slots"] * arena["slot_bytes"]
    assert arena["bytes"] < CACHE_MB * MIB
    assert records["summary"]["anon_peak_bytes"] <= plan["needed_bytes"]
    assert limited(plan["needed_bytes"] - MIB // 4).returncode == 4
