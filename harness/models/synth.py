"""Synthetic models: random weights in a named geometry, the same bytes for the same seed.

They say nothing, but the engine does with them what it does with real ones: a valid tokenizer (one
token per byte), every tensor of the architecture, weights of a size that keeps activations finite.
Everything is a table: `ARCHITECTURES` says which tensors, `GEOMETRIES` how large, `BLOCKS` how a
random block of each weight type is filled. Needs numpy; it is imported when weights are made.

The random bits come from PCG64's raw stream, which numpy keeps stable across versions, and every
tensor has a stream of its own, named by its name.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import UsageError
from harness.models.ggml_types import BY_NAME, GgmlType
from harness.models.gguf_write import Meta, TensorPlan, encode_field, write_gguf
from harness.models.weights import BLOCKS

if TYPE_CHECKING:
    import numpy as np

# raised when the bytes for a seed change
RECIPE = 1
PIECE_BYTES = 4 * 2**20
DENSE_TYPE = "Q8_0"
SPECIAL_TOKENS = ("<|begin|>", "<|end|>")


@dataclass(frozen=True)
class Geometry:
    """Sizes of a model; lengths in elements."""

    about: str
    n_layer: int
    n_expert: int
    n_expert_used: int
    n_embd: int
    n_ff_expert: int
    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int = 64
    n_ctx: int = 4096
    arch: str = "qwen3moe"


# widths are multiples of 256, so that every weight type fits
GEOMETRIES: dict[str, Geometry] = {
    "tiny": Geometry("smallest: unit tests", 4, 8, 2, 256, 256),
    "small": Geometry("routing like a real model's", 4, 32, 4, 256, 256),
    "wide": Geometry(
        "megabytes per expert, 1.3 GiB in Q4_K", 16, 64, 8, 1024, 768, n_head=8, head_dim=128
    ),
}


@dataclass(frozen=True)
class Piece:
    """A tensor of an architecture. `scale` multiplies its standard deviation; None: all ones."""

    name: str
    dims: Callable[[Geometry, int], tuple[int, ...]]
    kind: str  # "expert", "dense" or "exact" (F32)
    scale: float | None = 1.0


@dataclass(frozen=True)
class Architecture:
    """Tensors of the whole model, of each layer, and the metadata that goes with them."""

    globals: tuple[Piece, ...]
    layer: tuple[Piece, ...]
    fields: Callable[[Geometry], dict[str, Meta]]


def _qwen3moe_fields(g: Geometry) -> dict[str, Meta]:
    return {
        "attention.key_length": g.head_dim,
        "attention.value_length": g.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 1e6,
    }


# The router's rows are larger than the rest: otherwise all experts would be about equally likely,
# and which of them is chosen would hang on the last bit.
ARCHITECTURES: dict[str, Architecture] = {
    "qwen3moe": Architecture(
        globals=(
            Piece("token_embd.weight", lambda g, v: (g.n_embd, v), "dense"),
            Piece("output_norm.weight", lambda g, v: (g.n_embd,), "exact", None),
            Piece("output.weight", lambda g, v: (g.n_embd, v), "dense"),
        ),
        layer=(
            Piece("attn_norm.weight", lambda g, v: (g.n_embd,), "exact", None),
            Piece("attn_q.weight", lambda g, v: (g.n_embd, g.n_head * g.head_dim), "dense"),
            Piece("attn_k.weight", lambda g, v: (g.n_embd, g.n_head_kv * g.head_dim), "dense"),
            Piece("attn_v.weight", lambda g, v: (g.n_embd, g.n_head_kv * g.head_dim), "dense"),
            Piece("attn_output.weight", lambda g, v: (g.n_head * g.head_dim, g.n_embd), "dense"),
            Piece("attn_q_norm.weight", lambda g, v: (g.head_dim,), "exact", None),
            Piece("attn_k_norm.weight", lambda g, v: (g.head_dim,), "exact", None),
            Piece("ffn_norm.weight", lambda g, v: (g.n_embd,), "exact", None),
            Piece("ffn_gate_inp.weight", lambda g, v: (g.n_embd, g.n_expert), "exact", 4.0),
            Piece(
                "ffn_gate_exps.weight",
                lambda g, v: (g.n_embd, g.n_ff_expert, g.n_expert),
                "expert",
            ),
            Piece(
                "ffn_up_exps.weight", lambda g, v: (g.n_embd, g.n_ff_expert, g.n_expert), "expert"
            ),
            Piece(
                "ffn_down_exps.weight",
                lambda g, v: (g.n_ff_expert, g.n_embd, g.n_expert),
                "expert",
            ),
        ),
        fields=_qwen3moe_fields,
    )
}


def geometry(name: str) -> Geometry:
    """A geometry by name. UsageError lists the known ones."""
    found = GEOMETRIES.get(name)
    if found is None:
        raise UsageError(f"model.geometry: {name!r} is none of {', '.join(GEOMETRIES)}")
    return found


def weight_type(name: str) -> GgmlType:
    """A type that random weights can be made in. UsageError lists them."""
    if name not in BLOCKS:
        raise UsageError(f"model.weights: {name!r} is none of {', '.join(BLOCKS)}")
    return BY_NAME[name]


def write_synthetic(
    path: Path,
    shape: Geometry,
    *,
    seed: int = 0,
    weights: str = "Q4_K",
    tick: Callable[[int, int], None] | None = None,
) -> str:
    """Write a model with random weights, experts of type `weights`; returns its SHA-256.

    `tick` receives bytes written and bytes in all. UsageError for sizes that the type cannot hold.
    """
    expert = weight_type(weights)
    arch = ARCHITECTURES[shape.arch]
    tokens = _tokens()
    plans = [
        _plan(prefix + piece.name, piece, piece.dims(shape, len(tokens)), seed, expert)
        for prefix, pieces in [
            ("", arch.globals),
            *((f"blk.{i}.", arch.layer) for i in range(shape.n_layer)),
        ]
        for piece in pieces
    ]
    fields = [encode_field(k, v) for k, v in _fields(shape, arch, tokens, seed, weights).items()]
    return write_gguf(path, fields, plans, tick=tick)


def _fields(
    g: Geometry, arch: Architecture, tokens: list[str], seed: int, weights: str
) -> dict[str, Meta]:
    sizes: dict[str, Meta] = {
        "block_count": g.n_layer,
        "context_length": g.n_ctx,
        "embedding_length": g.n_embd,
        "feed_forward_length": g.n_ff_expert,
        "expert_feed_forward_length": g.n_ff_expert,
        "expert_count": g.n_expert,
        "expert_used_count": g.n_expert_used,
        "attention.head_count": g.n_head,
        "attention.head_count_kv": g.n_head_kv,
        **arch.fields(g),
    }
    return {
        "general.architecture": g.arch,
        "general.type": "model",
        "general.name": f"synthetic {g.n_layer}x{g.n_expert} top-{g.n_expert_used} {weights} "
        f"seed {seed}",
        "general.quantization_version": 2,
        **{f"{g.arch}.{key}": value for key, value in sizes.items()},
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        # 1 normal, 3 control
        "tokenizer.ggml.token_type": [1] * (len(tokens) - len(SPECIAL_TOKENS))
        + [3] * len(SPECIAL_TOKENS),
        # llama.cpp wants a list of merges; these make tokens that exist
        "tokenizer.ggml.merges": ["t h", "Ġ t"],
        "tokenizer.ggml.bos_token_id": len(tokens) - 2,
        "tokenizer.ggml.eos_token_id": len(tokens) - 1,
        "tokenizer.ggml.add_bos_token": False,
    }


def _tokens() -> list[str]:
    """One token per byte as GPT-2 spells them, two merged ones, begin and end."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spelled = {b: chr(b) for b in printable}
    shifted = 0
    for b in range(256):
        if b not in spelled:
            spelled[b] = chr(256 + shifted)
            shifted += 1
    return [*(spelled[b] for b in range(256)), "th", "Ġt", *SPECIAL_TOKENS]


def _plan(
    name: str, piece: Piece, dims: tuple[int, ...], seed: int, expert: GgmlType
) -> TensorPlan:
    kind = {"expert": expert, "dense": BY_NAME[DENSE_TYPE], "exact": BY_NAME["F32"]}[piece.kind]
    if dims[0] % kind.block:
        raise UsageError(f"model.weights: {kind.name} needs rows of a multiple of {kind.block}")
    plan = TensorPlan(name, dims, kind, lambda: iter(()))
    if piece.scale is None:
        return replace(plan, data=lambda: _ones(dims[0]))
    sd = piece.scale / dims[0] ** 0.5
    return replace(plan, data=lambda: _random(name, kind, plan.n_bytes, sd, seed))


def _ones(n: int) -> Iterator[bytes]:
    import numpy as np

    yield np.ones(n, dtype="<f4").tobytes()


def _random(name: str, kind: GgmlType, n_bytes: int, sd: float, seed: int) -> Iterator[memoryview]:
    bits = bit_stream(name, seed)
    fill = BLOCKS[kind.name]
    left = n_bytes // kind.block_bytes
    step = PIECE_BYTES // kind.block_bytes
    while left:
        n = min(left, step)
        yield fill(bits, n, sd).reshape(-1).data
        left -= n


def bit_stream(name: str, seed: int) -> Callable[[int], np.ndarray[Any, np.dtype[np.uint8]]]:
    """A function that returns the next n random bytes of the stream called `name`."""
    import numpy as np

    source = np.random.PCG64(np.random.SeedSequence([seed, zlib.crc32(name.encode())]))

    def take(n: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        words = source.random_raw(-(-n // 8)).astype("<u8")
        return words.view(np.uint8)[:n]

    return take
