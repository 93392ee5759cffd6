"""What logging one cell costs, to the store beside the campaigns and to an `mlflow server`.

    python tests/bench/tracking.py [--cells 20] [--tokens 128] [--server]

Prints seconds of wall and of processor per cell (median and worst), of the process that logs; the
first request, which imports MLflow and makes the store, stands apart. The cells have 15 series.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tracking_parts import served, write_another_cell, write_campaign

from harness.tracking_process import LoggingProcess
from harness.tracking_worker import Request


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--server", action="store_true", help="over HTTP, to SQLite there")
    args = parser.parse_args()
    with contextlib.ExitStack() as at_end:
        home = Path(at_end.enter_context(tempfile.TemporaryDirectory()))
        uri = None
        if args.server:
            store = f"sqlite:///{home}/server.db"
            uri = at_end.enter_context(served(home / "server", store)).uri
        directory = write_campaign(home / "runs")
        for made in (directory / "cells").iterdir():
            shutil.rmtree(made)
        process = at_end.enter_context(LoggingProcess())

        def ask() -> tuple[float, float]:
            request = Request(str(directory), uri, str(directory.parent), "bench", 600, 60, True)
            began, before = time.perf_counter(), _cpu(process)
            answer = process.ask(request, at_most_s=600)
            assert answer is not None and answer.run_id
            return time.perf_counter() - began, _cpu(process) - before

        first = ask()
        print(f"first request   {first[0]:6.2f} s, {first[1]:.2f} s of processor")
        cells = []
        for index in range(args.cells):
            write_another_cell(directory, index, args.tokens)
            cells.append(ask())
        for name, values in zip(("wall", "processor"), zip(*cells, strict=True), strict=True):
            middle, worst = statistics.median(values), max(values)
            print(f"a cell, {name:9} {middle:5.3f} s median, {worst:.3f} worst")
        assert process.pid is not None
        used = psutil.Process(process.pid)
        before = sum(used.cpu_times()[:2])
        time.sleep(10)
        idle = sum(used.cpu_times()[:2]) - before
        print(
            f"between cells   {idle:.3f} s of processor in 10 s, {used.num_threads()} threads, "
            f"{used.memory_info().rss >> 20} MiB"
        )
    return 0


def _cpu(process: LoggingProcess) -> float:
    return 0.0 if process.pid is None else sum(psutil.Process(process.pid).cpu_times()[:2])


if __name__ == "__main__":
    sys.exit(main())
