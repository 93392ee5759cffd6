"""Which campaigns a command line with several values stands for. Pure but for the names in `conf/`.

The grammar is Hydra's (choices `a,b`, `choice()`, `range()`, `glob()`, with `sort()` and
`shuffle()`), and so is the order: the last key varies fastest. Its BasicSweeper is not used, as it
cannot say `~key` without a value and silently lets a repeated key win.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.configure import parse_overrides
from harness.errors import UsageError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

# more are a slip: a range without its step, a glob too many
MOST = 1000
# of the sweep as a whole
_NOT_VARIED = ("resume", "runs_dir", "plan_only")


@dataclass(frozen=True)
class Combination:
    """The command line of one campaign; `varied`: those of its overrides that set it apart."""

    overrides: tuple[str, ...]
    varied: tuple[str, ...]


def combinations(lines: Iterable[str]) -> list[Combination]:
    """Every combination of the values given, in order; without several values: one.

    Raises UsageError for what cannot be enumerated.
    """
    parsed = parse_overrides(lines)
    _check_repeated(parsed)
    choices = [_values(override) for override in parsed]
    count = 1
    for values in choices:
        count *= len(values)
    if count > MOST:
        raise UsageError(f"-m: {count} campaigns; at most {MOST} in one sweep")
    varying = [i for i, override in enumerate(parsed) if override.is_sweep_override()]
    return [
        Combination(tuple(chosen), tuple(chosen[i] for i in varying))
        for chosen in itertools.product(*choices)
    ]


def _check_repeated(parsed: list[Override]) -> None:
    """Of one key given twice the last counts, so that the same campaign would run several times."""
    keys = [override.key_or_group for override in parsed]
    for override in parsed:
        if override.is_sweep_override() and keys.count(override.key_or_group) > 1:
            raise UsageError(
                f"{override.key_or_group}: given {keys.count(override.key_or_group)} times, "
                "of which one has several values; give it once"
            )


def _values(override: Override) -> list[str]:
    """The override once for each of its values."""
    line, key = str(override.input_line), override.key_or_group
    if not override.is_sweep_override():
        return [line]
    if override.is_interval_sweep():
        raise UsageError(
            f"{line!r}: an interval has no end of values; use range(START,STOP,STEP) or a,b,c"
        )
    if key in _NOT_VARIED:
        raise UsageError(f"{line!r}: a sweep has one {key}; give one value")
    # what precedes the key; the value as Hydra writes it, quoted where it was
    head = line.partition("=")[0]
    found = [f"{head}={value}" for value in override.sweep_string_iterator()]
    if not found:
        raise UsageError(f"{line!r}: stands for no value at all{_globbed(override)}")
    return found


def _globbed(override: Override) -> str:
    """What there was to choose from, when a glob matched none of it."""
    loader = override.config_loader
    if override.value_type is None or override.value_type.name != "GLOB_CHOICE_SWEEP":
        return ""
    names = loader.get_group_options(override.key_or_group) if loader is not None else []
    there = f"its names: {', '.join(names)}" if names else f"{override.key_or_group} is no group"
    return f"; {there}"
