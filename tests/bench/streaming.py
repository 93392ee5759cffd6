"""What streaming costs and gains on this machine, each measured against its own yardstick.

    python tests/bench/streaming.py overlap     # an I/O-bound run: the larger of its two parts
    python tests/bench/streaming.py cgroup      # a third of the model's memory: plain mmap
    python tests/bench/streaming.py resident    # everything in memory: plain llama.cpp

No test: it asserts nothing but equal logits, and means something only on an otherwise idle machine
(the load is printed). Runs alternate, so that drift hits all sides alike; medians are given with
the spread. Builds the engine and makes the inflated reference model where they are missing.
`cgroup` needs root and a memory controller (v1 or v2) that can be written to.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.engine_env import engine_environment

PROMPT = "In the beginning God created the heaven and the earth. And the earth was without form"
MIB = 1 << 20


def harness(*args: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-m", "harness", *args, "--json"],
        check=True,
        capture_output=True,
        text=True,
    )
    result: dict[str, object] = json.loads(done.stdout)
    return result


def drop_pages(model: Path) -> None:
    with model.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@dataclass(frozen=True)
class Run:
    """One engine run: means per decoded token, and the tokens one by one."""

    wall_ms: float
    cpu_ms: float
    stall_ms: float
    manage_ms: float
    read_mib: float
    hit_rate: float
    token_wall_ms: list[float]
    token_read_bytes: list[int]
    digest: str

    @property
    def tok_s(self) -> float:
        return 1000 / self.wall_ms


def run(engine: Path, model: Path, flags: list[str], tokens: int, group: Path | None = None) -> Run:
    drop_pages(model)
    with tempfile.TemporaryDirectory() as scratch:
        telemetry = Path(scratch) / "telemetry.jsonl"
        command = [
            str(engine),
            "-m",
            str(model),
            "-p",
            PROMPT,
            "-n",
            str(tokens),
            "-t",
            "1",
            "--no-eog",
        ]
        command += ["--logits-digest", "--telemetry", str(telemetry), *flags]
        if group is not None:
            enter = f'echo $$ > {group}/cgroup.procs && exec "$@"'
            command = ["sh", "-c", enter, "sh", *command]
        subprocess.run(
            command,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=engine_environment(),
        )
        events = [json.loads(line) for line in telemetry.read_text().splitlines()]
    summary = events[-1]
    rows = [event for event in events if event["type"] == "token"]
    decode, n = summary["decode"], summary["tokens"]
    return Run(
        wall_ms=decode["wall_ms"] / n,
        cpu_ms=decode["cpu_ms"] / n,
        stall_ms=(decode["stall_ms"] or 0) / n,
        manage_ms=(decode["manage_ms"] or 0) / n,
        read_mib=(decode["read_bytes"] or 0) / n / MIB,
        hit_rate=decode["hits"] / decode["requests"] if decode["requests"] else float("nan"),
        token_wall_ms=[row["wall_ms"] for row in rows],
        token_read_bytes=[row["read_bytes"] or 0 for row in rows],
        digest=summary["logits_sha256"],
    )


def settled(resident: Run) -> list[int]:
    """The tokens after the last read: what is read once, on first use, is loading."""
    reading = [i for i, read in enumerate(resident.token_read_bytes) if read > 0]
    first = reading[-1] + 1 if reading else 0
    if first >= len(resident.token_read_bytes):
        raise SystemExit("the last token still read something: give more --tokens")
    return list(range(first, len(resident.token_read_bytes)))


def mean_at(run_: Run, tokens: list[int]) -> float:
    return statistics.fmean(run_.token_wall_ms[i] for i in tokens)


def bandwidth(model: Path, read_bytes: int, lanes: int, seconds: float) -> float:
    """Bytes per second of direct reads of this size at random places, one per lane under way."""
    size = (read_bytes + 4095) // 4096 * 4096
    places = max(1, model.stat().st_size // size - 1)
    done = [0] * lanes
    deadline = time.monotonic() + seconds

    def lane(index: int) -> None:
        chooser = random.Random(index)  # noqa: S311
        fd = os.open(model, os.O_RDONLY | os.O_DIRECT)
        # As the arena does: private huge pages (small ones halve the rate), slot after slot.
        slots = max(1, 64 * MIB // size)
        pages = mmap.mmap(-1, slots * size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        pages.madvise(mmap.MADV_HUGEPAGE)
        buffers = [memoryview(pages)[i * size : (i + 1) * size] for i in range(slots)]
        while time.monotonic() < deadline:
            for buffer in buffers:
                done[index] += os.preadv(fd, [buffer], chooser.randrange(places) * size)
        os.close(fd)

    start = time.monotonic()
    threads = [threading.Thread(target=lane, args=(i,)) for i in range(lanes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / (time.monotonic() - start)


def show(name: str, values: list[float], unit: str) -> float:
    median = statistics.median(values)
    spread = f"({min(values):.2f} to {max(values):.2f}, {len(values)} runs)"
    print(f"{name:34} {median:10.2f} {unit}   {spread}")
    return median


def streaming(cache_mb: int, lanes: int, *more: str) -> list[str]:
    flags = ["--moe-stream", "--dense-weights", "anon", "--cache-mb", str(cache_mb)]
    return [*flags, "--io-threads", str(lanes), *more]


def measure_overlap(engine: Path, model: Path, args: argparse.Namespace) -> None:
    whole = model.stat().st_size // MIB + 64
    quarter = model.stat().st_size // MIB // 4
    slice_bytes = int(args.slice_kib * 1024)
    rows: dict[str, list[float]] = {}
    for _ in range(args.repeat):
        rows.setdefault("bandwidth", []).append(
            bandwidth(model, slice_bytes, args.lanes, 2.0) / MIB
        )
        resident = run(engine, model, streaming(whole, args.lanes), args.tokens)
        serial = run(engine, model, streaming(quarter, args.lanes), args.tokens)
        overlap = run(engine, model, streaming(quarter, args.lanes, "--overlap"), args.tokens)
        if len({r.digest for r in (resident, serial, overlap)}) != 1:
            raise SystemExit("the logits differ")
        rows.setdefault("compute", []).append(mean_at(resident, settled(resident)))
        rows.setdefault("serial", []).append(serial.wall_ms)
        rows.setdefault("overlap", []).append(overlap.wall_ms)
        rows.setdefault("stall", []).append(overlap.stall_ms)
        rows.setdefault("manage", []).append(overlap.manage_ms)
        rows.setdefault("MiB", []).append(overlap.read_mib)
        rows.setdefault("hit", []).append(100 * overlap.hit_rate)
        io = rows["MiB"][-1] / rows["bandwidth"][-1] * 1000
        bound = max(rows["compute"][-1], io)
        rows.setdefault("share", []).append(100 * bound / rows["overlap"][-1])
    show("read bandwidth, measured apart", rows["bandwidth"], "MiB/s")
    show("compute, all resident", rows["compute"], "ms/token")
    show("read", rows["MiB"], "MiB/token")
    show("hit rate", rows["hit"], "%")
    show("serial", rows["serial"], "ms/token")
    show("overlap", rows["overlap"], "ms/token")
    show("  of it waiting", rows["stall"], "ms/token")
    show("  of it managing", rows["manage"], "ms/token")
    show("overlap / bound", rows["share"], "%")


@contextlib.contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    v1 = Path("/sys/fs/cgroup/memory")
    root = v1 if v1.is_dir() else Path("/sys/fs/cgroup")
    group = root / f"moe-bench-{os.getpid()}"
    group.mkdir()
    try:
        (group / ("memory.limit_in_bytes" if v1.is_dir() else "memory.max")).write_text(
            str(limit_bytes)
        )
        yield group
    finally:
        group.rmdir()


def measure_cgroup(engine: Path, model: Path, args: argparse.Namespace) -> None:
    limit = model.stat().st_size // 3
    cache = int(limit / MIB * args.cache_share)
    rows: dict[str, list[float]] = {"plain": [], "stream": [], "ratio": []}
    with memory_group(limit) as group:
        for _ in range(args.repeat):
            plain = run(engine, model, [], args.tokens, group)
            stream = run(
                engine, model, streaming(cache, args.lanes, "--overlap"), args.tokens, group
            )
            if plain.digest != stream.digest:
                raise SystemExit("the logits differ")
            rows["plain"].append(plain.tok_s)
            rows["stream"].append(stream.tok_s)
            rows["ratio"].append(rows["stream"][-1] / rows["plain"][-1])
    size = model.stat().st_size // MIB
    print(f"memory limit {limit // MIB} MiB, cache {cache} MiB, model {size} MiB")
    show("plain mmap", rows["plain"], "tok/s")
    show("streamed, overlap", rows["stream"], "tok/s")
    show("ratio", rows["ratio"], "times")


def measure_resident(engine: Path, model: Path, args: argparse.Namespace) -> None:
    whole = model.stat().st_size // MIB + 64
    rows: dict[str, list[float]] = {"plain": [], "stream": [], "ratio": []}
    for i in range(args.repeat):
        got = {}
        for streamed in (False, True) if i % 2 == 0 else (True, False):
            got[streamed] = run(
                engine, model, streaming(whole, args.lanes) if streamed else [], args.tokens
            )
        if got[True].digest != got[False].digest:
            raise SystemExit("the logits differ")
        tokens = settled(got[True])
        print(f"the last {len(tokens)} of {args.tokens} tokens, which read nothing, are compared")
        rows["plain"].append(1000 / mean_at(got[False], tokens))
        rows["stream"].append(1000 / mean_at(got[True], tokens))
        rows["ratio"].append(rows["stream"][-1] / rows["plain"][-1])
    show("plain", rows["plain"], "tok/s")
    show("streamed, all resident", rows["stream"], "tok/s")
    show("ratio", rows["ratio"], "times")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["overlap", "cgroup", "resident"])
    parser.add_argument("--engine", type=Path, help="default: built by `python -m harness build`")
    parser.add_argument(
        "--model", type=Path, help="default: the reference model, inflated 32 times"
    )
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument(
        "--slice-kib", type=float, default=1152, help="size of the reads of `overlap`'s yardstick"
    )
    parser.add_argument("--cache-share", type=float, default=0.6, help="of the limit, for `cgroup`")
    args = parser.parse_args()
    engine = args.engine or Path(str(harness("build")["engine"]))
    model = args.model or Path(str(harness("model", "make", "inflated", "factor=32")["path"]))
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, {model.name}")
    {"overlap": measure_overlap, "cgroup": measure_cgroup, "resident": measure_resident}[args.what](
        engine, model, args
    )


if __name__ == "__main__":
    main()
