"""What the screen takes from the machine while a cell runs: the harness' own share of a core.

    python tests/bench/screen_cost.py [--ssh] [--seconds 15] [--repeat 3] [--tree DIR]

A campaign of the engine in a terminal, and the same into a pipe, in turns; `--ssh` with the cell
behind a real sshd on loopback; `--tree`: another checkout to run. Counted over `--seconds` of the
first cell: CPU time of all threads of the harness (schedstat), and bytes written to the terminal.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tests"))

from ssh_parts import Sshd  # noqa: E402

SETTLE_S = 4.0


def cpu_s(pid: int) -> float:
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


@contextlib.contextmanager
def campaign(tree: Path, overrides: list[str], terminal: bool) -> Iterator[tuple[int, int]]:
    """The process, and where its output is to be read."""
    ours, theirs = pty.openpty() if terminal else os.pipe()
    if terminal:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "harness", "+experiment=matched_pair", *overrides],
        cwd=tree,
        stdin=theirs if terminal else subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(tree), "TERM": "xterm-256color"},
    )
    os.close(theirs)
    try:
        yield process.pid, ours
    finally:
        process.send_signal(signal.SIGINT)
        while process.poll() is None:
            read(ours)
        os.close(ours)


def read(fd: int) -> bytes:
    """What came within a tenth of a second."""
    with contextlib.suppress(OSError):
        if select.select([fd], [], [], 0.1)[0]:
            return os.read(fd, 65536)
    return b""


def share(tree: Path, overrides: list[str], terminal: bool, seconds: float) -> tuple[float, float]:
    """Percent of a core, and bytes a second."""
    with (
        tempfile.TemporaryDirectory() as runs,
        campaign(tree, [*overrides, f"runs_dir={runs}"], terminal) as (pid, fd),
    ):
        said = b""
        # `running` comes from both, and the first tokens some seconds later
        while not (b"running" in said or b"token " in said):
            said += read(fd)
        end = time.monotonic() + SETTLE_S
        while time.monotonic() < end:
            read(fd)
        began, before, written = time.monotonic(), cpu_s(pid), 0
        while time.monotonic() < began + seconds:
            written += len(read(fd))
        took = time.monotonic() - began
        return 100 * (cpu_s(pid) - before) / took, written / took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ssh", action="store_true")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--tree", type=Path, default=REPO)
    args = parser.parse_args()
    # slow enough to last: megabytes for every expert
    overrides = ["model=inflated", "model.factor=16", "cell.n_predict=1900", "tracking=off"]
    overrides += ["schedule.spacing_s=0", "schedule.probe_s=0", "cell.engine.io_threads=1"]
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as at_end:
        if args.ssh:
            sshd = Sshd(Path(scratch) / "sshd")
            sshd.start()
            at_end.callback(sshd.stop)
            overrides += sshd.overrides()
        for _ in range(args.repeat):
            for terminal in (True, False):
                cpu, rate = share(args.tree.resolve(), overrides, terminal, args.seconds)
                name = "terminal" if terminal else "pipe"
                print(f"{name}: {cpu:.2f} % of a core, {rate:.0f} bytes/s", flush=True)


if __name__ == "__main__":
    main()
