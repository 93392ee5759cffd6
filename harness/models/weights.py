"""Random blocks of each weight type: valid, of mean about zero and a wanted standard deviation.

Quants are random bits; scales are chosen so that the decoded values come out right. A block of the
K types holds several scales; they vary by a factor of two, as in real weights. Needs numpy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from harness.models.ggml_types import BY_NAME

if TYPE_CHECKING:
    import numpy as np

    Bytes = np.ndarray[Any, np.dtype[np.uint8]]
    Bits = Callable[[int], Bytes]
    Fill = Callable[[Bits, int, float], Bytes]

# standard deviation of uniformly random 2, 4, 5, 6 and 8 bit integers
_SD = {2: 1.118, 3: 2.291, 4: 4.610, 5: 9.233, 6: 18.473, 8: 73.6}
# root mean square of the K types' scales: uniform in 8..15, 16..31, 32..63
_SCALE_RMS = {8: 11.73, 16: 23.95, 32: 48.38}


def _blank(kind: str, n: int) -> Bytes:
    import numpy as np

    return np.zeros((n, BY_NAME[kind].block_bytes), dtype=np.uint8)


def _half(value: float) -> Bytes:
    import numpy as np

    return np.array([value], dtype="<f2").view(np.uint8)


def _signed(bits: Bits, n: int, value: float) -> Bytes:
    """n half floats +value or -value: quants whose range is lopsided average out."""
    import numpy as np

    signs = (bits(n) & 1).astype(np.float32) * 2 - 1
    return (signs * value).astype("<f2").view(np.uint8).reshape(n, 2)


def _uniform(bits: Bits, n: int, sd: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    """n floats, uniform around zero."""
    import numpy as np

    whole = (bits(4 * n).view("<u4") >> 8).astype(np.float32)
    return (whole / np.float32(2**23) - np.float32(1)) * np.float32(sd * 3**0.5)


def _f32(bits: Bits, n: int, sd: float) -> Bytes:
    import numpy as np

    return _uniform(bits, n, sd).astype("<f4").view(np.uint8)


def _f16(bits: Bits, n: int, sd: float) -> Bytes:
    import numpy as np

    return _uniform(bits, n, sd).astype("<f2").view(np.uint8)


def _bf16(bits: Bits, n: int, sd: float) -> Bytes:
    import numpy as np

    return (_uniform(bits, n, sd).view("<u4") >> 16).astype("<u2").view(np.uint8)


def _q8_0(bits: Bits, n: int, sd: float) -> Bytes:
    import numpy as np

    out = _blank("Q8_0", n)
    out[:, :2] = _half(sd / _SD[8])
    quants = bits(32 * n).reshape(n, 32)
    # -128 does not occur in what llama.cpp quantises
    out[:, 2:] = np.where(quants == 0x80, 0x81, quants)
    return out


def _simple(kind: str, width: int, minimum: bool) -> Fill:
    """Q4_0, Q5_0 (a signed scale) and Q4_1, Q5_1 (a scale and a minimum)."""

    def fill(bits: Bits, n: int, sd: float) -> Bytes:
        out = _blank(kind, n)
        scale = sd / _SD[width]
        if minimum:
            out[:, :2] = _half(scale)
            out[:, 2:4] = _half(-scale * (2**width - 1) / 2)
        else:
            out[:, :2] = _signed(bits, n, scale)
        start = 4 if minimum else 2
        rest = BY_NAME[kind].block_bytes - start
        out[:, start:] = bits(rest * n).reshape(n, rest)
        return out

    return fill


def _q2_k(bits: Bits, n: int, sd: float) -> Bytes:
    out = _blank("Q2_K", n)
    scales = (bits(16 * n) & 7).reshape(n, 16) | 8
    out[:, :16] = scales | scales << 4
    out[:, 16:80] = bits(64 * n).reshape(n, 64)
    d = sd / (_SCALE_RMS[8] * _SD[2])
    out[:, 80:82], out[:, 82:84] = _half(d), _half(1.5 * d)
    return out


def _q3_k(bits: Bits, n: int, sd: float) -> Bytes:
    out = _blank("Q3_K", n)
    out[:, :96] = bits(96 * n).reshape(n, 96)
    # 6 bits less 32: 48..63 make 16..31. Low nibbles of 16 scales, then their two upper bits.
    out[:, 96:104] = bits(8 * n).reshape(n, 8)
    out[:, 104:108] = 0xFF
    out[:, 108:] = _signed(bits, n, sd / (_SCALE_RMS[16] * _SD[3]))
    return out


def _q45_k(kind: str, width: int) -> Fill:
    """Q4_K and Q5_K: eight 6-bit scales; the minima equal them, which centres the values."""

    def fill(bits: Bits, n: int, sd: float) -> Bytes:
        out = _blank(kind, n)
        d = sd / (_SCALE_RMS[32] * _SD[width])
        out[:, :2], out[:, 2:4] = _half(d), _half(d * (2**width - 1) / 2)
        low = (bits(4 * n) & 31).reshape(n, 4) | 32
        high = (bits(4 * n) & 31).reshape(n, 4) | 32
        # first four whole; of the last four, four bits each here and two above the first
        packed = low | (high >> 4) << 6
        out[:, 4:8], out[:, 8:12] = packed, packed
        out[:, 12:16] = (high & 15) | (high & 15) << 4
        rest = BY_NAME[kind].block_bytes - 16
        out[:, 16:] = bits(rest * n).reshape(n, rest)
        return out

    return fill


def _q6_k(bits: Bits, n: int, sd: float) -> Bytes:
    out = _blank("Q6_K", n)
    out[:, :192] = bits(192 * n).reshape(n, 192)
    out[:, 192:208] = (bits(16 * n) & 31).reshape(n, 16) | 32
    out[:, 208:] = _signed(bits, n, sd / (_SCALE_RMS[32] * _SD[6]))
    return out


def _mxfp4(bits: Bits, n: int, sd: float) -> Bytes:
    import math

    out = _blank("MXFP4", n)
    # a power of two; the sixteen values have a root mean square of 2.93
    out[:, 0] = 127 + round(math.log2(sd / 2.93))
    out[:, 1:] = bits(16 * n).reshape(n, 16)
    return out


BLOCKS: dict[str, Fill] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q8_0": _q8_0,
    "Q4_0": _simple("Q4_0", 4, False),
    "Q4_1": _simple("Q4_1", 4, True),
    "Q5_0": _simple("Q5_0", 5, False),
    "Q5_1": _simple("Q5_1", 5, True),
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q45_k("Q4_K", 4),
    "Q5_K": _q45_k("Q5_K", 5),
    "Q6_K": _q6_k,
    "MXFP4": _mxfp4,
}
