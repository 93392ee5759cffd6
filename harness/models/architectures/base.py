"""What an architecture of a synthetic model is, and metadata that several share. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.models.architectures.pieces import Piece
from harness.models.geometry import Geometry
from harness.models.gguf_write import Meta

SIGMOID_GATING = 2
LEADING_DENSE = 1
# shorter than the prompts of our tests, so that tokens do leave it
WINDOW = 32

Fields = dict[str, Meta]


@dataclass(frozen=True)
class Architecture:
    """Metadata beyond the common ones, and the tensors of each layer.

    `weights` is the type of expert tensors where the configuration names none; `other_weights`
    (layer, tensor) names those that have another. `others` are global tensors beside embedding,
    output norm and output; `tied`: the embedding is the output matrix too. `speculative` layers
    follow the others; only speculative decoding uses them, so the engine must not count them.
    """

    about: str
    fields: Callable[[Geometry], Fields]
    layer: Callable[[Geometry, int], list[Piece]]
    weights: str = "Q4_K"
    other_weights: Callable[[Geometry, int, str], str | None] = lambda g, layer, name: None
    others: Callable[[Geometry], list[Piece]] = lambda g: []
    output_norm: str = "output_norm"
    tied: bool = False
    speculative: int = 0


def dense_width(g: Geometry) -> int:
    """Width of dense layers: that of a token's experts together."""
    return g.n_ff_expert * g.n_expert_used


def head_sizes(g: Geometry) -> Fields:
    """The size of a head where it does not follow from the width."""
    return {"attention.key_length": g.head_dim, "attention.value_length": g.head_dim}


def rms(eps: float = 1e-6) -> Fields:
    """What norms add under the root."""
    return {"attention.layer_norm_rms_epsilon": eps}


def yarn(g: Geometry) -> Fields:
    """A context stretched by rotation."""
    return {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 32.0,
        "rope.scaling.original_context_length": g.n_ctx,
    }


def sigmoid_routing(g: Geometry) -> Fields:
    """Experts scored one by one, after a first layer that has none."""
    return {
        "leading_dense_block_count": LEADING_DENSE,
        "feed_forward_length": dense_width(g),
        "expert_gating_func": SIGMOID_GATING,
    }
