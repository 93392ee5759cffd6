"""A cell and its numbers in words, for the terminal. Touches nothing."""

from __future__ import annotations

from harness.records import CellRecord
from harness.words import counted


def all_tokens(n_tokens: int) -> str:
    """In a sentence: `all 12 tokens`."""
    return "the token" if n_tokens == 1 else f"all {n_tokens} tokens"


def done(record: CellRecord) -> str:
    """What came of a cell that ran to its end."""
    scored = record.perplexity
    if scored is None:
        made = counted(record.counters.tokens, "token")
        return f"{_number(record.metrics.tok_s, 2)} tok/s, {made}"
    error = "" if scored.stderr is None else f" +- {scored.stderr:.4f}"
    return f"perplexity {scored.value:.4f}{error} of {counted(scored.tokens, 'token')}"


def _number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
