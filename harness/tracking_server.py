"""MLflow's own server over the store beside the campaigns, in this process: no child is left.

Imports mlflow, as `tracking` does, and only when a store is opened. Serves it; never migrates it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import HarnessError, UsageError
from harness.tracking_store import check_path
from harness.tracking_text import without_credentials

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

# Seconds that open requests get once the server is told to end.
GRACE_S = 2
# MLflow reads these when it is imported: nothing is sent to its makers, by us or by the pages.
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    # jobs (scorers, judges) would be processes of their own, which nobody here asks for
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
}


def check_store(store: Path) -> None:
    """Refuse a file that is no MLflow store, or one whose tables are another MLflow version's.

    MLflow refuses them too, in a stack trace, and may migrate a very old one unasked.
    """
    try:
        with contextlib.closing(
            sqlite3.connect(f"{store.absolute().as_uri()}?mode=ro", uri=True)
        ) as db:
            found = [str(row[0]) for row in db.execute("SELECT version_num FROM alembic_version")]
    except sqlite3.Error as e:
        raise UsageError(f"{store}: not an MLflow store ({e})") from None
    prepare()
    import mlflow.store.db_migrations as migrations
    from mlflow.store.db.utils import _get_latest_schema_revision

    if found == [_get_latest_schema_revision()]:  # type: ignore[no-untyped-call]
        return
    version = mlflow_version()
    schema = found[0] if found else "none"
    known = (Path(migrations.__file__).parent / "versions").glob(f"{schema}_*.py")
    if any(known):
        raise UsageError(
            f"{store}: its tables are those of an older MLflow (schema {schema}) than the "
            f"{version} installed here; make a copy of the file, then: "
            f"{sys.executable} -m mlflow db upgrade sqlite:///{store.absolute()}"
        )
    raise UsageError(
        f"{store}: its tables (schema {schema}) are not known to the MLflow {version} installed "
        "here; they may be a newer one's: open it with that one, or log the campaigns again into "
        "another store"
    )


def prepare() -> None:
    """Settings that must stand before mlflow is imported; a user's own are left alone."""
    for key, value in _ENVIRONMENT.items():
        os.environ.setdefault(key, value)


def mlflow_version() -> str:
    """Of the installed MLflow."""
    from importlib.metadata import version

    return version("mlflow")


@contextlib.contextmanager
def open_client(uri: str) -> Iterator[MlflowClient]:
    """A store's client; whatever its libraries raise becomes one line that names the store."""
    check_path(uri)
    prepare()
    # MLflow would try for minutes to reach a server that is not there
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    from mlflow.tracking import MlflowClient

    try:
        yield MlflowClient(tracking_uri=uri)
    except HarnessError:
        raise
    except Exception as e:  # mlflow, requests and sqlalchemy share no base class
        first = (str(e).strip().splitlines() or [type(e).__name__])[0]
        raise HarnessError(f"MLflow store {without_credentials(uri)}: {first}") from e


def serve(
    store_uri: str, artifacts: Path, listener: socket.socket, ready: Callable[[], None]
) -> None:
    """Answer on `listener` until SIGINT or SIGTERM, which comes out as KeyboardInterrupt.

    `ready` is called once requests are answered.
    """
    prepare()
    warnings.simplefilter("ignore")  # MLflow's own, about what it imports
    import uvicorn
    from mlflow.server.constants import ARTIFACT_ROOT_ENV_VAR, BACKEND_STORE_URI_ENV_VAR

    # MLflow's application takes its store from these, as `mlflow server` passes them
    os.environ[BACKEND_STORE_URI_ENV_VAR] = store_uri
    os.environ[ARTIFACT_ROOT_ENV_VAR] = artifacts.as_uri()
    from mlflow.server.fastapi_app import app
    from mlflow.server.handlers import initialize_backend_stores

    initialize_backend_stores(store_uri, store_uri, artifacts.as_uri())

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                ready()

    config = uvicorn.Config(
        app, log_level="warning", access_log=False, timeout_graceful_shutdown=GRACE_S
    )
    Server(config).run(sockets=[listener])


def allow_hosts(*names: str) -> None:
    """Let requests in that name this machine so; MLflow refuses names that are not local."""
    prepare()
    import uvicorn  # noqa: F401 MLflow takes itself for a server only where this is loaded
    from mlflow.server.security_utils import get_default_allowed_hosts

    own = [pattern for name in names for pattern in (name, f"{name}:*")]
    os.environ.setdefault(
        "MLFLOW_SERVER_ALLOWED_HOSTS", ",".join([*get_default_allowed_hosts(), *own])
    )
