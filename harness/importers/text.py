"""Bytes of unknown origin to lines and numbers. Touches nothing; never fails.

A number is one only if it is written as one: `nan`, `1_000`, an empty field are None.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
# beyond it is no time, size or count of a run, and sums could overflow
_MOST = 1e18
_BOM = "\ufeff"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
MIB = 2**20


def decode(content: bytes) -> str:
    """UTF-8 with or without BOM, or UTF-16 with one, as Windows shells write it.

    What is not valid becomes U+FFFD. Line ends become `\\n`.
    """
    encoding = "utf-16" if content[:2] in _UTF16 else "utf-8"
    text = content.decode(encoding, "replace").removeprefix(_BOM)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def number(text: str | None) -> float | None:
    """The number that `text` is, spaces around it aside; None where it is none, or absurd."""
    if text is None or _NUMBER.fullmatch(text.strip(" \t")) is None:
        return None
    value = float(text)
    return value if abs(value) <= _MOST else None


def ratio(part: float | None, of: float | None) -> float | None:
    """None where one is not known, or the other is nothing or next to it."""
    if part is None or not of:
        return None
    value = part / of
    return value if math.isfinite(value) else None


def whole(text: str | None) -> int | None:
    """The whole number that `text` is; else None."""
    return as_whole(number(text))


def as_whole(value: float | None) -> int | None:
    """A count, where `value` is one (64 bits at most)."""
    return int(value) if value is not None and value == int(value) and abs(value) < 2**63 else None


def mib(value: float | None) -> int | None:
    """MiB to whole bytes."""
    return None if value is None else as_whole(float(round(value * MIB)))


def kib(value: float | None) -> int | None:
    """The kB of meminfo, which are KiB, to bytes."""
    return None if value is None else as_whole(float(round(value * 1024)))


def pairs(text: str) -> dict[str, str]:
    """The `key=value` words of a line; later ones win."""
    words = (word.partition("=") for word in text.split())
    return {key: value for key, equals, value in words if equals and key}


def slug(text: str, taken: Iterable[str] = ()) -> str:
    """`text` as the name of a cell or a directory, unlike those in `taken`."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", text).strip("._-")[:56] or "cell"
    if not name[0].isalnum():
        name = f"c{name}"
    used, unique, k = set(taken), name, 2
    while unique in used:
        unique, k = f"{name}-{k}", k + 1
    return unique


def natural(text: str) -> tuple[tuple[int, str], ...]:
    """A key that sorts `c2` before `c10`."""
    parts = re.findall(r"\d+|\D+", text)
    return tuple((int(p[:18]), "") if p.isdecimal() and p.isascii() else (-1, p) for p in parts)
