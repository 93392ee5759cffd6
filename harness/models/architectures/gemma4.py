"""gemma4: gate and up fused, scaled experts beside a dense branch, sliding windows. Pure."""

from __future__ import annotations

from harness.models.architectures.base import WINDOW, Architecture, Fields, dense_width, rms
from harness.models.architectures.pieces import (
    Piece,
    constant,
    exact,
    experts,
    feed_forward,
    norm,
    projections,
    qk_norms,
    router,
)
from harness.models.geometry import Geometry

FULL_ATTENTION_EVERY = 6


def _attends_fully(g: Geometry, layer: int) -> bool:
    return layer == g.n_layer - 1 or (layer + 1) % FULL_ATTENTION_EVERY == 0


def _heads(g: Geometry, layer: int) -> tuple[int, int]:
    """Key-value heads and the size of a head; in full attention fewer and larger."""
    return (1, 2 * g.head_dim) if _attends_fully(g, layer) else (g.n_head_kv, g.head_dim)


def _fields(g: Geometry) -> Fields:
    layers = range(g.n_layer)
    return {
        "feed_forward_length": dense_width(g),
        "attention.head_count_kv": [_heads(g, i)[0] for i in layers],
        "attention.key_length": 2 * g.head_dim,
        "attention.value_length": 2 * g.head_dim,
        "attention.key_length_swa": g.head_dim,
        "attention.value_length_swa": g.head_dim,
        "attention.sliding_window": WINDOW,
        "attention.sliding_window_pattern": [int(not _attends_fully(g, i)) for i in layers],
        **rms(),
        "embedding_length_per_layer_input": 0,
        "final_logit_softcapping": 30.0,
        "rope.freq_base": 1e6,
        "rope.freq_base_swa": 1e4,
        "rope.dimension_count": 2 * g.head_dim,
        "rope.dimension_count_swa": g.head_dim,
    }


def _layer(g: Geometry, layer: int) -> list[Piece]:
    heads_kv, head_dim = _heads(g, layer)
    q, k, v, output = projections(g, g.n_head, heads_kv, head_dim)
    # in full attention the keys are the values too
    keys_values = [k] if _attends_fully(g, layer) else [k, v]
    return [
        norm("attn_norm", g.n_embd),
        *(q, *keys_values, output),
        *qk_norms(head_dim),
        norm("post_attention_norm", g.n_embd),
        constant("layer_output_scale.weight", 1, fill=0.75),
        norm("ffn_norm", g.n_embd),
        *feed_forward(g, dense_width(g)),
        norm("post_ffw_norm", g.n_embd),
        norm("post_ffw_norm_1", g.n_embd),
        norm("post_ffw_norm_2", g.n_embd),
        norm("pre_ffw_norm_2", g.n_embd),
        router(g),
        # undoes the division that the router's input goes through
        constant("ffn_gate_inp.scale", g.n_embd, fill=g.n_embd**0.5),
        *experts(g, fused=True),
        exact("ffn_down_exps.scale", g.n_expert, sd=1.0),
    ]


def _rope_factors(g: Geometry) -> list[Piece]:
    return [constant("rope_freqs.weight", g.head_dim)]


GEMMA4 = Architecture(
    "gate and up fused, scaled experts, a dense branch, sliding windows, tied output",
    _fields,
    _layer,
    others=_rope_factors,
    tied=True,
)
