"""Does a cell measure the same over ssh as on this machine? Ratios of alternating runs.

    python tests/bench/targets.py --repeat 7

A real sshd on loopback; the same engine, model, text and threads; one cell a campaign, in the order
local, ssh, ssh, local, ... Prints the speeds and the launcher's own share of a core, and the ratio
of the medians with its range over the pairs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tests"))

from ssh_parts import Sshd  # noqa: E402


def cell(runs: Path, overrides: list[str], tokens: int) -> tuple[float, float]:
    """Tokens per second, and the sampler's share of a core, of one cell."""
    before = set(runs.glob("*/cells/*/record.json"))
    subprocess.run(
        [
            *(sys.executable, "-m", "harness", "cell=baseline", "design=survey", "cells={one: {}}"),
            *("cell.text=heldout", f"cell.n_predict={tokens}", "cell.n_ctx=2048", "tracking=off"),
            *("name=targets", f"runs_dir={runs}", "schedule.probe_s=0.3", *overrides),
        ],
        cwd=REPO,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    (path,) = set(runs.glob("*/cells/*/record.json")) - before
    metrics = json.loads(path.read_text())["metrics"]
    return metrics["tok_s"], metrics["sampler_cpu_share"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=7, help="pairs of a local and an ssh cell")
    parser.add_argument("--tokens", type=int, default=1024)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        sshd = Sshd(Path(scratch) / "sshd")
        sshd.start()
        ways = {"local": [], "ssh": sshd.overrides()}
        seen: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        try:
            for i in range(args.repeat):
                for way in list(ways) if i % 2 == 0 else list(ways)[::-1]:
                    seen[way].append(cell(Path(scratch) / "runs", ways[way], args.tokens))
        finally:
            sshd.stop()
    for what, place in (("tok/s", 0), ("sampler's share of a core", 1)):
        local, ssh = ([pair[place] for pair in seen[way]] for way in ("local", "ssh"))
        ratios = [b / a for a, b in zip(local, ssh, strict=True)]
        print(
            f"{what}: local {statistics.median(local):.4g}, ssh {statistics.median(ssh):.4g}; "
            f"ssh/local {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        )


if __name__ == "__main__":
    main()
