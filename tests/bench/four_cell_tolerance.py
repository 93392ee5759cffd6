"""How often a four-cell session accuses a candidate that changes nothing, by the probes' tolerance.

python tests/bench/four_cell_tolerance.py --sessions 2000

The simulated device shows no caps and no temperatures, like a virtual machine, so that the entry
probes decide what is readable; direct reads vary by `--read-sd` (0.07: twelve probes in a row of a
2-core VM at rest read 17.8 to 23.0 ms). Also with sensors, where the probes are not asked.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from harness.analysis.contamination import ContaminationSettings, examine
from harness.analysis.four_cell import FourCellSettings, four_cell_verdict
from harness.analysis.simulate import SCENARIOS, simulate
from harness.readings import DeviceState, ProbeResult
from harness.records import CellRecord

READ_MS = 20.0


def blind(records: Sequence[CellRecord], read_sd: float, seed: int) -> list[CellRecord]:
    """Without sensors, with a direct-read probe that follows the compute probe and varies."""
    rng = np.random.default_rng(seed)

    def probed(probe: ProbeResult | None) -> ProbeResult | None:
        if probe is None or probe.compute_ms is None:
            return probe
        read_ms = READ_MS * probe.compute_ms / 100 * math.exp(read_sd * rng.standard_normal())
        return dataclasses.replace(probe, read_ms=read_ms)

    return [
        dataclasses.replace(
            r,
            entry=DeviceState(),
            exit=DeviceState(),
            probe=dataclasses.replace(
                r.probe, before=probed(r.probe.before), after=probed(r.probe.after)
            ),
        )
        for r in records
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=70_000)
    parser.add_argument("--read-sd", type=float, default=0.07)
    parser.add_argument("--scenarios", default=",".join(SCENARIOS))
    args = parser.parse_args()
    print(f"{'scenario':9s} {'reads may differ by':>20s} {'accused':>8s} {'readable':>9s}")
    totals: dict[str, Counter[str]] = {}
    for scenario in args.scenarios.split(","):
        counts: dict[str, Counter[str]] = {}
        for seed in range(args.seed, args.seed + args.sessions):
            _, records, series = simulate(
                scenario, seed=seed, design="four_cell", candidates=("C1", "C2")
            )
            cases = [("sensors decide", records, 10.0)]
            without = blind(records, args.read_sd, seed)
            cases += [(f"{t:g} %", without, t) for t in (2.0, 10.0, 1000.0)]
            for name, cells, tolerance in cases:
                settings = FourCellSettings(read_probe_tolerance_pct=tolerance)
                examined = examine(cells, series, ContaminationSettings())
                verdict = four_cell_verdict("session", cells, settings, None, examined)
                counts.setdefault(name, Counter()).update(v.outcome for v in verdict.verdicts)
        for name, found in counts.items():
            totals.setdefault(name, Counter()).update(found)
            print_row(scenario, name, found)
    for name, found in totals.items():
        print_row("all", name, found)


def print_row(scenario: str, name: str, found: Counter[str]) -> None:
    n = found.total()
    accused = sum(found[o] for o in ("provisional_win", "provisional_loss"))
    readable = accused + found["inconclusive"]
    print(f"{scenario:9s} {name:>20s} {accused / n:8.4f} {readable / n:9.3f}", flush=True)


if __name__ == "__main__":
    main()
