"""Plain data that crosses rooms: what is concluded from a campaign's records. Touches nothing.

Round-trips through JSON (`harness.jsonable`). `None` means *not measured*, never zero. Effects are
changes of tok/s against the baseline in percent: positive is faster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.findings import EvictionRow, IdentityRow, LevelRow, Likeness, TopKRow

DriftVerdict = Literal["stable", "drifting", "throttled", "not_comparable", "unknown"]
Outcome = Literal[
    "win",
    "loss",
    "equivalent",
    "inconclusive",
    "contaminated",
    "confounded",
    "provisional_win",
    "provisional_loss",
    "unreadable",
]
CellState = Literal["clean", "contaminated", "unusable", "unknown"]
PairState = Literal["clean", "replaced", "confounded", "incomplete"]
Part = Literal["reading", "waiting", "computing", "managing", "faulting"]


@dataclass(frozen=True)
class CellVerdict:
    """Whether a cell's timing can be attributed to its arm, found blind to which arm it is.

    contaminated: something else moved its speed. unusable: it has none (it failed, say). unknown:
    nothing was recorded that could tell. `notes`: seen, but no reason to discard the cell.
    `stretch`: the first and the last token that the reasons are about, where they are about some.
    """

    index: int
    cell: str
    status: CellState
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    stretch: tuple[int, int] | None = None


@dataclass(frozen=True)
class PairRow:
    """One block's cells of the baseline and of one candidate, by index.

    replaced: the pair is left out, for `reasons`, and another takes its place. incomplete: not all
    of its cells have run. `effect_pct`: of this pair alone.
    """

    candidate: str
    block: int
    baseline_cells: tuple[int, ...]
    candidate_cells: tuple[int, ...]
    status: PairState
    effect_pct: float | None = None
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class LookRow:
    """Where one candidate stood once so many pairs were clean.

    `alpha`: what p is compared with, None between the looks, at which nothing is decided.
    `decided`: the outcome, where this look ended the matter.
    """

    candidate: str
    clean_pairs: int
    pairs: int
    effect_pct: float | None
    ci_pct: tuple[float, float] | None
    p: float | None
    alpha: float | None = None
    decided: Outcome | None = None


@dataclass(frozen=True)
class AttributionRow:
    """What one part of a token's time contributes to the change against the baseline.

    Milliseconds per token after the warm-up; positive `change_ms` is slower. `in_wall`: the parts
    that are add up to the wall time; the others happen beside or inside them. `carries`: the part
    that carries the effect.
    """

    candidate: str
    part: Part
    in_wall: bool
    baseline_ms: float | None
    change_ms: float | None
    ci_ms: tuple[float, float] | None
    carries: bool = False
    note: str | None = None


@dataclass(frozen=True)
class Drift:
    """Change of device speed between the opening and the closing baseline cell."""

    verdict: DriftVerdict
    sentinel_change_pct: float | None
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class CandidateVerdict:
    """`effect_pct`: change of tok/s of the candidate against the baseline, in percent.

    `disturbed_pairs`: so many, whose timing was disturbed, the verdict rests on all the same,
    as too few were clean.
    """

    candidate: str
    baseline: str
    outcome: Outcome
    effect_pct: float | None = None
    ci_pct: tuple[float, float] | None = None
    typical_token_effect_pct: float | None = None
    p: float | None = None
    clean_pairs: int | None = None
    disturbed_pairs: int = 0
    cells_used: tuple[int, ...] = ()
    reasons: tuple[str, ...] = ()
    effect_carried_by: str | None = None  # in words, where the time per token was split
    output: Likeness | None = None  # to the baseline's; None: both ran one engine


@dataclass(frozen=True)
class CampaignVerdict:
    """`verdict.json` is exactly this.

    `levels` to `identity`: what cells under memory caps found. The rest: how the verdicts came
    about, cell by cell, pair by pair, look by look.
    """

    campaign: str
    drift: Drift
    verdicts: tuple[CandidateVerdict, ...]
    levels: tuple[LevelRow, ...] = ()
    topk: tuple[TopKRow, ...] = ()
    eviction: tuple[EvictionRow, ...] = ()
    identity: tuple[IdentityRow, ...] = ()
    cells: tuple[CellVerdict, ...] = ()
    pairs: tuple[PairRow, ...] = ()
    looks: tuple[LookRow, ...] = ()
    attribution: tuple[AttributionRow, ...] = ()
