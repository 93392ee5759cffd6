"""What MLflow holds of a campaign of pairs: verdict with its interval, plots, which cells count."""

from __future__ import annotations

from pathlib import Path

import pytest
from imported_parts import imported_pairs

from harness.judgement import Measured, judge
from harness.tracking import default_uri, log_campaign
from harness.verbs.report import draw

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]


def test_the_verdict_of_pairs_can_be_read_in_the_store(tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    campaign = imported_pairs(tmp_path)
    measured = Measured.read(campaign)
    records = measured.records()
    draw(measured, records, judge(measured, records))
    runs_dir = campaign.parent
    parent_id = log_campaign(campaign, uri=None, runs_dir=runs_dir, experiment="pairs")

    client = MlflowClient(tracking_uri=default_uri(runs_dir))
    parent = client.get_run(parent_id)
    assert parent.info.status == "FINISHED"
    assert parent.data.tags["verdict.C"] == "loss"
    numbers = parent.data.metrics
    assert numbers["ci_low_pct.C"] < numbers["effect_pct.C"] < numbers["ci_high_pct.C"] < 0
    assert numbers["p.C"] == pytest.approx(2 / 2**7)
    assert numbers["clean_pairs.C"] == 7
    assert "C: loss" in parent.data.tags["mlflow.note.content"]
    plots = {a.path for a in client.list_artifacts(parent_id, "plots")}
    assert {"plots/estimates.svg", "plots/traces.svg"} <= plots
    tables = {a.path for a in client.list_artifacts(parent_id)}
    assert {"cells.json", "pairs.json", "looks.json"} <= tables
    cells = client.search_runs(
        [parent.info.experiment_id], f"tags.`mlflow.parentRunId` = '{parent_id}'"
    )
    assert len(cells) == 24
    assert {c.data.tags["harness.timing"] for c in cells} == {"clean"}
