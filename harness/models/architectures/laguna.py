"""laguna: a leading dense layer, a shared expert, experts of two types, gated attention. Pure."""

from __future__ import annotations

from harness.models.architectures.base import (
    LEADING_DENSE,
    WINDOW,
    Architecture,
    Fields,
    dense_width,
    head_sizes,
    rms,
    sigmoid_routing,
    yarn,
)
from harness.models.architectures.pieces import (
    Piece,
    choice_bias,
    experts,
    feed_forward,
    matrix,
    norm,
    projections,
    qk_norms,
    router,
)
from harness.models.geometry import Geometry

FULL_ATTENTION_EVERY = 4


def _heads(g: Geometry, layer: int) -> int:
    """More heads where the window slides."""
    return g.n_head if layer % FULL_ATTENTION_EVERY == 0 else 2 * g.n_head


def _fields(g: Geometry) -> Fields:
    return {
        **head_sizes(g),
        **rms(),
        **sigmoid_routing(g),
        "expert_weights_norm": True,
        "expert_weights_scale": 2.5,
        "expert_shared_count": 1,
        "expert_shared_feed_forward_length": g.n_ff_expert,
        "attention.head_count": [_heads(g, i) for i in range(g.n_layer)],
        "attention.sliding_window": WINDOW,
        "rope.freq_base": 5e5,
        "rope.freq_base_swa": 1e4,
        "rope.dimension_count": g.head_dim // 2,
        "rope.dimension_count_swa": g.head_dim,
        **yarn(g),
    }


def _layer(g: Geometry, layer: int) -> list[Piece]:
    heads = _heads(g, layer)
    attention = [
        norm("attn_norm", g.n_embd),
        *projections(g, heads, g.n_head_kv, g.head_dim),
        *qk_norms(g.head_dim),
        matrix("attn_gate", g.n_embd, heads),
        norm("ffn_norm", g.n_embd),
    ]
    if layer < LEADING_DENSE:
        return [*attention, *feed_forward(g, dense_width(g))]
    shared = feed_forward(g, g.n_ff_expert, "_shexp")
    return [*attention, router(g), choice_bias(g), *experts(g), *shared]


def _better_last_layer(g: Geometry, layer: int, name: str) -> str | None:
    return "BF16" if layer == g.n_layer - 1 else None


LAGUNA = Architecture(
    "a leading dense layer, a shared expert, the last layer's experts of another type",
    _fields,
    _layer,
    other_weights=_better_last_layer,
)
