"""lfm2moe: short convolutions between attention layers, a leading dense layer. Pure."""

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

CONV_LENGTH = 3


def _convolves(layer: int) -> bool:
    return layer % 2 == 0


def _fields(g: Geometry) -> Fields:
    # a layer without heads is one that convolves
    heads_kv = [0 if _convolves(i) else g.n_head_kv for i in range(g.n_layer)]
    return {
        **rms(1e-5),
        **sigmoid_routing(g),
        "attention.head_count_kv": heads_kv,
        "shortconv.l_cache": CONV_LENGTH,
        "rope.freq_base": 1e6,
    }


def _convolution(g: Geometry) -> list[Piece]:
    return [
        exact("shortconv.conv.weight", CONV_LENGTH, g.n_embd, sd=1 / CONV_LENGTH**0.5),
        matrix("shortconv.in_proj", g.n_embd, 3 * g.n_embd),
        matrix("shortconv.out_proj", g.n_embd, g.n_embd),
    ]


def _attention(g: Geometry) -> list[Piece]:
    head_dim = g.n_embd // g.n_head
    return [*projections(g, g.n_head, g.n_head_kv, head_dim), *qk_norms(head_dim)]


def _layer(g: Geometry, layer: int) -> list[Piece]:
    mixer = _convolution(g) if _convolves(layer) else _attention(g)
    first = [norm("attn_norm", g.n_embd), *mixer, norm("ffn_norm", g.n_embd)]
    if layer < LEADING_DENSE:
        return [*first, *feed_forward(g, dense_width(g))]
    return [*first, router(g), choice_bias(g), *experts(g)]


LFM2MOE = Architecture(
    "short convolutions, a leading dense layer, tied output",
    _fields,
    _layer,
    weights="F16",
    output_norm="token_embd_norm",
    tied=True,
)
