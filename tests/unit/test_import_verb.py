"""`python -m harness import`, with the judge that `report` has too."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from harness.cli import main

SAMPLES = Path(__file__).parents[1] / "data" / "bmoe"


def pairs(path: Path, slower_pct: float, n: int = 9, tokens: int = 80) -> Path:
    """Pairs of one prompt, token for token, on a device that moves by 1 %."""
    path.mkdir()
    rng = random.Random(5)  # noqa: S311
    prompt = [rng.uniform(80, 160) for _ in range(tokens)]
    lines = ["cell,config,file"]
    for i in range(2 * n):
        arm = "BC"[(i + (i // 2) % 3 % 2) % 2]
        lines.append(f"{i},{arm},{i}.csv")
        factor = rng.gauss(1, 0.01) * (1 + slower_pct / 100 if arm == "C" else 1)
        rows = [f"{k},{ms * factor * rng.gauss(1, 0.01):.3f}" for k, ms in enumerate(prompt)]
        (path / f"{i}.csv").write_text("token,wall_ms\n" + "\n".join(rows) + "\n")
    (path / "campaign.csv").write_text("\n".join(lines) + "\n")
    return path


def test_a_plain_campaign_is_judged_and_reported_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = pairs(tmp_path / "mine", 10.0)
    assert main(["import", "csv", str(path), "--runs-dir", str(tmp_path / "r"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    directory = Path(found["campaign_dir"])
    (verdict,) = found["campaigns"][0]["verdicts"]
    assert verdict["outcome"] == "loss" and -13 < verdict["effect_pct"] < -6
    stored = json.loads((directory / "verdict.json").read_bytes())
    assert stored["verdicts"] == [verdict] and len(stored["cells"]) == 18
    assert main(["report", str(directory)]) == 0
    assert "the same as" in capsys.readouterr().out


def test_a_session_of_the_other_engine_has_a_status_for_each_cell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", "bmoe", str(SAMPLES / "v2"), "--runs-dir", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    # cut for these tests, so without a speed to judge
    assert shown.count("unusable") == 4
    assert shown.count("the summary says 256 tokens, the file has 4 rows") == 4
    assert main(["import", "bmoe", str(tmp_path / "none"), "--runs-dir", str(tmp_path)]) == 2
