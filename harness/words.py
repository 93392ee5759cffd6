"""Numbers in sentences. Pure."""

from __future__ import annotations


def counted(n: int | None, noun: str) -> str:
    """`1 token`, `2 tokens`, or that the number is not known; of nouns that take an s."""
    if n is None:
        return f"an unknown number of {noun}s"
    return f"{n} {noun if n == 1 else f'{noun}s'}"
