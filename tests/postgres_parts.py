"""A real PostgreSQL on loopback, by Debian's package, that asks for a password."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from ports import free_port

USER, PASSWORD = "harness", "s3cr3t-pw"


def programs() -> Path:
    """Where initdb and pg_ctl are; Debian does not put them on PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        pytest.skip("no PostgreSQL here (Debian: postgresql)")
    return found[-1].parent


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """The address of an empty database; the server ends with the block."""
    bin_dir, port = programs(), free_port()
    home = Path(tempfile.mkdtemp(prefix="moe-pg-"))
    secret = home / "password"
    secret.write_text(PASSWORD)
    become: list[str] = []
    if os.getuid() == 0:  # it refuses to be run by root
        user = pwd.getpwnam("postgres")
        become = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        for path in (home, secret):
            os.chown(path, user.pw_uid, user.pw_gid)

    def run(*words: str) -> None:
        done = subprocess.run(
            [*become, str(bin_dir / words[0]), *words[1:]],
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, (words, done.stdout)

    data = home / "data"
    try:
        run("initdb", "-D", str(data), "-U", USER, "-A", "scram-sha-256", "--pwfile", str(secret))
        options = f"-c listen_addresses=127.0.0.1 -p {port} -k {home} -c fsync=off"
        run("pg_ctl", "-D", str(data), "-l", str(home / "log.txt"), "-o", options, "-w", "start")
        try:
            yield f"postgresql+psycopg2://{USER}:{PASSWORD}@127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", "-D", str(data), "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(home, ignore_errors=True)
