"""What a night measures: experiments in order of value, and the time there is. Touches nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.errors import UsageError
from harness.typed import ranged


@dataclass(frozen=True)
class NightlyEntry:
    """One campaign: an experiment, and what is changed in it."""

    experiment: str
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class NightlyConfig:
    """`nightly`: of an experiment that is a sweep of others; without entries it is none."""

    budget_s: float | None = field(default=None, metadata=ranged(above=0, high=7 * 86400))
    entries: tuple[NightlyEntry, ...] = ()


NO_NIGHT = NightlyConfig()


def check_no_night(nightly: NightlyConfig) -> None:
    """Of one campaign. Raises UsageError for what only a sweep of experiments can use."""
    for key, given in (("budget_s", nightly.budget_s is not None), ("entries", nightly.entries)):
        if given:
            raise UsageError(
                f"nightly.{key}: cannot act in one campaign; use it with +experiment=nightly"
            )


def check_night(nightly: NightlyConfig) -> None:
    """Raises UsageError for a night that cannot be."""
    if not nightly.entries:
        raise UsageError("nightly.entries: empty; give at least one, [{experiment: NAME}]")
    if nightly.budget_s is None:
        raise UsageError("nightly.budget_s: null; give the seconds that the night has")
