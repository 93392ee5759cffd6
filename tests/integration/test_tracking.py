"""Campaigns in a real MLflow: the SQLite store beside them, and a server on loopback."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas
import pytest
from tracking_parts import (
    EXPERIMENT,
    START_S,
    TOKENS,
    Store,
    record_of,
    served,
    write_campaign,
    write_journal,
    write_journal_again,
    write_verdict,
)

from harness import rundir
from harness.findings import EvictionRow, IdentityRow
from harness.journal import RECORD, write_json
from harness.jsonable import from_json
from harness.records import (
    CgroupMemory,
    LayerScores,
    Prediction,
    PredictorScore,
)
from harness.tracking import TrackingError, default_uri, log_campaign
from harness.tracking_cells import metric_name
from harness.verdicts import CampaignVerdict

pytestmark = pytest.mark.slow  # making a store's tables takes seconds


def log(directory: Path, **options: Any) -> str:
    return log_campaign(
        directory, uri=None, runs_dir=directory.parent, experiment=EXPERIMENT, **options
    )


def stored(directory: Path) -> Store:
    return Store(default_uri(directory.parent))


# --- what is there afterwards --------------------------------------------------------------------


def test_a_campaign_is_one_parent_and_one_run_a_cell(runs: Path) -> None:
    directory = write_campaign(runs)
    parent_id = log(directory)
    store = stored(directory)
    assert store.parent.info.run_id == parent_id
    assert store.parent.info.run_name == directory.name
    assert store.parent.info.status == "FINISHED"
    assert store.parent.info.start_time == round(START_S * 1e3)
    assert store.parent.info.end_time == round((START_S + 220) * 1e3)
    assert sorted(store.cells) == ["00-baseline", "01-cache_half", "02-sentinel"]
    for run in store.cells.values():
        assert run.data.tags["mlflow.parentRunId"] == parent_id
        assert run.info.status == "FINISHED"


def test_the_verdict_stands_in_tags_metrics_and_words(runs: Path) -> None:
    directory = write_campaign(runs)
    log(directory)
    data = stored(directory).parent.data
    assert data.tags["verdict.drift"] == "stable"
    assert data.tags["verdict.cache_half"] == "inconclusive"
    assert data.metrics["effect_pct.cache_half"] == -4.0
    assert data.metrics["sentinel_change_pct"] == 0.4
    assert "**cache_half: inconclusive**, -4.0 % tok/s" in data.tags["mlflow.note.content"]
    assert "- not beyond what two cells can show" in data.tags["mlflow.note.content"]


def test_summary_metrics_are_the_records_and_null_is_not_logged(runs: Path) -> None:
    directory = write_campaign(runs)
    log(directory)
    for name, run in stored(directory).cells.items():
        record = record_of(directory, name)
        for key, value in dataclasses.asdict(record.metrics).items():
            if value is None and key in ("rss_peak_bytes", "prefill_tok_s", "hit_rate_total"):
                assert metric_name(key) not in run.data.metrics
            elif value is not None:
                stored_value = run.data.metrics[metric_name(key)]
                assert stored_value == pytest.approx(float(value), rel=1e-9), key
        assert run.data.metrics["work/tokens"] == TOKENS
        assert run.data.metrics["vitals/wait_s"] == 30


def table(store: Store, name: str) -> Any:
    """A table of the parent, as MLflow's user interface loads it."""
    from mlflow.artifacts import download_artifacts

    tags = store.parent.data.tags["mlflow.loggedArtifacts"]
    assert {"path": name, "type": "table"} in json.loads(tags)
    path = download_artifacts(
        run_id=store.parent.info.run_id, artifact_path=name, tracking_uri=store.uri
    )
    return pandas.read_json(path, orient="split")


def set_record(directory: Path, cell: str, **changes: Any) -> None:
    write_json(
        directory / "cells" / cell / RECORD,
        dataclasses.replace(record_of(directory, cell), **changes),
    )
    write_journal_again(directory)


def test_the_results_are_a_table_that_is_not_appended_to(runs: Path) -> None:
    directory = write_campaign(runs)
    log(directory)
    first = table(stored(directory), "results.json")
    assert list(first["cell"]) == ["baseline", "cache_half", "sentinel"]
    expected = [record_of(directory, n).metrics.tok_s for n in sorted(stored(directory).cells)]
    assert list(first["tok_s"]) == pytest.approx(expected)
    assert "dropped_share" not in first
    log(directory)
    assert len(table(stored(directory), "results.json")) == 3
    record = record_of(directory, "01-cache_half")
    assert record.metrics.tok_s is not None
    speed = record.metrics.tok_s * 1.0005
    metrics = dataclasses.replace(record.metrics, tok_s=speed, dropped_share=0.125)
    set_record(directory, "01-cache_half", metrics=metrics)
    log(directory)
    again = table(stored(directory), "results.json")
    assert len(again) == 3
    assert again["tok_s"][1] == pytest.approx(speed, rel=1e-12)
    assert list(again["dropped_share"].notna()) == [False, True, False]


def test_what_predictors_scored_is_a_table_and_metrics_of_the_cell(runs: Path) -> None:
    directory = write_campaign(runs)
    prediction = Prediction(
        {
            "stale_gate": PredictorScore(10, 3, 40, 30),
            "stale_gate_2": PredictorScore(0, 0, 0, 0),
        },
        unscored_routings=1,
        layers=(LayerScores(1, 10, 0.75), LayerScores(2, 0, 0.0)),
    )
    set_record(directory, "01-cache_half", prediction=prediction)
    log(directory)
    store = stored(directory)
    scores = table(store, "predictors.json")
    assert list(scores["cell"]) == ["cache_half", "cache_half"]
    assert list(scores["predictor"]) == ["stale gate", "stale gate, two layers early"]
    assert scores["slot_overlap"][0] == 0.75
    assert math.isnan(scores["slot_overlap"][1])
    layers = table(store, "predictors_by_layer.json")
    assert list(layers["layer"]) == [1, 2]
    assert layers["stale_gate"][0] == 0.75
    assert math.isnan(layers["stale_gate"][1])
    metrics = store.cells["01-cache_half"].data.metrics
    assert metrics["predictor/stale_gate_slot_overlap"] == 0.75
    assert metrics["predictor/stale_gate_whole_routings"] == 0.3
    assert "predictor/stale_gate_2_slot_overlap" not in metrics


def test_without_scores_there_is_no_table_of_them(runs: Path) -> None:
    directory = write_campaign(runs)
    log(directory)
    store = stored(directory)
    assert not {a for a in store.artifacts(store.parent) if a.startswith("predictors")}


def test_what_capped_cells_found_is_a_table_a_tag_and_a_line(runs: Path) -> None:
    directory = write_campaign(runs)
    path = directory / rundir.VERDICT
    found = from_json(CampaignVerdict, json.loads(path.read_bytes()))
    lru = EvictionRow("lru", "ok", "lru", 96 * 2**20, tok_s=5.0, read_vs_lru=1.0, stale_right=3)
    rows = (
        IdentityRow("lru", "lru", 96 * 2**20, "identical", tokens=8, evictions=3),
        IdentityRow("ls", "ls", 96 * 2**20, "differs", detail="token 7: id 8, in plain id 7"),
    )
    write_json(path, dataclasses.replace(found, eviction=(lru,), identity=rows))
    log(directory)
    store = stored(directory)
    assert list(table(store, "identity.json")["likeness"]) == ["identical", "differs"]
    eviction = table(store, "eviction.json")
    assert (eviction["cap_mib"][0], eviction["stale_right"][0]) == (96, 3)
    assert "topk.json" not in store.artifacts(store.parent)
    tags = store.parent.data.tags
    assert tags["verdict.identity"] == "differs"
    assert "1 of 2 cells identical to plain, 1 differs" in tags["mlflow.note.content"]


@pytest.mark.parametrize("key", ["tok_s", "hit_rate", "bytes_per_token"])
def test_series_by_token_end_in_the_summary_of_the_same_name(runs: Path, key: str) -> None:
    directory = write_campaign(runs)
    log(directory)
    store = stored(directory)
    run = store.cells["01-cache_half"]
    history = store.client.get_metric_history(run.info.run_id, key)
    assert [m.step for m in history] == list(range(TOKENS))
    summary = getattr(record_of(directory, "01-cache_half").metrics, key)
    assert history[-1].value == pytest.approx(summary, rel=1e-12)
    assert run.data.metrics[key] == history[-1].value


def test_single_tokens_are_there_too(runs: Path) -> None:
    directory = write_campaign(runs)
    log(directory)
    store = stored(directory)
    run_id = store.cells["00-baseline"].info.run_id
    history = store.client.get_metric_history(run_id, "token/wall_ms")
    assert [m.value for m in history] == [
        float(f"{100 + 20 * math.sin(i):.3f}") for i in range(TOKENS)
    ]
    assert history[0].timestamp >= round(START_S * 1e3)


def test_what_a_given_text_cost_is_a_metric_and_which_it_was_a_parameter(runs: Path) -> None:
    directory = write_campaign(runs)
    record = record_of(directory, "01-cache_half")
    set_record(
        directory,
        "01-cache_half",
        metrics=dataclasses.replace(record.metrics, nll=3.45, agreement=0.25),
        identity=dataclasses.replace(record.identity, text_sha256="e" * 64),
    )
    log(directory)
    run = stored(directory).cells["01-cache_half"]
    metrics = run.data.metrics
    assert (metrics["work/nll"], metrics["work/agreement"]) == (3.45, 0.25)
    assert metrics["given_perplexity"] == pytest.approx(math.exp(3.45))
    assert run.data.params["text_sha256"] == "e" * 64
    greedy = stored(directory).cells["00-baseline"].data
    text = {"work/nll", "work/agreement", "given_perplexity", "perplexity"}
    assert not text & greedy.metrics.keys()


def test_what_the_cgroup_counted_is_a_metric_and_its_limit_a_parameter(runs: Path) -> None:
    directory = write_campaign(runs)
    found = CgroupMemory(4096, True, 4000, None, 1, oom_killed=True)
    set_record(directory, "01-cache_half", cgroup=found)
    set_record(directory, "02-sentinel", cgroup=CgroupMemory(reason="none here"))
    log(directory)
    cells = stored(directory).cells
    run = cells["01-cache_half"].data
    assert (run.metrics["use/cgroup_peak_bytes"], run.metrics["use/cgroup_oom_kills"]) == (4000, 1)
    assert run.params["cgroup_limit_bytes"] == "4096"
    for name in ("00-baseline", "02-sentinel"):
        assert not any(key.startswith("use/cgroup") for key in cells[name].data.metrics)
        assert "cgroup_limit_bytes" not in cells[name].data.params


def test_a_summary_that_the_tokens_do_not_give_has_the_last_word(runs: Path) -> None:
    directory = write_campaign(runs)
    path = directory / "cells" / "00-baseline" / RECORD
    data = json.loads(path.read_text())
    speed = data["metrics"]["tok_s"] = data["metrics"]["tok_s"] * 1.0005
    path.write_text(json.dumps(data))
    write_journal_again(directory)
    log(directory)
    store = stored(directory)
    assert store.cells["00-baseline"].data.metrics["tok_s"] == speed


def test_parameters_hold_the_configuration_without_secrets(runs: Path) -> None:
    directory = write_campaign(runs)
    log(directory)
    store = stored(directory)
    params = store.parent.data.params
    assert params["name"] == "matched_pair"
    assert params["tracking.uri"] == "http://tracking.example/x"
    assert params["env.cpu.logical"] == "2"
    assert len(params["cell.prompt"]) <= 6000
    assert "(cut, sha256 " in params["cell.prompt"]
    cell = store.cells["01-cache_half"].data.params
    assert (cell["arm"], cell["cache_mb"], cell["direct_io"]) == ("cache_half", "40", "true")
    kept = Path(store.client.download_artifacts(store.parent.info.run_id, "config.yaml"))
    for text in (kept.read_text(), json.dumps(params)):
        assert "hunter2" not in text
        assert ".ssh/id" not in text


def test_artifacts_lie_beside_the_campaigns(runs: Path) -> None:
    directory = write_campaign(runs)
    log(directory)
    store = stored(directory)
    assert store.artifacts(store.parent) == {
        *("config.yaml", "plan.json", "environment.json", "verdict.json", "journal.jsonl"),
        "results.json",
    }
    assert store.artifacts(store.cells["00-baseline"]) == {
        "record.json",
        "tokens.csv",
        "stdout.txt",
    }
    assert store.experiment.artifact_location == (runs / "mlartifacts").as_uri()
    assert list((runs / "mlartifacts").rglob("tokens.csv"))


# --- again and in between ------------------------------------------------------------------------


def test_logging_twice_changes_nothing(runs: Path) -> None:
    directory = write_campaign(runs)
    first_id = log(directory)
    before = stored(directory)
    assert log(directory) == first_id
    after = stored(directory)
    assert {n: r.info.run_id for n, r in before.cells.items()} == {
        n: r.info.run_id for n, r in after.cells.items()
    }
    effects = after.client.get_metric_history(first_id, "effect_pct.cache_half")
    assert [m.value for m in effects] == [-4.0]


def test_a_cell_measured_again_replaces_its_run(runs: Path) -> None:
    directory = write_campaign(runs)
    log(directory)
    path = directory / "cells" / "01-cache_half" / RECORD
    data = json.loads(path.read_text())
    data["metrics"]["load_s"] = 9.0
    path.write_text(json.dumps(data))
    write_journal_again(directory)
    write_verdict(directory, "provisional_loss", -21.0)
    log(directory)
    store = stored(directory)
    assert sorted(store.cells) == ["00-baseline", "01-cache_half", "02-sentinel"]
    assert store.cells["01-cache_half"].data.metrics["use/load_s"] == 9.0
    assert store.parent.data.metrics["effect_pct.cache_half"] == -21.0
    assert store.parent.data.tags["verdict.cache_half"] == "provisional_loss"


def test_a_campaign_is_logged_when_interrupted_and_again_when_resumed(runs: Path) -> None:
    directory = write_campaign(runs)
    later = directory / "cells" / "02-sentinel"
    aside = directory / "aside"
    later.rename(aside)
    verdict = (directory / rundir.VERDICT).read_bytes()
    (directory / rundir.VERDICT).unlink()

    write_journal(directory, "campaign_interrupted")
    log(directory)
    store = stored(directory)
    assert store.parent.info.status == "KILLED"
    assert len(store.cells) == 2
    assert "2 of 3 cells" in store.parent.data.tags["mlflow.note.content"]
    assert "verdict.drift" not in store.parent.data.tags

    aside.rename(later)
    (directory / rundir.VERDICT).write_bytes(verdict)
    write_journal(directory, "campaign_interrupted", "campaign_resumed", "campaign_finished")
    log(directory)
    store = stored(directory)
    assert store.parent.info.status == "FINISHED"
    assert len(store.cells) == 3
    assert store.parent.data.tags["verdict.drift"] == "stable"


@pytest.mark.parametrize(
    ("status", "cell_status"), [("failed", "FAILED"), ("refused", "FAILED"), ("killed", "KILLED")]
)
def test_a_failed_cell_fails_the_campaign(runs: Path, status: str, cell_status: str) -> None:
    directory = write_campaign(runs)
    cell_dir = directory / "cells" / "01-cache_half"
    (cell_dir / "tokens.csv").unlink()
    data = json.loads((cell_dir / RECORD).read_text())
    data |= {"status": status, "status_detail": "needs 5 bytes", "metrics": {}, "counters": {}}
    (cell_dir / RECORD).write_text(json.dumps(data))
    write_journal_again(directory)
    log(directory)
    store = stored(directory)
    assert store.parent.info.status == "FAILED"
    assert store.cells["01-cache_half"].info.status == cell_status
    assert "tok_s" not in store.cells["01-cache_half"].data.metrics
    assert (
        f"**cache_half {status}**: needs 5 bytes" in (store.parent.data.tags["mlflow.note.content"])
    )


def test_an_experiment_that_was_deleted_is_used_again(runs: Path) -> None:
    directory = write_campaign(runs)
    log(directory)
    store = stored(directory)
    store.client.delete_experiment(store.experiment.experiment_id)
    log(directory)
    assert stored(directory).experiment.lifecycle_stage == "active"


# --- what goes wrong -----------------------------------------------------------------------------


def test_a_server_that_is_down_is_said_at_once_in_one_line(runs: Path) -> None:
    directory = write_campaign(runs)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        uri = f"http://me:hunter2@127.0.0.1:{unused.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(TrackingError, match="cannot be reached: Connection refused") as caught:
            log_campaign(directory, uri=uri, runs_dir=runs, experiment=EXPERIMENT)
    assert time.monotonic() - began < 60  # MLflow itself would try for minutes
    assert "\n" not in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_store_that_cannot_be_opened_is_one_line(runs: Path) -> None:
    directory = write_campaign(runs)
    (runs / "mlflow.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(TrackingError, match=r"^MLflow store sqlite:///.*not a database") as caught:
        log(directory)
    assert "\n" not in str(caught.value)


def test_a_damaged_record_is_named_and_the_rest_is_logged(runs: Path) -> None:
    directory = write_campaign(runs)
    log(directory)
    (directory / "cells" / "00-baseline" / RECORD).write_text('{"cell": ')
    log(directory)
    store = stored(directory)
    assert store.parent.info.status == "FAILED"
    assert sorted(store.cells) == ["01-cache_half", "02-sentinel"]
    tags = store.parent.data.tags
    assert "**baseline is damaged, and left out**: " in tags["mlflow.note.content"]
    assert f"{directory}/cells/00-baseline/record.json: changed" in tags["mlflow.note.content"]
    assert "1 cell damaged, 2 cells measured" in tags["harness.verdict"]
    assert not [k for k in tags if k.startswith("verdict.")], "it was of three cells"
    assert math.isnan(store.parent.data.metrics["effect_pct.cache_half"])


def test_without_its_journal_nothing_says_which_cells_count(runs: Path) -> None:
    directory = write_campaign(runs)
    log(directory)
    (directory / "journal.jsonl").unlink()
    with pytest.raises(TrackingError, match=r"journal.jsonl: there is no such file.*restore it"):
        log(directory)
    assert len(stored(directory).cells) == 3, "what was logged before stays"


def test_mlflow_is_imported_only_to_log_and_says_nothing(tmp_path: Path) -> None:
    directory = write_campaign(tmp_path / "runs")
    program = (
        "import sys; from pathlib import Path; from harness.tracking import log_campaign\n"
        "assert 'mlflow' not in sys.modules\n"
        f"d = Path({str(directory)!r})\n"
        "log_campaign(d, uri=None, runs_dir=d.parent, experiment='matched_pair')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(rundir.__file__).parents[1])},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [p.name for p in tmp_path.iterdir()] == ["runs"]


# --- a server ------------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path, empty_store: bytes) -> Iterator[str]:
    """A real `mlflow server` on loopback, with artifacts through it."""
    home = tmp_path / "server"
    home.mkdir()
    (home / "store.db").write_bytes(empty_store)
    with served(home, f"sqlite:///{home}/store.db") as running:
        yield running.uri


def test_a_server_takes_campaigns_and_their_files(server: str, tmp_path: Path) -> None:
    directory = write_campaign(tmp_path / "runs")
    options: dict[str, Any] = {"runs_dir": directory.parent, "experiment": EXPERIMENT}
    first = log_campaign(directory, uri=server, **options)
    assert log_campaign(directory, uri=server, **options) == first
    store = Store(server)
    assert sorted(store.cells) == ["00-baseline", "01-cache_half", "02-sentinel"]
    run = store.cells["02-sentinel"]
    assert len(store.client.get_metric_history(run.info.run_id, "tok_s")) == TOKENS
    assert store.artifacts(run) == {"record.json", "tokens.csv", "stdout.txt"}
    assert list((tmp_path / "server" / "artifacts").rglob("tokens.csv"))
    assert not (directory.parent / "mlartifacts").exists()
