"""Tensors of synthetic models, and the groups of them that architectures share. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from harness.models.geometry import Geometry


@dataclass(frozen=True)
class Piece:
    """A tensor, row length first: random with deviation `sd`, or `fill` everywhere (None)."""

    name: str
    dims: tuple[int, ...]
    kind: Literal["expert", "dense", "exact"]  # exact: F32
    sd: float | None = None
    fill: float = 1.0


# The router's rows are larger than the rest: otherwise all experts would be about equally likely,
# and which of them is chosen would hang on the last bit.
ROUTER_SCALE = 4.0


def matrix(name: str, *dims: int, scale: float = 1.0) -> Piece:
    """A dense matrix that keeps the size of what it multiplies, times `scale`."""
    return Piece(f"{name}.weight", dims, "dense", scale / dims[0] ** 0.5)


def exact(name: str, *dims: int, sd: float) -> Piece:
    """Random F32 values; `name` with its suffix."""
    return Piece(name, dims, "exact", sd)


def constant(name: str, *dims: int, fill: float = 1.0) -> Piece:
    """F32 values that are all the same; `name` with its suffix."""
    return Piece(name, dims, "exact", fill=fill)


def norm(name: str, n: int) -> Piece:
    """The weights of a norm: ones."""
    return constant(f"{name}.weight", n)


def biased(*pieces: Piece, sd: float = 0.1) -> list[Piece]:
    """Each matrix followed by its bias."""
    biases = {
        p.name: exact(p.name.removesuffix("weight") + "bias", p.dims[1], *p.dims[2:], sd=sd)
        for p in pieces
    }
    return [each for p in pieces for each in (p, biases[p.name])]


def projections(g: Geometry, heads: int, heads_kv: int, head_dim: int) -> list[Piece]:
    """Query, key, value and output of an attention layer."""
    return [
        matrix("attn_q", g.n_embd, heads * head_dim),
        matrix("attn_k", g.n_embd, heads_kv * head_dim),
        matrix("attn_v", g.n_embd, heads_kv * head_dim),
        matrix("attn_output", heads * head_dim, g.n_embd),
    ]


def qk_norms(head_dim: int) -> list[Piece]:
    """Norms of each head's query and key."""
    return [norm("attn_q_norm", head_dim), norm("attn_k_norm", head_dim)]


def feed_forward(g: Geometry, width: int, suffix: str = "") -> list[Piece]:
    """Gate, up and down of a dense layer, or of a shared expert (suffix `_shexp`)."""
    return [
        matrix(f"ffn_gate{suffix}", g.n_embd, width),
        matrix(f"ffn_up{suffix}", g.n_embd, width),
        matrix(f"ffn_down{suffix}", width, g.n_embd),
    ]


def router(g: Geometry) -> Piece:
    """The matrix that chooses experts."""
    return exact("ffn_gate_inp.weight", g.n_embd, g.n_expert, sd=ROUTER_SCALE / g.n_embd**0.5)


def choice_bias(g: Geometry) -> Piece:
    """Added to the experts' scores where they are chosen, not where they are weighted.

    Small: many of a random router's sigmoids are near 1, and a larger bias would choose among them
    the same experts for every token.
    """
    return exact("exp_probs_b.bias", g.n_expert, sd=0.001)


def experts(g: Geometry, *, fused: bool = False) -> list[Piece]:
    """The routed experts, gate and up in one tensor or apart."""
    first = (
        {"gate_up": 2 * g.n_ff_expert} if fused else dict.fromkeys(("gate", "up"), g.n_ff_expert)
    )
    pieces = [matrix(f"ffn_{k}_exps", g.n_embd, n, g.n_expert) for k, n in first.items()]
    pieces.append(matrix("ffn_down_exps", g.n_ff_expert, g.n_embd, g.n_expert))
    return [replace(p, kind="expert") for p in pieces]
