"""How often the gate accuses an engine that did not change, or passes one that did: a table.

python tests/bench/gate.py --seeds 200 --jobs 2
python tests/bench/gate.py --factors        the factors of harness/gate/between.py

Every campaign is one of the simulator's (8 pairs of 96 tokens, two arms, both of the gated build)
on a day of its own; the days of one series are of one scenario. `days`: how much the days differ
beyond what any sensor shows, the standard deviation of ln speed. Without earlier campaigns the
gate has the baseline alone; with them it has seen six more. Standard error of a share s:
sqrt(s (1 - s) / seeds).
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import pairwise

import numpy as np

from harness.analysis.pairs import PairSettings, pairs_verdict
from harness.analysis.simulate import SCENARIOS, simulate
from harness.gate.answer import default_settings
from harness.gate.between import OF_ALL_LOG_SD, spread_of_days, student_t
from harness.gate.compare import Question, compare
from harness.gate.metrics import METRICS
from harness.gate.nights import Night
from harness.gate.reading import level
from harness.gate.result import overall

TOK_S = METRICS["tok_s"]
EFFECTS = (0.0, -5.0, -10.0)
HISTORY = (0, 6)
DAYS = (0.0, 0.01, 0.02)
MARGIN_PCT = 3.0


def night(scenario: str, seed: int, prompt: int, pairs: int) -> Night:
    """One campaign, judged as any other."""
    plan, records, series = simulate(scenario, seed=seed, prompt_seed=prompt, pairs=pairs)
    verdict = pairs_verdict("night", plan, records, series, PairSettings(interim=False))
    return Night(str(seed), scenario, float(seed), "device", plan, tuple(records), verdict)


def scaled(one: Night, log: float) -> Night:
    """All of it faster; what else the day was stays."""
    records = tuple(
        dataclasses.replace(
            r, metrics=dataclasses.replace(r.metrics, tok_s=(r.metrics.tok_s or 0) * math.exp(log))
        )
        for r in one.records
    )
    return dataclasses.replace(one, records=records)


def series_of(scenario: str, pairs: int, seed: int) -> dict[tuple[float, int, float], str]:
    """The gate's verdict by days, history and effect."""
    rng = np.random.default_rng(seed)
    plain = [night(scenario, 1000 * seed + i, seed, pairs) for i in range(max(HISTORY) + 2)]
    z = rng.standard_normal(len(plain))
    found = {}
    for days in DAYS:
        nights = [scaled(n, days * x) for n, x in zip(plain, z, strict=True)]
        *earlier, candidate = nights
        for history in HISTORY:
            seen = earlier[-1 - history :]
            differences = {}
            for arm in candidate.arms:
                levels = [v for n in seen if (v := level(n, arm, TOK_S)) is not None]
                differences["tok_s", arm] = [b - a for a, b in pairwise(levels)]
            for effect in EFFECTS:
                changed = scaled(candidate, math.log1p(effect / 100))
                question = Question((TOK_S,), MARGIN_PCT, default_settings(), differences)
                cases = compare(earlier[-1], changed, question)
                found[days, history, effect] = overall(cases)
    return found


def table(scenarios: Sequence[str], seeds: range, jobs: int, pairs: int) -> None:
    """Print a row for each scenario, days and history; regressions and passes by effect."""
    titles = [f"{e:+g} %: reg. pass none" if e else "0: reg. pass none" for e in EFFECTS]
    print("| scenario | days differ | earlier | " + " | ".join(titles) + " |")
    print("|---|---|---|" + "---|" * len(EFFECTS))
    totals: dict[tuple[float, int], dict[float, Counter[str]]] = {}
    with ProcessPoolExecutor(jobs) as pool:
        for scenario in scenarios:
            found = list(pool.map(partial(series_of, scenario, pairs), seeds, chunksize=4))
            for days in DAYS:
                for history in HISTORY:
                    counts = {e: Counter(f[days, history, e] for f in found) for e in EFFECTS}
                    of_all = totals.setdefault((days, history), {e: Counter() for e in EFFECTS})
                    for effect, counter in counts.items():
                        of_all[effect] += counter
                    row(scenario, days, history, counts)
    for (days, history), counts in totals.items():
        row("all", days, history, counts)


def row(scenario: str, days: float, history: int, counts: dict[float, Counter[str]]) -> None:
    """One line of the table."""
    cells = []
    for effect in EFFECTS:
        n = counts[effect].total()
        shares = [counts[effect][o] / n for o in ("regression", "pass", "none")]
        cells.append(" ".join(f"{s:.3f}" for s in shares))
    print(f"| {scenario} | {days:.0%} | {history} | {' | '.join(cells)} |", flush=True)


def factors(series: int) -> None:
    """The factors, and how often a day without a change is beyond what comes of them."""
    rng = np.random.default_rng(0)
    for n in OF_ALL_LOG_SD:
        levels = rng.standard_normal((series, n + 2))
        differences = np.diff(levels, axis=1)
        past, new = np.sort(np.abs(differences[:, :-1]), axis=1), differences[:, -1]
        kept = math.ceil(0.75 * n)
        raw = np.sqrt((past[:, :kept] ** 2).mean(axis=1))
        factor = math.sqrt(2) / math.sqrt((raw**2).mean())
        freedom = spread_of_days([1.0] * n)[1]
        beyond = [
            float(np.mean(-new > OF_ALL_LOG_SD[n] * raw * student_t(a, freedom)))
            for a in (0.05, 0.025)
        ]
        print(f"{n}: factor {factor:.3f}; beyond {beyond[0]:.3f} (0.05), {beyond[1]:.3f} (0.025)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--scenarios", default=",".join(SCENARIOS))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--factors", action="store_true")
    args = parser.parse_args()
    if args.factors:
        factors(400_000)
        return
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    table(args.scenarios.split(","), seeds, args.jobs, args.pairs)


if __name__ == "__main__":
    main()
