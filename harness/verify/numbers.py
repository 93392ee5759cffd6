"""Array types, and distances between float32 numbers. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]
Bool = npt.NDArray[np.bool_]

UNIT = 2.0**-24  # the largest relative error of one rounding to float32
SMALLEST = float(np.finfo(np.float32).tiny)


def wide(values: F32) -> F64:
    """The same numbers as float64."""
    return values.astype(np.float64)


def same_bits(a: F32, b: F32) -> Bool:
    """Elementwise: bitwise equal, so 0 and -0 differ."""
    equal: Bool = a.view(np.uint32) == b.view(np.uint32)
    return equal


def any_in_row(wrong: Bool) -> Bool:
    """Of each row, whether one number in it is."""
    return np.asarray(wrong.any(axis=1), dtype=np.bool_)


def ulps(values: F32, exact: F64) -> F64:
    """Distance from the exact values in units of their last float32 place.

    Below the smallest normal number that place is that number: kernels may flush to zero there.
    """
    place = np.maximum(np.abs(exact), SMALLEST)
    place = np.where(place > SMALLEST, 2.0 ** (np.floor(np.log2(place)) - 23), SMALLEST)
    distance: F64 = np.abs(wide(values) - exact) / place
    return distance
