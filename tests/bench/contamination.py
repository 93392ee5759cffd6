"""Real contamination, injected: are candidates blamed for what befell the device, and only then?

    python tests/bench/contamination.py                 # all three, ten campaigns each
    python tests/bench/contamination.py --only aa --repeat 3

    throttled   a configuration against itself, while a CPU quota (cgroup) holds the engine to half
                a core now and then, drawn blind to the arms: no win or loss may be found
    aa          the same without the quota: no win or loss either
    slower      a candidate with half the expert cache: a loss must be found

The campaigns are the product's own (`+experiment=sequential_pairs`), on the reference model. Exit
code 1 when one of the claims fails. Of identical configurations 2 to 3 campaigns in 100 are said to
differ by chance alone (docs/verdicts.md): among twenty, one such is no surprise, two are.

Means something only on an otherwise idle machine (the load is printed). `throttled` needs the right
to make cgroups: root, as a rule.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from campaign_parts import CampaignFailedError, Judged, judged_campaign
from quota_parts import CpuQuota, QuotaUnavailableError, cpu_quota
from throttle_parts import Chosen, Throttler

from harness.build import ensure_engine
from harness.records import CellRecord

KINDS = ("throttled", "aa", "slower")
HELD_SHARE = 0.05
NO_DIFFERENCE = ("equivalent", "inconclusive", "contaminated")

# With all experts cached a token is 0.8 ms of computing and nothing else, which a quota of half a
# core holds back; reads would leave the core idle for half of the time anyway.
COMPUTING = (
    "cells.candidate={}",
    "cell.n_predict=1408",
    "cell.engine.cache_fraction=1.0",
)
SLOWER = (
    "cells.candidate={}",
    "cell.n_predict=384",
    "cells.baseline.engine.cache_fraction=0.5",
    "cells.candidate.engine.cache_fraction=0.25",
)
ALL = (
    "cell.engine.drop_cold_experts=null",
    "schedule.spacing_s=0",
    "schedule.probe_s=0.3",
    "tracking=off",
)


@dataclass(frozen=True)
class Told:
    """One campaign; `held`: cells that lost `HELD_SHARE` of their time to the quota, `accused`:
    cells that lost none and were found contaminated."""

    kind: str
    outcome: str
    is_right: bool
    seconds: float
    effect_pct: float | None = None
    clean_pairs: int = 0
    replaced_pairs: int = 0
    cells: int = 0
    held: int = 0
    held_found: int = 0
    free: int = 0
    accused: int = 0


def told(kind: str, judged: Judged, lost_s: Sequence[float], seconds: float) -> Told:
    """`lost_s`: to the quota, by cell."""
    verdict = judged.verdict.verdicts[0]
    bad = {cell.index for cell in judged.verdict.cells if cell.status == "contaminated"}
    lost = {r.index: s / wall_s(r) for r, s in zip(judged.records, lost_s, strict=True)}
    held = {index for index, share in lost.items() if share >= HELD_SHARE}
    free = {index for index, share in lost.items() if share == 0}
    states = Counter(pair.status for pair in judged.verdict.pairs)
    return Told(
        kind,
        verdict.outcome,
        verdict.outcome == "loss" if kind == "slower" else verdict.outcome in NO_DIFFERENCE,
        seconds,
        verdict.effect_pct,
        states["clean"],
        states["replaced"],
        len(judged.records),
        len(held),
        len(held & bad),
        len(free),
        len(free & bad),
    )


def wall_s(record: CellRecord) -> float:
    begun, ended = record.started_unix_s, record.ended_unix_s
    return 1.0 if begun is None or ended is None else max(1e-3, ended - begun)


def campaign(kind: str, runs_dir: Path, quota: CpuQuota | None, seed: int) -> Told:
    """Runs one; a campaign that gave no verdict is told as `failed`."""
    begin = time.monotonic()
    overrides = [*ALL, *(SLOWER if kind == "slower" else COMPUTING)]
    try:
        if quota is None:
            judged = judged_campaign(runs_dir, overrides)
            return told(kind, judged, [0.0] * len(judged.records), time.monotonic() - begin)
        log = runs_dir / "starts.txt"
        wrapper = quota.wrapper(runs_dir / "moe-engine", ensure_engine().engine, log)
        chosen: Chosen = "time" if seed % 2 else "cells"
        with Throttler(quota, log, chosen, seed) as throttler:
            judged = judged_campaign(runs_dir, [*overrides, f"engine.binary={wrapper}"])
        lost_s = [throttler.lost_s(record) for record in judged.records]
        return told(kind, judged, lost_s, time.monotonic() - begin)
    except CampaignFailedError as e:
        print(f"{kind}: {e}", file=sys.stderr)
        return Told(kind, "failed", False, time.monotonic() - begin)


def line(one: Told) -> str:
    effect = "" if one.effect_pct is None else f" {one.effect_pct:+.1f} %"
    held = f"{one.held_found} of {one.held} held cells found, " if one.held else ""
    return (
        f"{one.kind:10} {one.outcome}{effect}: {one.clean_pairs} pairs used, "
        f"{one.replaced_pairs} replaced, {held}{one.accused} of {one.free} free ones contaminated, "
        f"{one.seconds:.0f} s{'' if one.is_right else '   WRONG'}"
    )


def summary(kind: str, all_told: Sequence[Told]) -> str:
    mine = [one for one in all_told if one.kind == kind]
    outcomes = ", ".join(f"{n} {name}" for name, n in Counter(o.outcome for o in mine).items())
    wrong = sum(not one.is_right for one in mine)
    text = (
        f"{kind:10} {len(mine)} campaigns: {outcomes}; {wrong} wrong; "
        f"{sum(o.clean_pairs for o in mine)} pairs used, "
        f"{sum(o.replaced_pairs for o in mine)} replaced"
    )
    if kind == "throttled":
        text += (
            f"; {sum(o.held_found for o in mine)} of {sum(o.held for o in mine)} held cells found"
        )
    free = sum(o.free for o in mine)
    return f"{text}; {sum(o.accused for o in mine)} of {free} free cells said to be contaminated"


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=10, help="campaigns of each kind")
    parser.add_argument("--only", choices=KINDS, help="one kind; default: all")
    parser.add_argument("--seed", type=int, help="of when the engine is held; default: drawn")
    parser.add_argument(
        "--runs-dir", type=Path, help="keep the campaigns there, in a new directory"
    )
    parser.add_argument(
        "--json", action="store_true", help="counts as JSON on stdout, lines on stderr"
    )
    args = parser.parse_args(argv)
    if args.repeat < 1:
        parser.error("--repeat must be at least 1")
    return args


def main() -> int:
    args = parse()
    for number in (signal.SIGTERM, signal.SIGINT):  # so that what was made is removed
        signal.signal(number, lambda n, _: sys.exit(128 + n))
    kinds = (args.only,) if args.only else KINDS
    seed = random.SystemRandom().randrange(2**32) if args.seed is None else args.seed
    out = sys.stderr if args.json else sys.stdout
    print(f"seed {seed}, load {os.getloadavg()[0]:.2f}", file=out, flush=True)
    all_told: list[Told] = []
    with contextlib.ExitStack() as stack:
        quota = stack.enter_context(cpu_quota()) if "throttled" in kinds else None
        if args.runs_dir and args.runs_dir.exists():
            sys.exit(f"contamination.py: {args.runs_dir} is there already; name another --runs-dir")
        kept = args.runs_dir or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for i in range(args.repeat):
            for kind in kinds:  # in turn, so that a change of the machine meets all
                runs_dir = (kept / f"{kind}-{i}").resolve()
                runs_dir.mkdir(parents=True)
                held_by = quota if kind == "throttled" else None
                all_told.append(campaign(kind, runs_dir, held_by, seed + i))
                print(line(all_told[-1]), file=out, flush=True)
    print(f"\nload {os.getloadavg()[0]:.2f}", file=out)
    for kind in kinds:
        print(summary(kind, all_told), file=out)
    if args.json:
        json.dump({"seed": seed, "campaigns": [asdict(one) for one in all_told]}, sys.stdout)
        print()
    return 0 if all(one.is_right for one in all_told) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except QuotaUnavailableError as e:
        sys.exit(f"contamination.py: {e}; --only aa and --only slower need no quota")
