"""What cells generated, compared token by token and byte by byte. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

# of a byte difference, how much is quoted from either side
QUOTED_BYTES = 12


@dataclass(frozen=True)
class Output:
    """Every token that a cell decoded, and every byte that it wrote."""

    ids: tuple[int, ...]
    text: bytes


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """The index of the first element in which two sequences differ; None when they are equal.

    Where one is the beginning of the other this is the length of the shorter.
    """
    absent = object()
    pairs = zip_longest(a, b, fillvalue=absent)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), None)


def difference_in_words(own: Output, other: Output, other_name: str) -> str | None:
    """Where `own` first differs from `other`, None where it does not.

    Tokens are compared before bytes: all that follows a different token may differ.
    """
    at = first_difference(own.ids, other.ids)
    if at is not None:
        return f"token {at}: {_id(own.ids, at)}, in {other_name} {_id(other.ids, at)}"
    at = first_difference(own.text, other.text)
    if at is not None:
        return f"byte {at}: {_bytes(own.text, at)}, in {other_name} {_bytes(other.text, at)}"
    return None


def _id(ids: Sequence[int], at: int) -> str:
    return f"id {ids[at]}" if at < len(ids) else f"none, it has {len(ids)}"


def _bytes(text: bytes, at: int) -> str:
    return repr(text[at : at + QUOTED_BYTES]) if at < len(text) else f"none, it has {len(text)}"
