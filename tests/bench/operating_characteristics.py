"""Operating characteristics of the verdicts of pairs on simulated campaigns, as a table.

python tests/bench/operating_characteristics.py --campaigns 500 --jobs 2
python tests/bench/operating_characteristics.py --scenarios reclaim,storm --effects 0,-5 --json f

One row for each scenario and effect: the share of each outcome, of wrong signs, of intervals that
hold the true effect (one without an end holds all on that side), and the cells that were read. The
standard error of a share s is sqrt(s (1 - s) / campaigns).
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

from harness.analysis.pairs import PairSettings, pairs_verdict
from harness.analysis.simulate import SCENARIOS, Design, simulate

EFFECTS = (0.0, -2.0, -3.0, -5.0, -10.0, -21.0)
OUTCOMES = ("win", "loss", "equivalent", "inconclusive", "contaminated")


@dataclass(frozen=True)
class Case:
    """What one row of the table is about; `candidates` all have the same effect but the last."""

    scenario: str
    effect_pct: float
    design: Design = "pairs"
    candidates: int = 1
    effect_on: str = "all"
    tokens: int = 96


@dataclass(frozen=True)
class Result:
    """Of one candidate of one campaign."""

    outcome: str
    effect_pct: float | None
    truth_pct: float
    covered: bool
    ci_width_pct: float | None
    cells: int


def judge(case: Case, seed: int) -> tuple[Result, ...]:
    """Every candidate of the campaign of this seed."""
    names = [f"C{i + 1}" for i in range(case.candidates)]
    # of several candidates the last one changes nothing, so that both kinds are there
    effects = [case.effect_pct] * (case.candidates - 1) + [
        0.0 if case.candidates > 1 else case.effect_pct
    ]
    plan, records, series = simulate(
        case.scenario,
        seed=seed,
        effect_pct=effects,
        effect_on=case.effect_on,  # type: ignore[arg-type]
        tokens=case.tokens,
        design=case.design,
        candidates=names,
        pairs=None if case.candidates == 1 else 20 if case.candidates == 2 else 24,
    )
    verdict = pairs_verdict("simulated", plan, records, series, PairSettings(interim=False))
    results = []
    for v, truth in zip(verdict.verdicts, effects, strict=True):
        read = [p for p in verdict.pairs if p.candidate == v.candidate]
        results.append(
            Result(
                v.outcome,
                v.effect_pct,
                truth,
                v.ci_pct is None or v.ci_pct[0] <= truth <= v.ci_pct[1],
                None if v.ci_pct is None else v.ci_pct[1] - v.ci_pct[0],
                sum(len(p.baseline_cells) + len(p.candidate_cells) for p in read),
            )
        )
    return tuple(results)


def wrong_sign(result: Result) -> bool:
    return (result.outcome == "win" and result.truth_pct < 0) or (
        result.outcome == "loss" and result.truth_pct > 0
    )


def row(results: Sequence[Result]) -> dict[str, float | None]:
    """Shares of the outcomes and the rest, over campaigns of one case."""
    n = len(results)
    counts = Counter(r.outcome for r in results)
    widths = sorted(r.ci_width_pct for r in results if r.ci_width_pct is not None)
    shares: dict[str, float | None] = {o: counts[o] / n for o in OUTCOMES}
    return shares | {
        "other": (n - sum(counts[o] for o in OUTCOMES)) / n,
        "wrong": sum(map(wrong_sign, results)) / n,
        "cover": sum(r.covered for r in results) / n,
        "cells": sum(r.cells for r in results) / n,
        "ci width": widths[len(widths) // 2] if widths else None,
        "n": n,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenarios", default=",".join(SCENARIOS))
    parser.add_argument("--effects", default=",".join(f"{e:g}" for e in EFFECTS))
    parser.add_argument("--effect-on", default="all", choices=("all", "io", "compute", "bytes"))
    parser.add_argument("--campaigns", type=int, default=200)
    parser.add_argument("--seed", type=int, default=10_000, help="of the first campaign")
    parser.add_argument("--design", default="pairs", choices=("pairs", "abba"))
    parser.add_argument("--candidates", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", help="file for the rows")
    args = parser.parse_args()

    columns = (*OUTCOMES, "other", "wrong", "cover", "cells", "ci width")
    print(f"{'scenario':9s} {'effect':>6s} " + " ".join(f"{c[:8]:>8s}" for c in columns))
    rows = []
    with ProcessPoolExecutor(args.jobs) as pool:
        for scenario in args.scenarios.split(","):
            for effect in map(float, args.effects.split(",")):
                case = Case(
                    scenario, effect, args.design, args.candidates, args.effect_on, args.tokens
                )
                seeds = range(args.seed, args.seed + args.campaigns)
                found = list(pool.map(partial(judge, case), seeds, chunksize=10))
                for truth in sorted({r.truth_pct for f in found for r in f}):
                    own = row([r for f in found for r in f if r.truth_pct == truth])
                    rows.append({"scenario": scenario, "effect": truth, **own})
                    print(
                        f"{scenario:9s} {truth:6g} "
                        + " ".join(
                            " " * 8 if own[c] is None else f"{own[c]:8.3f}" for c in columns
                        ),
                        flush=True,
                    )
    worst = math.sqrt(0.25 / args.campaigns)
    print(f"{args.campaigns} campaigns a row: standard error of a share at most {worst:.3f}")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:  # noqa: PTH123 - a script's output
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
