"""What ggml makes of a matmul's float32 input before it multiplies: the rounding of activations.

Every weight type has a type for the other operand. Values are given back as float32, rounded as
ggml's CPU kernels round. Pure.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from harness.verify.numbers import F32


def _kept(x: F32) -> F32:
    return x


def _f16(x: F32) -> F32:
    return x.astype(np.float16).astype(np.float32)


def _bf16(x: F32) -> F32:
    """To the nearest, ties to even."""
    bits = x.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(
        0xFFFF0000
    )
    return rounded.view(np.float32)


def _q8_0(x: F32) -> F32:
    """Blocks of 32 with a float16 scale; ties to even, as the vector kernels have it."""
    blocks = x.reshape(-1, 32)
    largest = np.abs(blocks).max(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):
        inverse = np.where(largest > 0, np.float32(127) / largest, np.float32(0))
    quants = np.rint(blocks * inverse)
    return (quants * _f16(largest / np.float32(127))).reshape(x.shape)


def _q8_k(x: F32) -> F32:
    """Blocks of 256 with a float32 scale: the largest value becomes -127."""
    blocks = x.reshape(-1, 256)
    at = np.abs(blocks).argmax(axis=1)[:, None]
    largest = np.take_along_axis(blocks, at, axis=1)
    with np.errstate(divide="ignore"):
        inverse = np.where(largest != 0, np.float32(-127) / largest, np.float32(0))
        scale = np.where(inverse != 0, np.float32(1) / inverse, np.float32(0))
    quants = np.minimum(np.rint(blocks * inverse), np.float32(127))
    return (quants * scale).reshape(x.shape)


# by the weight's type: those that a check has limits for
ROUNDING: dict[str, Callable[[F32], F32]] = {
    "F32": _kept,
    "F16": _f16,
    "BF16": _bf16,
    "Q8_0": _q8_0,
    "MXFP4": _q8_0,
    "Q4_K": _q8_k,
    "Q5_K": _q8_k,
    "Q6_K": _q8_k,
}


def rounded(x: F32, weight_type: str) -> F32:
    """`x` as it is multiplied by a weight of this type."""
    return ROUNDING[weight_type](np.ascontiguousarray(x))
