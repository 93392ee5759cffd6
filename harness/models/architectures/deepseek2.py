"""deepseek2: latent attention, experts chosen within the best groups, a shared expert. Pure."""

from __future__ import annotations

from harness.models.architectures.base import (
    LEADING_DENSE,
    Architecture,
    Fields,
    dense_width,
    rms,
    sigmoid_routing,
)
from harness.models.architectures.pieces import (
    Piece,
    choice_bias,
    experts,
    feed_forward,
    matrix,
    norm,
    router,
)
from harness.models.geometry import Geometry

GROUPS = 4
GROUPS_USED = 2


def _latent(g: Geometry) -> int:
    return 2 * g.head_dim


def _rotated(g: Geometry) -> int:
    return g.head_dim // 2


def _fields(g: Geometry) -> Fields:
    return {
        **rms(),
        **sigmoid_routing(g),
        "expert_weights_norm": True,
        "expert_weights_scale": 2.5,
        "expert_shared_count": 1,
        "expert_group_count": GROUPS,
        "expert_group_used_count": GROUPS_USED,
        # one head of keys and values for all queries, as wide as the latent
        "attention.head_count_kv": 1,
        "attention.key_length": _latent(g) + _rotated(g),
        "attention.value_length": _latent(g),
        "attention.q_lora_rank": _latent(g),
        "attention.kv_lora_rank": _latent(g),
        # the heads as they would be without the latent
        "attention.key_length_mla": g.head_dim,
        "attention.value_length_mla": g.head_dim,
        "rope.dimension_count": _rotated(g),
    }


def _layer(g: Geometry, layer: int) -> list[Piece]:
    latent, rotated = _latent(g), _rotated(g)
    attention = [
        norm("attn_norm", g.n_embd),
        matrix("attn_q_a", g.n_embd, latent),
        norm("attn_q_a_norm", latent),
        matrix("attn_q_b", latent, g.n_head * g.head_dim),
        matrix("attn_kv_a_mqa", g.n_embd, latent + rotated),
        norm("attn_kv_a_norm", latent),
        matrix("attn_k_b", g.head_dim - rotated, latent, g.n_head),
        matrix("attn_v_b", latent, g.head_dim, g.n_head),
        matrix("attn_output", g.n_head * g.head_dim, g.n_embd),
        norm("ffn_norm", g.n_embd),
    ]
    if layer < LEADING_DENSE:
        return [*attention, *feed_forward(g, dense_width(g))]
    shared = feed_forward(g, g.n_ff_expert, "_shexp")
    return [*attention, router(g), choice_bias(g), *experts(g), *shared]


DEEPSEEK2 = Architecture(
    "latent attention, routing by groups, a leading dense layer, a shared expert",
    _fields,
    _layer,
    weights="BF16",
)
