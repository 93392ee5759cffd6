"""The command line of `python -m harness doctor`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from harness.errors import UsageError
from harness.typed import nearest

# eight cells are the least that can be simulated from, more than the pairs of a campaign no use
LEAST_CELLS, MOST_CELLS = 4, 36
USUAL_CELLS, USUAL_MINUTES = 24, 1.25
# what makes it the A/A that it is; the rest of a campaign's configuration is the user's
_OURS = ("experiment", "cells", "design", "resume", "plan_only")


@dataclass(frozen=True)
class Asked:
    """`minutes`: the A/A begins no pair that would end later."""

    overrides: tuple[str, ...]
    quick: bool
    noise: bool
    minutes: float
    cells: int
    json: bool


def parser() -> argparse.ArgumentParser:
    """The verb's command line."""
    p = argparse.ArgumentParser(
        prog="python -m harness doctor",
        description="Say what a device can and cannot tell, and what to do about it: sensors, "
        "caps, limits, direct reads, neighbours, and its noise from a short A/A (a baseline "
        "against itself). Takes the device as a campaign does, and leaves it as it was.",
        epilog="Exit codes: 0 nothing stands against measuring (there may be warnings), 1 "
        "something on the device does, 2 wrong usage or configuration, 130 interrupted.",
    )
    p.add_argument(
        "overrides",
        nargs="*",
        metavar="KEY=VALUE",
        help="the device, engine, model and settings, as for a campaign: target=ssh "
        "target.host=pi; cell=NAME and cell.* say what the A/A runs",
    )
    what = p.add_mutually_exclusive_group()
    what.add_argument(
        "--quick",
        action="store_true",
        help="only what disturbs nothing, beside a campaign too: seconds, no A/A, nothing tried",
    )
    what.add_argument("--no-noise", action="store_true", help="no A/A: everything else")
    p.add_argument(
        "--minutes",
        type=float,
        default=USUAL_MINUTES,
        metavar="N",
        help=f"the A/A takes at most so long, but for its first cells (default: {USUAL_MINUTES:g})",
    )
    p.add_argument(
        "--cells",
        type=int,
        default=USUAL_CELLS,
        metavar="N",
        help=f"cells of the A/A at most, {LEAST_CELLS} to {MOST_CELLS} (default: {USUAL_CELLS})",
    )
    p.add_argument("--json", action="store_true", help="print everything as JSON")
    return p


def parse(argv: Sequence[str]) -> Asked:
    """Raises UsageError for what cannot be asked for."""
    args = parser().parse_intermixed_args(list(argv))
    for word in args.overrides:
        key = word.lstrip("+~").partition("=")[0].partition("@")[0]
        if key.partition(".")[0] in _OURS:
            raise UsageError(
                f"{word}: a doctor runs an A/A of its own; say what to run by cell=NAME and "
                "cell.KEY=VALUE, and how much by --cells and --minutes"
            )
        if "=" not in word and not word.startswith("~"):
            raise UsageError(f"{word}: not key=value{nearest(word, _flags(), 'flags')}")
    if not 0 < args.minutes <= 24 * 60:
        raise UsageError(f"--minutes {args.minutes:g}: above 0, and at most {24 * 60}")
    if not LEAST_CELLS <= args.cells <= MOST_CELLS or args.cells % 2:
        raise UsageError(
            f"--cells {args.cells}: an even number from {LEAST_CELLS} to {MOST_CELLS}, as they "
            "run in pairs"
        )
    return Asked(
        overrides=tuple(args.overrides),
        quick=args.quick,
        noise=not (args.quick or args.no_noise),
        minutes=args.minutes,
        cells=args.cells,
        json=args.json,
    )


def _flags() -> list[str]:
    return ["--quick", "--no-noise", "--minutes", "--cells", "--json"]
