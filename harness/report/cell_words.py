"""A cell and its numbers in words, for the terminal. Touches nothing."""

from __future__ import annotations

from harness.records import CellRecord
from harness.words import counted


def all_tokens(n_tokens: int) -> str:
    """In a sentence: `all 12 tokens`."""
    return "the token" if n_tokens == 1 else f"all {n_tokens} tokens"


def tokens_so_far(tokens: int, n_predict: int, tok_s: float | None) -> list[str]:
    """`token 5 of 128`, and the speed where it is known."""
    return [f"token {tokens} of {n_predict}", *([] if tok_s is None else [f"{tok_s:.1f} tok/s"])]


def spent(record: CellRecord) -> float | None:
    """Seconds from the launcher's start to its end, probes included."""
    began, ended = record.started_unix_s, record.ended_unix_s
    return None if began is None or ended is None else ended - began


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
