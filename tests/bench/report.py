"""How long `report RUN --html` takes for campaigns of many cells, from start to end of the process.

    python tests/bench/report.py [--cells 100] [--tokens 128]

The campaign is made up: a simulated phone that throttles, randomised pairs of four candidates, with
what launchers sample of the device. Prints seconds and the size of the page.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from report_parts import throttled_pairs

CANDIDATES = ("spec2", "retention", "io4", "big")


@dataclass(frozen=True)
class Cost:
    cells: int
    wall_s: float
    cpu_s: float
    page_bytes: int


def cost_of_report(place: Path, cells: int, tokens: int) -> Cost:
    """Of one process that judges a campaign and writes its page, below `place`."""
    blocks = -(-cells // (1 + len(CANDIDATES)))
    made = throttled_pairs(candidates=CANDIDATES, pairs=blocks, tokens=tokens)
    directory = made.write(place / "runs")
    argv = [sys.executable, "-m", "harness", "report", str(directory), "--html"]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    wall_s = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    page = directory / "report.html"
    return Cost(len(made.records), wall_s, cpu_s, page.stat().st_size)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--cells", type=int, default=100)
    p.add_argument("--tokens", type=int, default=128)
    args = p.parse_args()
    with tempfile.TemporaryDirectory() as place:
        cost = cost_of_report(Path(place), args.cells, args.tokens)
    print(
        f"{cost.cells} cells of {args.tokens} tokens: {cost.wall_s:.2f} s ({cost.cpu_s:.2f} s of "
        f"CPU), report.html {cost.page_bytes / 1e6:.2f} MB"
    )


if __name__ == "__main__":
    main()
