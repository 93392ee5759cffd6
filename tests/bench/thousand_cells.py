"""How long the analysis of a large campaign takes: `python tests/bench/thousand_cells.py`.

Writes plain CSV campaigns of about a thousand cells of 128 tokens, imports them, and judges each
again from disk as `report` does. Prints seconds.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TOKENS = 128


def write(directory: Path, orders: list[list[str]], rng: random.Random) -> int:
    """One cell for each name; the number of cells."""
    cells = [name for order in orders for name in order]
    content = [rng.lognormvariate(0, 0.3) for _ in range(TOKENS)]
    read = [int(2e8 * c) for c in content]
    lines = ["cell,config,file,t_start_s,cap_entry_khz,cap_exit_khz,probe_entry_ms,probe_exit_ms"]
    for i, name in enumerate(cells):
        day = rng.gauss(0, 0.02)
        lines.append(
            f"{i},{name},cell_{i:04d}.csv,{i * 60},2265600,2265600,"
            f"{100 * (1 + day):.2f},{100 * (1 + day):.2f}"
        )
        rows = ["token,wall_ms,io_ms,compute_ms,read_bytes,majflt"]
        for token in range(TOKENS):
            wall = 200 * content[token] * (1 + day) * rng.lognormvariate(0, 0.05)
            rows.append(
                f"{token},{wall:.3f},{wall * 0.6:.3f},{wall * 0.4:.3f},{read[token]},"
                f"{rng.randrange(3)}"
            )
        (directory / f"cell_{i:04d}.csv").write_text("\n".join(rows) + "\n")
    (directory / "campaign.csv").write_text("\n".join(lines) + "\n")
    return len(cells)


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    rng = random.Random(1)  # noqa: S311
    many = ["B", *(f"C{i:02d}" for i in range(39))]
    kinds = {
        "500 pairs": [rng.sample(["B", "C"], 2) for _ in range(500)],
        "25 blocks of 39 candidates": [rng.sample(many, len(many)) for _ in range(25)],
        "a survey": [[f"S{i:03d}" for i in range(1000)]],
    }
    for kind, orders in kinds.items():
        with tempfile.TemporaryDirectory() as place:
            source = Path(place) / "source"
            source.mkdir()
            cells = write(source, orders, rng)
            runs = Path(place) / "runs"
            words = ["import", "csv", str(source), "--runs-dir", str(runs)]
            imported = seconds(words)
            (campaign,) = runs.iterdir()
            judged = seconds(["report", str(campaign), "--json"])
        print(f"{kind}: {cells} cells; import and verdict {imported:.1f} s, report {judged:.1f} s")
    return 0


def seconds(words: list[str]) -> float:
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", "harness", *words], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


if __name__ == "__main__":
    sys.exit(main())
