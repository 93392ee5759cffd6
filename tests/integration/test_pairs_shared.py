"""Verdicts of the published simulated campaigns, imported, against the simulator's truth.

The campaigns are shared data, not part of the product: skipped where they are absent.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from shared_data import DATA

from harness.importers.plain_csv import read_csv_campaign
from harness.importers.write import write_campaign
from harness.judgement import judge_directory

SIMULATED = DATA / "simulated"
CAMPAIGNS = sorted(p.name for p in SIMULATED.glob("*-[12]") if not p.name.startswith("four"))

pytestmark = pytest.mark.skipif(
    not CAMPAIGNS, reason="the shared campaigns are not on this machine"
)


@pytest.mark.parametrize("name", CAMPAIGNS or ["absent"])
def test_an_effect_of_five_percent_is_found_and_none_is_not(name: str, tmp_path: Path) -> None:
    imported = read_csv_campaign(SIMULATED / name, name=None, baseline=None, design=None)
    (verdict,) = judge_directory(write_campaign(imported, tmp_path)).verdicts
    truth = json.loads((SIMULATED / name / "truth.json").read_text())["true_effect_pct"]["C"]
    assert verdict.outcome in (("loss",) if truth < 0 else ("equivalent", "inconclusive"))
    assert verdict.ci_pct is not None and verdict.ci_pct[0] <= truth <= verdict.ci_pct[1]
