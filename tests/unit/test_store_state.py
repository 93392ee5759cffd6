"""Whether MLflow's store can be used, asked cheaply: nothing is written, mlflow is not imported."""

from __future__ import annotations

import http.server
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tracking_parts import write_campaign

from harness.tracking import CampaignLog
from harness.tracking_store import TrackingError, default_uri, store_state


def test_a_store_that_is_not_there_yet_is_not_made(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    assert "not there yet" in store_state(None, runs)
    assert not runs.exists()


def test_a_store_is_recognised_by_its_tables(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    with closing(sqlite3.connect(path)) as store:
        store.execute("CREATE TABLE experiments (experiment_id INTEGER)")
        store.commit()
    before = path.stat()
    assert store_state(None, tmp_path).endswith("is there and can be written")
    assert store_state(default_uri(tmp_path), tmp_path / "elsewhere").endswith("can be written")
    assert (path.stat().st_mtime_ns, path.stat().st_size) == (before.st_mtime_ns, before.st_size)
    path.write_bytes(b"something else entirely, and long enough to be looked at" * 9)
    with pytest.raises(TrackingError, match="not a store of MLflow's"):
        store_state(None, tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_place_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(TrackingError, match="cannot be written"):
        store_state(None, tmp_path)


@pytest.mark.parametrize("name", ["p%41", "q?1"])
def test_a_directory_that_an_address_cannot_name_is_refused(tmp_path: Path, name: str) -> None:
    """`p%41` became `pA`, and of `q?1` a file `q` was written beside it."""
    runs = tmp_path / name / "runs"
    runs.mkdir(parents=True)
    with pytest.raises(TrackingError, match="use a runs_dir without it"):
        store_state(None, runs)
    log = CampaignLog(write_campaign(runs), uri=None, runs_dir=runs, experiment="x")
    with pytest.raises(TrackingError, match="use a runs_dir without it"):
        log.sync()
    assert [p.name for p in tmp_path.iterdir()] == [name]
    assert not list(runs.glob("*mlflow*"))


@contextmanager
def server(status: int) -> Iterator[str]:
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/health"
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    one = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=one.serve_forever)
    thread.start()
    try:
        yield f"http://user:secret@127.0.0.1:{one.server_address[1]}"
    finally:
        one.shutdown()
        thread.join()
        one.server_close()


@pytest.mark.parametrize("status", [200, 401, 404])
def test_a_server_that_answers_is_there_and_its_password_is_not_shown(
    tmp_path: Path, status: int
) -> None:
    with server(status) as uri:
        said = store_state(uri, tmp_path)
    assert f"answers (/health: {status})" in said
    assert "secret" not in said


def test_a_server_that_fails_or_is_away_is_said_so(tmp_path: Path) -> None:
    with server(503) as uri, pytest.raises(TrackingError, match="answers 503 when asked") as e:
        store_state(uri, tmp_path)
    assert "secret" not in str(e.value)
    with pytest.raises(TrackingError, match="cannot be reached"):
        store_state(uri, tmp_path)  # by now it is gone


def test_mlflow_is_not_imported_for_it(tmp_path: Path) -> None:
    words = (
        "import sys, pathlib; from harness.tracking_store import store_state; "
        f"store_state(None, pathlib.Path({str(tmp_path)!r})); sys.exit('mlflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", words], check=False).returncode == 0
