"""Weight types of a synthetic model's experts by layer, as `model.weights` says them. Pure.

`Q4_K`: all layers. `Q4_K+BF16@40-47`: layers 40 to 47 (counted from 0) are BF16, all others Q4_K.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.errors import UsageError
from harness.models.ggml_types import BY_NAME, GgmlType
from harness.models.weights import BLOCKS

_ELSEWHERE = re.compile(r"(\w+)@(\d{1,6})(?:-(\d{1,6}))?")


@dataclass(frozen=True)
class LayerTypes:
    """`usual`, and `other` where a layer is named; `text` is how it was asked for."""

    text: str
    usual: GgmlType
    other: dict[int, GgmlType]

    def of(self, layer: int) -> GgmlType:
        """The type of a layer's experts."""
        return self.other.get(layer, self.usual)


def layer_types(text: str, n_layer: int) -> LayerTypes:
    """Parse; UsageError for unknown types, layers that there are not, and layers named twice."""
    usual, *parts = text.split("+")
    other: dict[int, GgmlType] = {}
    for part in parts:
        found = _ELSEWHERE.fullmatch(part)
        if found is None:
            raise UsageError(
                f"model.weights: {part!r} is not TYPE@LAYER or TYPE@FIRST-LAST, as in "
                "Q4_K+BF16@40-47"
            )
        first, last = int(found[2]), int(found[3] or found[2])
        if not first <= last < n_layer:
            raise UsageError(
                f"model.weights: {part!r}: the model's layers are 0 to {n_layer - 1}, first to last"
            )
        layers = range(first, last + 1)
        if twice := other.keys() & set(layers):
            raise UsageError(f"model.weights: layer {min(twice)} stands there twice")
        other |= dict.fromkeys(layers, _type(found[1]))
    return LayerTypes(text, _type(usual), other)


def _type(name: str) -> GgmlType:
    if name not in BLOCKS:
        raise UsageError(f"model.weights: {name!r} is none of {', '.join(BLOCKS)}")
    return BY_NAME[name]
