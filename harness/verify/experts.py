"""The routed experts of a layer: from input, ids and weights to the weighted sum. Pure."""

from __future__ import annotations

from typing import Literal

import numpy as np

from harness.verify.dump import Dump
from harness.verify.numbers import F32, F64, wide
from harness.verify.rounding import rounded
from harness.verify.rules import Rule
from harness.verify.tensors import LayerTensors

Activations = Literal["float", "as_ggml"]
# of the two-sided swish of gpt-oss
ALPHA = 1.702
LIMIT = 7.0


def weighted_sum(rule: Rule, tensors: LayerTensors, dump: Dump, activations: Activations) -> F64:
    """The layer's routed output for the rows of a dump, by its ids and weights.

    `float`: inputs of matrices as they are. `as_ggml`: rounded to what ggml multiplies a weight of
    that type with. Sums are in float64 either way.
    """
    out = np.zeros(dump.input.shape)
    for expert in np.unique(dump.ids).tolist():
        rows, ranks = np.nonzero(dump.ids == expert)
        result = _Expert(rule, tensors, expert, activations)(dump.input[rows])
        # a token has an expert once at most
        out[rows] += result * wide(dump.weights[rows, ranks])[:, None]
    return out


class _Expert:
    def __init__(
        self, rule: Rule, tensors: LayerTensors, expert: int, activations: Activations
    ) -> None:
        self._rule, self._tensors, self._expert = rule, tensors, expert
        self._emulates = activations == "as_ggml"

    def __call__(self, x: F32) -> F64:
        if "ffn_gate_up_exps.weight" in self._tensors:
            gate, up = np.split(self._matmul("gate_up", x), 2, axis=1)
        else:
            gate, up = self._matmul("gate", x), self._matmul("up", x)
        return self._matmul("down", self._activate(gate, up).astype(np.float32))

    def _matmul(self, part: str, x: F32) -> F64:
        name = f"ffn_{part}_exps"
        weight = f"{name}.weight"
        if self._emulates:
            x = rounded(x, self._tensors.type(weight))
        y = wide(x) @ wide(self._tensors.expert(weight, self._expert)).T
        scale = self._tensors.optional(f"{name}.scale")
        if scale is not None:
            y = y * float(scale[self._expert])
        bias = self._tensors.optional(f"{name}.bias")
        if bias is not None:
            y = y + wide(bias[self._expert])
        return np.asarray(y, dtype=np.float64)

    def _activate(self, gate: F64, up: F64) -> F64:
        if self._rule.activation == "gelu":
            return (_gelu_by_table if self._emulates else _gelu)(gate) * up
        if self._rule.activation == "swiglu_oai":
            gate, up = np.minimum(gate, LIMIT), np.clip(up, -LIMIT, LIMIT)
            return gate * _sigmoid(ALPHA * gate) * (up + 1)
        return gate * _sigmoid(gate) * up


def _sigmoid(x: F64) -> F64:
    return np.asarray(np.exp(-np.logaddexp(0, -x)), dtype=np.float64)


def _gelu(x: F64) -> F64:
    inner = (2 / np.pi) ** 0.5 * x * (1 + 0.044715 * x * x)
    return np.asarray(0.5 * x * (1 + np.tanh(inner)), dtype=np.float64)


def _gelu_by_table(x: F64) -> F64:
    """ggml looks gelu up in a table of float16 to float16."""
    looked_up = _gelu(x.astype(np.float16).astype(np.float64)).astype(np.float16)
    return np.where(x <= -10, 0.0, np.where(x >= 10, x, looked_up.astype(np.float64)))
