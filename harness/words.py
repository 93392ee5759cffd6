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


def size(n: float) -> str:
    """Bytes in the largest unit that they fill: `1.5 GiB`, `20.0 KiB`, `7 B`."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if n >= scale:
            return f"{n / scale:.1f} {unit}"
    return f"{n:.0f} B"


def amount(done: float, total: float, unit: str) -> str:
    """`12 of 300 files`, `1.5 of 29.1 MiB`: bytes in the unit of the whole."""
    if unit != "bytes":
        return f"{done:.0f} of {total:.0f} {unit}"
    whole = size(total)
    scale = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[whole.split()[1]]
    return f"{done / scale:.0f} of {whole}" if scale == 1 else f"{done / scale:.1f} of {whole}"
