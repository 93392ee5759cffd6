"""Numbers in sentences. Pure."""

from __future__ import annotations


def counted(n: int | None, noun: str) -> str:
    """`1 token`, `2 tokens`, or that the number is not known; of nouns that take an s."""
    if n is None:
        return f"an unknown number of {noun}s"
    return f"{n} {noun if n == 1 else f'{noun}s'}"


def duration(seconds: float) -> str:
    """`45 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{round(seconds, 1):g} s"
    big, small, names = (
        (*divmod(whole, 60), ("min", "s"))
        if whole < 3600
        else (*divmod(whole // 60, 60), ("h", "min"))
    )
    return f"{big} {names[0]}" + (f" {small} {names[1]}" if small else "")
