"""What a campaign of memory caps finds, row by row, beside its verdict on speed. Touches nothing.

As in the records, `None` means *not measured*, never zero. A cap is the anonymous memory that the
cell was allowed; None: no cap. `status` is the cell's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Likeness = Literal["identical", "differs", "not shown"]
LevelResult = Literal["PASS", "FAIL", "KILLED"]


@dataclass(frozen=True)
class LevelRow:
    """One cell at one level of a ladder of memory limits; peaks are of 20 ms samples.

    PASS: it ran to its end and no sample was above the limit. KILLED: something ended it. FAIL: all
    else, with the `reason`: refused, above its limit, not sampled, failed. `detail`: the engine's
    own words, or the launcher's, where it did not end well. `slots`: by size class, the smallest
    size first.
    """

    cell: str
    level: str
    limit_bytes: int | None
    result: LevelResult
    reason: str | None = None
    detail: str | None = None
    arena_bytes: int | None = None
    slots: tuple[int, ...] = ()
    coverage: float | None = None
    anon_peak_bytes: int | None = None
    rss_peak_bytes: int | None = None
    within_limit: bool | None = None
    cgroup_limit_bytes: int | None = None
    cgroup_peak_bytes: int | None = None
    tok_s: float | None = None
    bytes_per_token: float | None = None
    hit_rate: float | None = None
    evictions: int | None = None
    output_sha256: str | None = None  # None also where a text was given

    @property
    def anon_beside_arena_bytes(self) -> int | None:
        """What a run needs whatever its level: the same at every level, or memory is missed."""
        if self.anon_peak_bytes is None or self.arena_bytes is None:
            return None
        return self.anon_peak_bytes - self.arena_bytes

    @property
    def rss_beside_anon_bytes(self) -> int | None:
        """Pages of files: the program, and what of the model is mapped."""
        if self.rss_peak_bytes is None or self.anon_peak_bytes is None:
            return None
        return self.rss_peak_bytes - self.anon_peak_bytes


@dataclass(frozen=True)
class TopKRow:
    """One top-k under one cap.

    `perplexity` is that of the cell which measured it with the same top-k; no cap changes it.
    `parts_at`: the first token, from 0, at which greedy output differs from that of the model's own
    top-k, None where all `greedy_tokens` agree; of the model's own, and where nothing was compared,
    both are None. `coverage`: the share of the experts that the cache holds at once; at one cap it
    is not the same for all, as fewer experts need smaller buffers and leave more to the arena.
    """

    cell: str
    status: str
    top_k: int | None
    cap_bytes: int | None
    coverage: float | None = None
    tok_s: float | None = None
    bytes_per_token: float | None = None
    hit_rate: float | None = None
    evictions: int | None = None
    requests: int | None = None
    perplexity: float | None = None
    perplexity_stderr: float | None = None
    greedy_tokens: int | None = None
    parts_at: int | None = None


@dataclass(frozen=True)
class EvictionRow:
    """One eviction policy under one cap; `read_vs_lru`: its bytes per token over those of `lru`."""

    cell: str
    status: str
    policy: str | None
    cap_bytes: int | None
    tok_s: float | None = None
    hit_rate: float | None = None
    bytes_per_token: float | None = None
    read_vs_lru: float | None = None
    evictions: int | None = None
    stale_left: int | None = None
    stale_right: int | None = None
    current_left: int | None = None
    current_right: int | None = None


@dataclass(frozen=True)
class IdentityRow:
    """One cell's greedy output against that of plain inference.

    `detail`: the first difference, or why nothing can be said. `evictions` tells how much of the
    cache's work the comparison covers.
    """

    cell: str
    policy: str | None
    cap_bytes: int | None
    likeness: Likeness
    tokens: int | None = None
    text_bytes: int | None = None
    hit_rate: float | None = None
    evictions: int | None = None
    detail: str | None = None
