"""qwen3moe, qwen2moe, and qwen3next and qwen35moe with their recurrent layers. Pure."""

from __future__ import annotations

from harness.models.architectures.base import (
    Architecture,
    Fields,
    dense_width,
    head_sizes,
    rms,
)
from harness.models.architectures.pieces import (
    Piece,
    biased,
    constant,
    exact,
    experts,
    feed_forward,
    matrix,
    norm,
    projections,
    qk_norms,
    router,
)
from harness.models.geometry import Geometry

CONV_KERNEL = 4
# the other layers hold a gated delta net
ATTENTION_EVERY = 4
SPECULATIVE = 1


def _qwen3moe_fields(g: Geometry) -> Fields:
    return {**head_sizes(g), **rms(), "rope.freq_base": 1e6}


def _qwen3moe_layer(g: Geometry, layer: int) -> list[Piece]:
    return [
        norm("attn_norm", g.n_embd),
        *projections(g, g.n_head, g.n_head_kv, g.head_dim),
        *qk_norms(g.head_dim),
        norm("ffn_norm", g.n_embd),
        router(g),
        *experts(g),
    ]


def _gated_shared_expert(g: Geometry, width: int) -> list[Piece]:
    gate = exact("ffn_gate_inp_shexp.weight", g.n_embd, sd=1 / g.n_embd**0.5)
    return [gate, *feed_forward(g, width, "_shexp")]


def _qwen2moe_fields(g: Geometry) -> Fields:
    return {**rms(), "rope.freq_base": 1e6, "expert_shared_feed_forward_length": dense_width(g)}


def _qwen2moe_layer(g: Geometry, layer: int) -> list[Piece]:
    q, k, v, output = projections(g, g.n_head, g.n_head_kv, g.n_embd // g.n_head)
    return [
        norm("attn_norm", g.n_embd),
        *biased(q, k, v),
        output,
        norm("ffn_norm", g.n_embd),
        router(g),
        *experts(g),
        *_gated_shared_expert(g, dense_width(g)),
    ]


def _delta_net_fields(g: Geometry) -> Fields:
    return {
        **head_sizes(g),
        **rms(),
        "rope.freq_base": 1e7,
        "rope.dimension_count": g.head_dim // 2,
        "expert_shared_feed_forward_length": g.n_ff_expert,
        "full_attention_interval": ATTENTION_EVERY,
        "ssm.conv_kernel": CONV_KERNEL,
        "ssm.state_size": g.head_dim,
        "ssm.group_count": g.n_head_kv,
        "ssm.time_step_rank": g.n_head,
        "ssm.inner_size": g.n_head * g.head_dim,
    }


def _qwen35moe_fields(g: Geometry) -> Fields:
    # pairs of rotated elements, divided among time, height and width
    pairs = g.head_dim // 4
    side = pairs // 3
    sections = [pairs - 2 * side, side, side, 0]
    return {
        **_delta_net_fields(g),
        "rope.dimension_sections": sections,
        "nextn_predict_layers": SPECULATIVE,
    }


def _delta_net(g: Geometry, gates: list[Piece]) -> list[Piece]:
    values = g.n_head * g.head_dim
    mixed = values + 2 * g.n_head_kv * g.head_dim
    return [
        matrix("attn_qkv", g.n_embd, mixed),
        matrix("attn_gate", g.n_embd, values),
        exact("ssm_conv1d.weight", CONV_KERNEL, mixed, sd=1 / CONV_KERNEL**0.5),
        exact("ssm_dt.bias", g.n_head, sd=1.0),
        constant("ssm_a", g.n_head, fill=-1.0),
        *gates,
        norm("ssm_norm", g.head_dim),
        matrix("ssm_out", values, g.n_embd),
    ]


def _gated_attention(g: Geometry) -> list[Piece]:
    _, k, v, output = projections(g, g.n_head, g.n_head_kv, g.head_dim)
    # query and output gate in one
    q = matrix("attn_q", g.n_embd, 2 * g.n_head * g.head_dim)
    return [q, k, v, output, *qk_norms(g.head_dim)]


def _hybrid_layer(g: Geometry, layer: int, gates: list[Piece]) -> list[Piece]:
    attends = (layer + 1) % ATTENTION_EVERY == 0 or layer >= g.n_layer
    return [
        norm("attn_norm", g.n_embd),
        *(_gated_attention(g) if attends else _delta_net(g, gates)),
        norm("post_attention_norm", g.n_embd),
        router(g),
        *experts(g),
        *_gated_shared_expert(g, g.n_ff_expert),
    ]


def _qwen3next_layer(g: Geometry, layer: int) -> list[Piece]:
    return _hybrid_layer(g, layer, [matrix("ssm_ba", g.n_embd, 2 * g.n_head)])


def _qwen35moe_layer(g: Geometry, layer: int) -> list[Piece]:
    gates = [matrix(f"ssm_{name}", g.n_embd, g.n_head) for name in ("beta", "alpha")]
    pieces = _hybrid_layer(g, layer, gates)
    return pieces if layer < g.n_layer else [*pieces, *_next_token(g)]


def _next_token(g: Geometry) -> list[Piece]:
    """What a layer needs beside its own tensors to predict the token after the next."""
    norms = [norm(f"nextn.{name}", g.n_embd) for name in ("enorm", "hnorm", "shared_head_norm")]
    return [matrix("nextn.eh_proj", 2 * g.n_embd, g.n_embd), *norms]


def _better_down(g: Geometry, layer: int, name: str) -> str | None:
    """As in files of Q4_K_M."""
    return "Q6_K" if name.startswith("ffn_down") else None


QWEN3MOE = Architecture("gate, up and down apart", _qwen3moe_fields, _qwen3moe_layer)
QWEN2MOE = Architecture(
    "a gated shared expert, attention biases", _qwen2moe_fields, _qwen2moe_layer, weights="Q8_0"
)
QWEN3NEXT = Architecture(
    "recurrent layers, a gated shared expert", _delta_net_fields, _qwen3next_layer
)
QWEN35MOE = Architecture(
    "recurrent layers, a gated shared expert, down of another type, a speculative layer",
    _qwen35moe_fields,
    _qwen35moe_layer,
    other_weights=_better_down,
    speculative=SPECULATIVE,
)
