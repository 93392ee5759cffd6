"""Synthetic models: random weights in a named geometry, the same bytes for the same seed.

They say nothing, but the engine does with them what it does with real ones: a valid tokenizer (one
token per byte), every tensor of the architecture, weights of a size that keeps activations finite.
Everything is a table: `ARCHITECTURES` says which tensors, `GEOMETRIES` how large, `BLOCKS` how a
random block of each weight type is filled. Needs numpy; it is imported when weights are made.

The random bits come from PCG64's raw stream, which numpy keeps stable across versions, and every
tensor has a stream of its own, named by its name.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import UsageError
from harness.models.architectures import Architecture, architecture
from harness.models.architectures.pieces import Piece, matrix, norm
from harness.models.geometry import Geometry
from harness.models.ggml_types import BY_NAME, GgmlType
from harness.models.gguf_write import Meta, TensorPlan, encode_field, write_gguf
from harness.models.layer_types import LayerTypes, layer_types
from harness.models.shards import write_shards
from harness.models.weights import BLOCKS

if TYPE_CHECKING:
    import numpy as np

# raised when the bytes for a seed change
RECIPE = 2
PIECE_BYTES = 4 * 2**20
DENSE_TYPE = "Q8_0"
SPECIAL_TOKENS = ("<|begin|>", "<|end|>")


def weights_label(shape: Geometry, arch: str, weights: str | None) -> str:
    """The types of the expert tensors: as asked, else by first use (`Q4_K`, `Q4_K+BF16`)."""
    found = architecture(arch)
    if weights is not None:
        return layer_types(weights, shape.n_layer + found.speculative).text
    names = [
        _expert_type(found, shape, i, piece, None).name
        for i in range(shape.n_layer)
        for piece in found.layer(shape, i)
        if piece.kind == "expert"
    ]
    return "+".join(dict.fromkeys(names))


def write_synthetic(
    path: Path,
    shape: Geometry,
    *,
    arch: str = "qwen3moe",
    seed: int = 0,
    weights: str | None = None,
    shards: int = 1,
    tick: Callable[[int, int], None] | None = None,
) -> str:
    """Write a model with random weights; returns its SHA-256, with shards that of their hashes.

    `weights` says of which type the experts are (`layer_types`), None: what the architecture has.
    With `shards` above 1 `path` is the first of them. `tick` receives bytes written and bytes in
    all. UsageError for sizes that a type cannot hold.
    """
    found = architecture(arch)
    given = None if weights is None else layer_types(weights, shape.n_layer + found.speculative)
    tokens = _tokens()
    plans = [
        _plan(p.name, p, BY_NAME[_dense_type(p)], seed) for p in _globals(shape, found, tokens)
    ]
    for i in range(shape.n_layer + found.speculative):
        for piece in found.layer(shape, i):
            kind = (
                _expert_type(found, shape, i, piece, given)
                if piece.kind == "expert"
                else BY_NAME[_dense_type(piece)]
            )
            plans.append(_plan(f"blk.{i}.{piece.name}", piece, kind, seed))
    title = (
        f"synthetic {shape.n_layer}x{shape.n_expert} top-{shape.n_expert_used} "
        f"{weights_label(shape, arch, weights)} seed {seed}"
    )
    fields = [encode_field(k, v) for k, v in _fields(shape, arch, found, title, tokens).items()]
    if shards == 1:
        return write_gguf(path, fields, plans, tick=tick)
    return write_shards(path, fields, plans, shards, tick)


def _globals(g: Geometry, arch: Architecture, tokens: list[str]) -> list[Piece]:
    output = [] if arch.tied else [matrix("output", g.n_embd, len(tokens))]
    embedding = matrix("token_embd", g.n_embd, len(tokens))
    return [embedding, norm(arch.output_norm, g.n_embd), *output, *arch.others(g)]


def _dense_type(piece: Piece) -> str:
    return "F32" if piece.kind == "exact" else DENSE_TYPE


def _expert_type(
    arch: Architecture, g: Geometry, layer: int, piece: Piece, given: LayerTypes | None
) -> GgmlType:
    if given is not None:
        return given.of(layer)
    return BY_NAME[arch.other_weights(g, layer, piece.name) or arch.weights]


def _fields(
    g: Geometry, name: str, arch: Architecture, title: str, tokens: list[str]
) -> dict[str, Meta]:
    sizes: dict[str, Meta] = {
        "block_count": g.n_layer + arch.speculative,
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
        "general.architecture": name,
        "general.type": "model",
        "general.name": title,
        "general.quantization_version": 2,
        **{f"{name}.{key}": value for key, value in sizes.items()},
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


def _plan(name: str, piece: Piece, kind: GgmlType, seed: int) -> TensorPlan:
    if piece.dims[0] % kind.block:
        raise UsageError(f"model.weights: {kind.name} needs rows of a multiple of {kind.block}")
    plan = TensorPlan(name, piece.dims, kind, lambda: iter(()))
    sd = piece.sd
    if sd is None:
        return replace(plan, data=lambda: _filled(math.prod(piece.dims), piece.fill))
    return replace(plan, data=lambda: _random(name, kind, plan.n_bytes, sd, seed))


def _filled(n: int, value: float) -> Iterator[bytes]:
    import numpy as np

    yield np.full(n, value, dtype="<f4").tobytes()


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
