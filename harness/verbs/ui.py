"""`python -m harness ui`: look at campaigns in MLflow's pages, on this machine."""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from harness import rundir
from harness.errors import HarnessError, UsageError
from harness.tracking_text import without_credentials
from harness.typed import nearest

LOOPBACK = "127.0.0.1"
# MLflow's own, so that what is written about it holds; taken ports beyond it are passed over
FIRST_PORT, PORTS = 5000, 100


def parser() -> argparse.ArgumentParser:
    """The verb's command line."""
    p = argparse.ArgumentParser(
        prog="python -m harness ui",
        description="Open the MLflow store beside the campaigns with MLflow's own server, print "
        "the addresses of the pages to look at, and stay until Ctrl-C. Only this machine can "
        "connect, unless --host says otherwise.",
    )
    p.add_argument(
        "runs",
        metavar="RUN",
        nargs="*",
        help="campaigns to compare: ids, or directories (default: the newest)",
    )
    p.add_argument("--runs-dir", type=Path, default=Path(rundir.DEFAULT_RUNS_DIR), metavar="DIR")
    p.add_argument(
        "--port",
        type=int,
        metavar="N",
        help=f"0: any free one (default: {FIRST_PORT}, or the next that is free)",
    )
    p.add_argument("--host", default=LOOPBACK, help=f"address to listen on (default: {LOOPBACK})")
    p.add_argument(
        "--uri",
        metavar="http://...",
        help="print the addresses on this running MLflow server; nothing is started",
    )
    return p


def main(argv: Sequence[str]) -> int:
    """Run the verb; returns the exit code."""
    args = parser().parse_args(argv)
    names = [_campaign_id(name) for name in args.runs]
    try:
        if args.uri is not None:
            return _point_at(args.uri, names)
        return _serve(args.runs_dir, names, args.host, args.port)
    except KeyboardInterrupt:  # how it is meant to end
        return 0


def _campaign_id(name: str) -> str:
    return Path(name).resolve().name if Path(name).is_dir() else name


def _point_at(uri: str, names: Sequence[str]) -> int:
    if not uri.startswith(("http://", "https://")):
        raise UsageError(f"--uri {uri}: not the address of a server (http://HOST:PORT)")
    base = without_credentials(uri).rstrip("/")
    for line in _what_to_look_at(uri, base, names):
        print(line)
    return 0


def _serve(runs_dir: Path, names: Sequence[str], host: str, port: int | None) -> int:
    from harness.tracking_store import ARTIFACTS, STORE, default_uri

    store = runs_dir / STORE
    if not store.is_file():
        raise UsageError(
            f"{store}: there is no MLflow store yet; a campaign makes one: "
            "python -m harness +experiment=matched_pair"
            + ("" if runs_dir == Path(rundir.DEFAULT_RUNS_DIR) else f" runs_dir={runs_dir}")
        )
    from harness.tracking import mark_killed
    from harness.tracking_server import allow_hosts, check_store, serve

    with _listener(host, port) as listener:  # before anything slow: a taken port is said at once
        check_store(store)
        with contextlib.suppress(HarnessError):  # what cannot be marked can still be looked at
            mark_killed(None, runs_dir)
        base = f"http://{_in_url(_seen_as(host))}:{listener.getsockname()[1]}"
        lines = _what_to_look_at(default_uri(runs_dir), base, names)
        if not _is_loopback(host):
            allow_hosts(_in_url(host), socket.gethostname(), socket.getfqdn())
            lines.append(
                f"listening on {host}: whoever reaches this machine's port can read and change the "
                "store, no password is asked"
            )

        def ready() -> None:
            print(f"MLflow is at {base} (Ctrl-C ends it)")
            for line in lines:
                print(line)
            sys.stdout.flush()

        serve(default_uri(runs_dir), (runs_dir / ARTIFACTS).resolve(), listener, ready)
    return 0


def _what_to_look_at(uri: str, base: str, names: Sequence[str]) -> list[str]:
    from harness.tracking_pages import (
        addresses,
        campaigns,
        find,
        keep_narrowed,
        keep_views,
        newest,
    )
    from harness.tracking_server import open_client

    with open_client(uri) as client:
        if names:
            found = []
            for name in names:
                pages = find(client, name)
                if pages is None:
                    raise UsageError(
                        f"ui {name}: no such campaign in the store"
                        f"{nearest(name, campaigns(client), 'campaigns')}"
                    )
                found.append(pages)
        else:
            last = newest(client)
            if last is None:
                return ["  no campaign is logged in it yet"]
            found = [last]
        keep_views(client)
        views = keep_narrowed(client, found) if names else {}
    groups = addresses(base, found, views)
    width = max(len(what) for _, rows in groups for what, _ in rows)
    lines = []
    for head, rows in groups:
        lines += [f"{head}:", *(f"  {what.ljust(width)}  {url}" for what, url in rows)]
    return lines


# --- where to listen -----------------------------------------------------------------------------


def _listener(host: str, port: int | None) -> socket.socket:
    """A socket that is bound, so that nobody can take the port meanwhile."""
    if port is not None and not 0 <= port <= 65535:
        raise UsageError(f"--port {port}: ports go from 0 (any free one) to 65535")
    if port is not None:
        bound = _bind(host, port)
        if bound is None:
            with _any_port(host) as other:
                free = other.getsockname()[1]
            raise UsageError(f"--port {port}: taken on {host}; --port {free} is free")
        return bound
    for candidate in range(FIRST_PORT, FIRST_PORT + PORTS):
        bound = _bind(host, candidate)
        if bound is not None:
            return bound
    return _any_port(host)


def _any_port(host: str) -> socket.socket:
    bound = _bind(host, 0)
    if bound is None:
        raise HarnessError(f"{host}: no port is free")
    return bound


def _bind(host: str, port: int) -> socket.socket | None:
    """None: the port is taken."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as e:
        raise UsageError(f"--host {host}: {e.strerror}") from None
    listener = socket.socket(family, kind, proto)
    # a server that ended a moment ago must not block its port for a minute
    if os.name == "posix":
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(128)
    except OSError as e:
        listener.close()
        import errno

        if e.errno == errno.EADDRINUSE:
            return None
        raise UsageError(f"--host {host}, port {port}: cannot listen there: {e.strerror}") from None
    return listener


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _seen_as(host: str) -> str:
    """What to put in an address for a server that listens on all."""
    return socket.gethostname() if host in ("0.0.0.0", "::", "") else host  # noqa: S104 compared


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
