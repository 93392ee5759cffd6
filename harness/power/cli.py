"""`python -m harness power`: what this device can show, by simulation on its own A/A noise."""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import rundir
from harness.errors import HarnessError, UsageError
from harness.words import counted

if TYPE_CHECKING:
    from harness.power.source import Source
    from harness.power.study import EffectRow, Study
    from harness.progress import Progress

_SIMULATING = "simulating"
EFFECTS_PCT = (2.0, 3.0, 5.0, 10.0)


def parser() -> argparse.ArgumentParser:
    """The verb's command line."""
    p = argparse.ArgumentParser(
        prog="python -m harness power",
        description="How many pairs and how much time an effect needs on this device: the verdict "
        "of pairs, on campaigns simulated from an A/A campaign (+experiment=aa) made on it.",
    )
    p.add_argument(
        "--from",
        dest="campaign",
        metavar="RUN",
        help="directory or id of the campaign (default: the newest A/A campaign)",
    )
    p.add_argument("--runs-dir", type=Path, default=Path(rundir.DEFAULT_RUNS_DIR), metavar="DIR")
    p.add_argument(
        "--effect",
        type=float,
        action="append",
        metavar="PCT",
        help=f"change of tok/s in percent; repeatable (default: "
        f"{', '.join(f'{e:g}' for e in EFFECTS_PCT)})",
    )
    p.add_argument("--power", type=float, default=0.8, metavar="SHARE", help="default: 0.8")
    p.add_argument(
        "--campaigns",
        type=int,
        default=150,
        metavar="N",
        help="at most so many for each effect; fewer where its power is soon known (default: 150)",
    )
    p.add_argument("--seed", type=int, default=0, metavar="N", help="default: 0")
    p.add_argument(
        "--spacing-s", type=float, metavar="S", help="pause between cells (default: as there)"
    )
    p.add_argument("--json", action="store_true", help="print JSON")
    return p


def main(argv: list[str]) -> int:
    """Run the verb; returns the exit code."""
    args = parser().parse_args(argv)
    from harness.progress import Progress
    from harness.screen import Screen

    progress = Progress(Screen(sys.stderr))
    try:
        print(_power(args, progress))
    except HarnessError as e:
        progress.close()
        print(f"harness: error: {e}", file=sys.stderr)
        return e.exit_code
    except KeyboardInterrupt:
        progress.close()
        print("harness: interrupted", file=sys.stderr)
        return 130
    return 0


def _power(args: argparse.Namespace, progress: Progress) -> str:
    effects = [abs(e) for e in args.effect] if args.effect else list(EFFECTS_PCT)
    _check(args, effects)
    from harness.power.source import read_source
    from harness.power.study import Conditions, run_study
    from harness.progress import Step

    source = read_source(args.campaign, args.runs_dir)
    study = run_study(
        Conditions(source.device, source.settings, args.spacing_s),
        effects,
        target=args.power,
        campaigns=args.campaigns,
        seed=args.seed,
        progress=lambda done, total: progress(Step(_SIMULATING, done, total, "campaigns")),
    )
    progress.close()
    spacing_s = source.device.spacing_s if args.spacing_s is None else args.spacing_s
    if args.json:
        return json.dumps(_json(source, study, spacing_s, args.seed), indent=1)
    return table(source, study, spacing_s)


def _check(args: argparse.Namespace, effects: list[float]) -> None:
    for effect in effects:
        if not 0 < effect < 100:
            raise UsageError(f"--effect {effect:g}: percent of tok/s, above 0 and below 100")
    if not 0 < args.power < 1:
        raise UsageError(f"--power {args.power:g}: a share, above 0 and below 1, as in 0.8")
    if not 20 <= args.campaigns <= 100_000:
        raise UsageError(f"--campaigns {args.campaigns}: 20 to 100000; fewer show no share")
    if args.seed < 0:
        raise UsageError(f"--seed {args.seed}: 0 or more")
    if args.spacing_s is not None and not 0 <= args.spacing_s < math.inf:
        raise UsageError(f"--spacing-s {args.spacing_s:g}: seconds, 0 or more")


# --- what it says --------------------------------------------------------------------------------


def table(source: Source, study: Study, spacing_s: float) -> str:
    """What was found, for the terminal."""
    lines = [*_device_lines(source, spacing_s), ""]
    lines.append(f"{'effect':>8}  {'power':>14}  {'pairs, median (90 %)':>20}  minutes")
    lines += [_row_line(row, study) for row in study.effects]
    lines += ["", *_conclusions(source, study)]
    return "\n".join(lines)


def _device_lines(source: Source, spacing_s: float) -> list[str]:
    d = source.device
    kind = "A/A" if source.aa else "its cells of equal settings"
    spreads = [
        f"between cells {_pct(d.between_cells_log_sd)} after a drift of {_signed(d.drift_log)}"
    ]
    if d.within_cell_log_sd is not None:
        spreads.append(f"single tokens {_pct(d.within_cell_log_sd)}")
    spreads.append("not probed" if d.probe_log_sd is None else f"probe {_pct(d.probe_log_sd)}")
    pair_min = 2 * (d.cell_s + d.gap_s + spacing_s) / 60
    return [
        f"{source.campaign_dir}: {counted(len(d.records), 'cell')} of {', '.join(source.arms)} "
        f"({kind})",
        f"spread of tok/s: {'; '.join(spreads)}",
        f"a cell takes {d.cell_s:.3g} s, a pair {pair_min:.3g} min with {spacing_s:g} s between "
        "cells",
    ]


def _row_line(row: EffectRow, study: Study) -> str:
    pairs = f"{row.pairs[0]} ({row.pairs[1]})"
    minutes = f"{row.minutes[0]:.3g} ({row.minutes[1]:.3g})"
    short = ""
    if row.power < study.target:
        within = row.equivalent > 1 - row.power - row.equivalent
        short = "  mostly called equivalent" if within else "  the budget is too small"
    return (
        f"{row.effect_pct:>6.3g} %  {row.power:>7.1%} ±{row.power_se:>5.1%}  {pairs:>20}  "
        f"{minutes}{short}"
    )


def _conclusions(source: Source, study: Study) -> list[str]:
    cells, small = len(source.device.records), study.smallest
    budget = f"within the budget of {study.budget_pairs} pairs"
    if small.effect_pct is None or small.se_pct is None:
        tried = study.effects
        least = tried[0].power >= study.target
        where = f"below {tried[0].effect_pct:g} %" if least else f"above {tried[-1].effect_pct:g} %"
        first = f"smallest effect seen with {study.target:.0%} power {budget}: {where}"
    else:
        first = (
            f"smallest effect seen with {study.target:.0%} power {budget}: "
            f"{small.effect_pct:.2g} % ±{small.se_pct:.1g}"
        )
    none = study.nothing
    return [
        first,
        f"with no effect: win or loss {none.power:.1%} ±{none.power_se:.1%}, equivalent "
        f"{none.equivalent:.1%}, in {none.pairs[0]} pairs ({none.pairs[1]}); "
        f"{none.replaced:.1%} of all pairs are replaced",
        "± is one standard error of the simulation, of at most "
        f"{counted(none.campaigns, 'campaign')} for each effect",
        f"{counted(cells, 'cell')} show the device's own spread to ±{_own_error(cells):.0%}, and "
        "with it the smallest effect",
    ]


def _own_error(cells: int) -> float:
    """Relative standard error of a standard deviation."""
    return 1 / math.sqrt(2 * (cells - 1))


def _pct(log_sd: float) -> str:
    return f"{100 * log_sd:.2g} %"


def _signed(log_slowdown: float) -> str:
    return f"{100 * math.expm1(-log_slowdown):+.2g} %"


def _json(source: Source, study: Study, spacing_s: float, seed: int) -> dict[str, Any]:
    d = source.device
    return {
        "campaign_dir": str(source.campaign_dir),
        "arms": list(source.arms),
        "aa": source.aa,
        "device": {
            "cells": len(d.records),
            "between_cells_log_sd": d.between_cells_log_sd,
            "between_cells_relative_error": _own_error(len(d.records)),
            "drift_log": d.drift_log,
            "within_cell_log_sd": d.within_cell_log_sd,
            "probe_log_sd": d.probe_log_sd,
            "cell_s": d.cell_s,
            "gap_s": d.gap_s,
            "spacing_s": spacing_s,
        },
        "seed": seed,
        "target_power": study.target,
        "budget_pairs": study.budget_pairs,
        "effects": [asdict(row) for row in study.effects],
        "no_effect": asdict(study.nothing),
        "smallest_effect_pct": study.smallest.effect_pct,
        "smallest_effect_se_pct": study.smallest.se_pct,
    }
