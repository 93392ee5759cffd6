"""Quick campaigns of pairs through the command line, and what they leave behind.

The engine is a fake one that claims the time of each token, so that who is faster is known.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
Command = Callable[..., list[str]]


def prompt(**behaviour: Any) -> str:
    """As a value on the command line; 64 tokens of 20 ms are long enough to judge."""
    text = json.dumps({"wall_ms": 20, "jitter": 0.02} | behaviour).replace('"', '\\"')
    return f'"{text}"'


def quick(launcher: Path, model: Path, place: Path, *overrides: str) -> list[str]:
    """A command line: campaigns go into `place/runs`. `overrides`: experiment, engine, cells."""
    return [
        *(sys.executable, "-m", "harness"),
        *("model=path", f"model.path={model}", f"runs_dir={place / 'runs'}"),
        *(f"engine.launcher={launcher}", f"engine.cache_dir={place / 'cache'}", "tracking=off"),
        *("schedule.spacing_s=0", "schedule.probe_s=0", "schedule.drop_page_cache=false"),
        *("cell.n_predict=64", "cell.n_ctx=128", f"cell.prompt={prompt()}"),
        # whatever else runs on the machine that tests is not what is tested
        *(
            f"verdict.contaminated.{k}_pct=100000"
            for k in ("cpu_wait", "neighbour_cpu", "steal_cpu")
        ),
        *overrides,
    ]


def run(argv: list[str], *codes: int) -> subprocess.CompletedProcess[str]:
    """It ends with one of `codes`, which is 0 unless given, and without a traceback."""
    done = subprocess.run(argv, cwd=REPO, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode in (codes or (0,)), (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done


def campaign_in(place: Path) -> Path:
    (found,) = (place / "runs").iterdir()
    return found


def stored(path: Path) -> Any:
    return json.loads(path.read_text())


def records(campaign: Path) -> list[dict[str, Any]]:
    found = [stored(p) for p in campaign.glob("cells/*/record.json")]
    return sorted(found, key=lambda r: int(r["index"]))
