"""How far a recomputation may be from what the engine computed. Reasons: docs/verify.md. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limit:
    """Bounds on relative errors (L2 norm of the difference by that of the recomputed output).

    `whole` of all rows together, `row` of the worst; `correlation` is the least over all numbers.
    """

    whole: float
    row: float
    correlation: float


# Inputs of the matrices kept as floats: what is left is the rounding of activations, which hangs
# on the type that ggml multiplies a weight with: Q8 blocks, or the weight's own short float.
_EIGHT_BITS = Limit(0.03, 0.06, 0.9995)
PLAIN: dict[str, Limit] = {
    "F32": Limit(1e-5, 1e-5, 0.999999999),
    "F16": Limit(0.001, 0.002, 0.999999),
    "BF16": Limit(0.008, 0.012, 0.99996),
    "Q8_0": _EIGHT_BITS,
    "MXFP4": _EIGHT_BITS,
    "Q4_K": _EIGHT_BITS,
    "Q5_K": _EIGHT_BITS,
    "Q6_K": _EIGHT_BITS,
}
# Activations rounded as ggml rounds them: what is left are float32 sums, and now and then a value
# that they carry across the border between two steps of a rounding. That concerns single rows, a
# wrong weight every row of its expert: each is judged by the tenth of its rows that agree best.
_EIGHT_BITS_ROUNDED = Limit(0.002, 0.02, 0.999995)
AS_GGML: dict[str, Limit] = {
    "F32": PLAIN["F32"],
    "F16": Limit(0.0005, 0.002, 0.999999),
    "BF16": Limit(0.0005, 0.004, 0.999999),
    "Q8_0": _EIGHT_BITS_ROUNDED,
    "MXFP4": _EIGHT_BITS_ROUNDED,
    "Q4_K": _EIGHT_BITS_ROUNDED,
    "Q5_K": _EIGHT_BITS_ROUNDED,
    "Q6_K": _EIGHT_BITS_ROUNDED,
}
# with short floats crossings are small and many: in large experts no row may be without
_EXPERT_WITHOUT_CROSSING = 1e-5
_EXPERT = {"F16": 1e-4, "BF16": 2e-4}

# float32 kernels of exp, in units of the last place of the result
SOFTMAX_ULPS = 8.0
SIGMOID_ULPS = 4.0
# of the softmax over selected logits, where the engine's C library may be another than ours
SELECTED_SOFTMAX_ULPS = 4.0
# gemma4's router input from the experts' input: three float32 operations, and as many back
ROUTER_INPUT_ERROR = 1e-5


def widest(table: dict[str, Limit], types: list[str]) -> Limit:
    """Of a layer whose matrices have these types."""
    return max((table[t] for t in types), key=lambda limit: limit.whole)


def expert_limit(types: list[str]) -> float:
    """Of one expert's rows: relative error of the tenth that agrees best."""
    return max(_EXPERT.get(t, _EXPERT_WITHOUT_CROSSING) for t in types)
