"""gpt-oss: biases of experts, router and attention, attention sinks, sliding windows. Pure."""

from __future__ import annotations

from harness.models.architectures.base import (
    WINDOW,
    Architecture,
    Fields,
    head_sizes,
    rms,
    yarn,
)
from harness.models.architectures.pieces import (
    Piece,
    biased,
    exact,
    experts,
    norm,
    projections,
    router,
)
from harness.models.geometry import Geometry


def _fields(g: Geometry) -> Fields:
    return {
        **head_sizes(g),
        **rms(1e-5),
        "attention.sliding_window": WINDOW,
        "rope.freq_base": 150000.0,
        **yarn(g),
    }


def _layer(g: Geometry, layer: int) -> list[Piece]:
    return [
        norm("attn_norm", g.n_embd),
        *biased(*projections(g, g.n_head, g.n_head_kv, g.head_dim)),
        exact("attn_sinks.weight", g.n_head, sd=1.0),
        norm("post_attention_norm", g.n_embd),
        *biased(router(g), *experts(g)),
    ]


GPT_OSS = Architecture(
    "biases of experts and router, attention sinks, sliding windows, MXFP4",
    _fields,
    _layer,
    weights="MXFP4",
)
