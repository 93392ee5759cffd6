"""A small campaign of pairs on disk, without a device: written as plain CSV and imported."""

from __future__ import annotations

import random
from pathlib import Path

from harness.cli import main

TOKENS = 96


def imported_pairs(place: Path, pairs: int = 12, slower: float = 1.25) -> Path:
    """The directory of a campaign whose candidate C takes `slower` times the baseline's time."""
    rng = random.Random(5)  # noqa: S311
    content = [rng.lognormvariate(0, 0.3) for _ in range(TOKENS)]
    order = [arm for _ in range(pairs) for arm in rng.sample("BC", 2)]
    for i, arm in enumerate(order):
        times = (100 * c * rng.lognormvariate(0, 0.03) for c in content)
        rows = [f"{t},{ms * (slower if arm == 'C' else 1):.3f}" for t, ms in enumerate(times)]
        (place / f"cell_{i}.csv").write_text("\n".join(["token,wall_ms", *rows]) + "\n")
    cells = [f"{i},{arm},cell_{i}.csv" for i, arm in enumerate(order)]
    (place / "campaign.csv").write_text("\n".join(["cell,config,file", *cells]) + "\n")
    assert main(["import", "csv", str(place), "--runs-dir", str(place / "runs")]) == 0
    (found,) = (place / "runs").iterdir()
    return found
