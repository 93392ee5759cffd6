"""Which tracking store, whether it answers, and what may be said of it. Knows no MLflow.

An address may hold a password. It is handed on as it is, but never said: `scrubbed`.
"""

from __future__ import annotations

import os
import shlex
import socket
import sqlite3
import ssl
import time
import urllib.request
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from harness import rundir
from harness.errors import HarnessError
from harness.tracking_config import survives_in_address
from harness.tracking_text import without_credentials

STORE = "mlflow.db"
ARTIFACTS = "mlartifacts"
HEALTH_S = 5.0


class TrackingError(HarnessError):
    """The tracking store cannot be used; the campaign's directory still has everything."""


def default_uri(runs_dir: Path) -> str:
    """The store beside the campaigns."""
    return f"sqlite:///{runs_dir.resolve() / STORE}"


def check_path(uri: str) -> None:
    """Raises TrackingError for a file whose name its address turns into another one's."""
    path, _, options = uri.partition("?")
    # options hold no path: it is a directory's name that has the `?`
    if uri.startswith("sqlite:") and ("/" in options or not survives_in_address(path)):
        raise TrackingError(
            f"MLflow store {without_credentials(uri)}: a '?' or a '%41' in a directory's name does "
            "not survive in its address; use a runs_dir without it, or another store (tracking.uri)"
        )


def is_server(uri: str) -> bool:
    """Whether it is reached over HTTP, and has its own place for files."""
    return urlsplit(uri).scheme in ("http", "https")


def scrubbed(text: str, uri: str) -> str:
    """`text` without the user and password of `uri`, in whichever form they were put into it."""
    text = without_credentials(text.replace(uri, without_credentials(uri)))
    user_and_password = uri.partition("://")[2].rpartition("@")[0]
    password = user_and_password.partition(":")[2]
    for form in (password, unquote(password)):
        if form:
            text = text.replace(form, "***")
    return text


def without_password(config: Mapping[str, Any]) -> dict[str, Any]:
    """A campaign's configuration as it may be stored: its directory is passed on, and logged."""
    tracking = config.get("tracking")
    if not isinstance(tracking, Mapping) or not isinstance(uri := tracking.get("uri"), str):
        return dict(config)
    return {**config, "tracking": {**tracking, "uri": without_credentials(uri)}}


def track_command(campaign_dir: Path) -> str:
    """The command that logs a campaign from its directory, to the store that it was meant for."""
    words = ["python", "-m", "harness", "track", campaign_dir.name]
    if campaign_dir.parent != Path(rundir.DEFAULT_RUNS_DIR):
        words += ["--runs-dir", str(campaign_dir.parent)]
    return shlex.join(words)


def check_answers(uri: str, seconds: float) -> str:
    """The status that a server answers with when asked whether it is well; empty where not asked.

    Raises TrackingError, in good time, when it is down, silent, or says that it is not well.

    Without this a server that takes connections and never answers would cost the time limit of a
    request, and one that is away several attempts. Not of a server behind a proxy, nor a database.
    """
    parts = urlsplit(uri)
    host = parts.hostname
    if not is_server(uri) or host is None or _has_proxy(parts.scheme, host):
        return ""
    try:
        said = _first_words(uri, host, time.monotonic() + seconds)
    except TimeoutError:
        wrong = f"does not answer within {seconds:g} s"
    except OSError as e:
        wrong = f"cannot be reached: {e.strerror or e}"
    else:
        status = said.partition(b" ")[2][:3].decode("ascii", "replace")
        if said.startswith(b"HTTP/") and not status.startswith("5"):
            return status
        is_http = said.startswith(b"HTTP/")
        wrong = f"answers {status} when asked for its health" if is_http else "is no HTTP server"
    raise TrackingError(f"MLflow server {without_credentials(uri)} {wrong}")


def store_state(uri: str | None, runs_dir: Path) -> str:
    """In words, the store as it is now; nothing is written, and MLflow not imported.

    Raises TrackingError where it cannot be reached, read or made.
    """
    where = uri or default_uri(runs_dir)
    shown, parts = without_credentials(where), urlsplit(where)
    if is_server(where):
        status = check_answers(where, HEALTH_S)
        return f"{shown} answers (/health: {status})" if status else f"{shown}: behind a proxy"
    check_path(where)
    if parts.scheme != "sqlite":
        return f"{shown}: of this kind it is not tried beforehand"
    # an absolute path has four slashes
    path = Path(unquote(parts.path).removeprefix("/"))
    if not path.exists():
        parent = next(p for p in path.absolute().parents if p.exists())
        if not os.access(parent, os.W_OK | os.X_OK):
            raise TrackingError(f"{shown}: {parent} cannot be written")
        return f"{shown}: not there yet, the first campaign makes it"
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as store:
            store.execute("SELECT 1 FROM experiments LIMIT 1")
    except sqlite3.Error as e:
        raise TrackingError(f"{shown}: not a store of MLflow's: {e}") from e
    if not os.access(path, os.W_OK):
        raise TrackingError(f"{shown}: cannot be written")
    return f"{shown}: is there and can be written"


def _first_words(uri: str, host: str, deadline: float) -> bytes:
    """The beginning of a status line. Raises OSError, of which TimeoutError is one."""
    parts = urlsplit(uri)
    tls = parts.scheme == "https"
    request = (
        f"GET {parts.path.rstrip('/')}/health HTTP/1.1\r\n"
        f"Host: {parts.netloc.rpartition('@')[2]}\r\nConnection: close\r\n\r\n"
    )
    where = (host, parts.port or (443 if tls else 80))
    with closing(socket.create_connection(where, timeout=_left(deadline))) as plain:
        connection = plain
        if tls:  # nothing is told or believed here: MLflow itself checks whom it talks to
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            connection = context.wrap_socket(plain, server_hostname=host)
        connection.sendall(request.encode())
        said = b""
        while len(said) < len(b"HTTP/1.1 200"):
            connection.settimeout(_left(deadline))
            more = connection.recv(64)
            if not more:
                break
            said += more
        return said


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _has_proxy(scheme: str, host: str) -> bool:
    return scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(host)
