"""The C library's expf, which ggml calls where it has no kernel of its own."""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Callable
from functools import cache

import numpy as np

from harness.verify.numbers import F32


@cache
def _found() -> Callable[[float], float] | None:
    try:
        function = ctypes.CDLL(ctypes.util.find_library("m")).expf
    except (OSError, AttributeError):
        return None
    function.argtypes, function.restype = [ctypes.c_float], ctypes.c_float
    return function


def is_there() -> bool:
    """This machine's expf can be called."""
    return _found() is not None


def expf(values: F32) -> F32:
    """Elementwise; without a C library to ask correctly rounded, which is one in 2,000 off."""
    function = _found()
    if function is None:
        return np.exp(values.astype(np.float64)).astype(np.float32)
    results = [function(value) for value in values.ravel().tolist()]
    return np.array(results, dtype=np.float32).reshape(values.shape)
