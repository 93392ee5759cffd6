"""`python -m harness ui`: what it refuses, in one line, before a server is started."""

from __future__ import annotations

import re
import socket
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from ports import free_port

from harness.cli import main
from harness.errors import HarnessError, UsageError
from harness.tracking_server import allow_hosts
from harness.tracking_store import STORE
from harness.verbs import ui

OLDEST_SCHEMA = "451aebb31d03"  # the first revision in which MLflow counts the steps of a metric


def refused(*argv: str) -> str:
    with pytest.raises(HarnessError) as raised:
        ui.main([*argv])
    words = str(raised.value)
    assert "\n" not in words
    return words


def store_of_schema(runs: Path, schema: str) -> None:
    runs.mkdir()
    with closing(sqlite3.connect(runs / STORE)) as db, db:
        db.execute("CREATE TABLE alembic_version (version_num TEXT)")
        db.execute("INSERT INTO alembic_version VALUES (?)", (schema,))


def test_without_a_store_it_says_what_makes_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ui", "--runs-dir", str(tmp_path)]) == UsageError.exit_code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"{tmp_path / STORE}: there is no MLflow store yet" in said
    assert f"python -m harness +experiment=matched_pair runs_dir={tmp_path}" in said


def test_a_taken_port_is_refused_and_a_free_one_named(tmp_path: Path) -> None:
    (tmp_path / STORE).touch()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        words = refused("--runs-dir", str(tmp_path), "--port", str(port))
    named = re.fullmatch(rf"--port {port}: taken on 127\.0\.0\.1; --port (\d+) is free", words)
    assert named is not None
    socket.create_server(("127.0.0.1", int(named[1]))).close()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--port", "65536"], "--port 65536: ports go from 0 (any free one) to 65535"),
        (["--host", "no.such.host.invalid"], "--host no.such.host.invalid: "),
        (["--host", "192.0.2.1"], "--host 192.0.2.1, port 5000: cannot listen there"),
        (["--uri", "sqlite:///x.db"], "--uri sqlite:///x.db: not the address of a server"),
    ],
)
def test_a_place_where_nothing_can_listen_is_refused(
    tmp_path: Path, argv: list[str], words: str
) -> None:
    (tmp_path / STORE).touch()
    assert refused("--runs-dir", str(tmp_path), *argv).startswith(words)


def test_without_a_port_the_next_that_is_free_is_taken() -> None:
    with ui._listener("127.0.0.1", None) as first, ui._listener("127.0.0.1", None) as second:
        ports = [s.getsockname()[1] for s in (first, second)]
        assert ui.FIRST_PORT <= ports[0] < ports[1] < ui.FIRST_PORT + ui.PORTS
        assert {s.getsockname()[0] for s in (first, second)} == {"127.0.0.1"}


@pytest.mark.parametrize("content", [b"no database at all, but long enough for one" * 20, b""])
def test_a_file_that_is_no_store_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    store = tmp_path / STORE
    store.write_bytes(content)
    assert f"{store}: not an MLflow store" in refused("--runs-dir", str(tmp_path), "--port", "0")
    assert store.read_bytes() == content


def test_a_server_that_is_not_there_is_one_line() -> None:
    address = f"http://127.0.0.1:{free_port()}"
    assert refused("--uri", address).startswith(f"MLflow store {address}: ")


@pytest.mark.slow
def test_beyond_this_machine_its_own_names_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_SERVER_ALLOWED_HOSTS", "")  # restored after the test
    monkeypatch.delenv("MLFLOW_SERVER_ALLOWED_HOSTS")
    allow_hosts("bench.example")
    from mlflow.server.fastapi_security import get_allowed_hosts
    from mlflow.server.security_utils import is_allowed_host_header

    allowed = get_allowed_hosts()
    for host in ("bench.example", "bench.example:5000", "localhost:1", "192.168.0.7:5000"):
        assert is_allowed_host_header(allowed, host), host
    assert not is_allowed_host_header(allowed, "attacker.example")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (OLDEST_SCHEMA, r"older MLflow .* -m mlflow db upgrade sqlite:///.*mlflow\.db"),
        ("ffffffffffff", r"not known to the MLflow 3\..* may be a newer one's"),
    ],
)
def test_a_store_of_another_mlflow_is_not_migrated(tmp_path: Path, schema: str, words: str) -> None:
    runs = tmp_path / "runs"
    store_of_schema(runs, schema)
    before = (runs / STORE).read_bytes()
    assert re.search(words, refused("--runs-dir", str(runs), "--port", "0"))
    assert (runs / STORE).read_bytes() == before
