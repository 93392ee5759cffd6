"""A verdict's numbers in a sentence, for whoever shows it. Pure."""

from __future__ import annotations

from harness.verdicts import CandidateVerdict
from harness.words import counted


def stalls_in_words(mean_pct: float, typical_pct: float) -> str:
    """Where the mean and the typical token do not tell the same effect (changes of tok/s)."""
    lives = abs(mean_pct) > abs(typical_pct)
    return (
        f"{'the effect lives in stalls' if lives else 'stalls hide a part of the effect'}: "
        f"{mean_pct:+.1f} % on the mean, {typical_pct:+.1f} % on the typical token"
    )


def numbers_in_words(v: CandidateVerdict) -> str:
    """`, -12.3 % tok/s (-14.0 to -10.2 %), p 0.0156, 7 clean pairs`: what the design gives."""
    parts = []
    if v.effect_pct is not None:
        interval = "" if v.ci_pct is None else f" ({v.ci_pct[0]:+.1f} to {v.ci_pct[1]:+.1f} %)"
        parts.append(f"{v.effect_pct:+.1f} % tok/s{interval}")
    if v.p is not None:
        parts.append(f"p {v.p:.4f}")
    if v.clean_pairs is not None:
        parts.append(counted(v.clean_pairs, "clean pair"))
    return "".join(f", {part}" for part in parts)
