"""`python -m harness build`: build the engine ahead of a campaign, or run its tests."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from harness.build.machine import LEVELS, machine_at
from harness.errors import HarnessError, UsageError

if TYPE_CHECKING:
    from harness.build.recipe import Order
    from harness.build.types import BuildProgress


def parser() -> argparse.ArgumentParser:
    """The verb's command line."""
    p = argparse.ArgumentParser(
        prog="python -m harness build",
        description="Build moe-engine and moe-launcher into the cache, or say that they are there.",
    )
    p.add_argument("--llama-cpp-dir", type=Path, metavar="DIR", help="use this llama.cpp source")
    p.add_argument("--cache-dir", type=Path, metavar="DIR", help="default: ~/.cache/moe-harness")
    p.add_argument(
        "--sanitize",
        choices=["address", "thread"],
        default="",
        help="AddressSanitizer and UBSan, or ThreadSanitizer",
    )
    p.add_argument(
        "--toolchain",
        choices=["host", "zig", "ndk"],
        help="what to compile with (default: host, or zig for another architecture)",
    )
    p.add_argument(
        "--target",
        choices=list(LEVELS),
        metavar="ARCH",
        help=f"for machines of this architecture: {', '.join(LEVELS)} (default: this machine)",
    )
    p.add_argument(
        "--level",
        metavar="NAME",
        help="with --target: instructions that its CPU has, lowest first (default: the lowest): "
        + "; ".join(f"{arch} {', '.join(levels)}" for arch, levels in LEVELS.items()),
    )
    p.add_argument(
        "--ndk-dir",
        type=Path,
        metavar="DIR",
        help="default: $ANDROID_NDK_HOME",
    )
    p.add_argument("--tests", action="store_true", help="build and run the engine's C++ tests too")
    p.add_argument("--clean", action="store_true", help="drop what is in the cache and build anew")
    p.add_argument("--json", action="store_true", help="print the result as JSON")
    return p


class ProgressLine:
    """Shows build progress on stderr: one line that overwrites itself, or a line now and then."""

    # without a terminal: seconds between lines of one stage
    INTERVAL_S = 15.0

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._stage = ""
        self._shown_s = 0.0
        self._open = False

    def __call__(self, step: BuildProgress) -> None:
        """Show one step."""
        count = f"{step.done}/{step.total} " if step.total else ""
        text = f"{step.stage} {count}{step.message} ({step.elapsed_s:.0f} s)"
        if self._terminal:
            sys.stderr.write(f"\r\x1b[K{text[:110]}")
            self._open = True
            if step.stage in {"note", "wait"}:
                self.close()
            sys.stderr.flush()
            return
        fresh = step.stage != self._stage or step.stage == "note"
        if fresh or step.elapsed_s - self._shown_s >= self.INTERVAL_S:
            print(text, file=sys.stderr, flush=True)
            self._stage, self._shown_s = step.stage, step.elapsed_s

    def close(self) -> None:
        """End the line that is being overwritten."""
        if self._open:
            sys.stderr.write("\n")
            self._open = False


def main(argv: list[str]) -> int:
    """Run the verb; returns the exit code."""
    args = parser().parse_args(argv)
    line = ProgressLine()
    try:
        return _run(args, line)
    except HarnessError as e:
        line.close()
        print(f"harness: error: {e}", file=sys.stderr)
        return e.exit_code
    except KeyboardInterrupt:
        line.close()
        print("harness: interrupted; what was compiled is kept", file=sys.stderr)
        return 130


def _order(args: argparse.Namespace) -> Order:
    """What the command line asks for. UsageError when options of it cannot act together."""
    from harness.build.recipe import Order

    if args.level is not None and args.target is None:
        raise UsageError("--level: needs --target ARCH; for this machine it is found out")
    if args.ndk_dir is not None and args.toolchain != "ndk":
        raise UsageError("--ndk-dir: acts only with --toolchain ndk")
    if args.toolchain == "ndk" and args.target is None:
        raise UsageError("--toolchain ndk: needs --target ARCH, the phone's")
    if args.tests and (args.target is not None or args.toolchain not in {None, "host"}):
        raise UsageError("--tests: runs on this machine, so not with --target or --toolchain")
    machine = None
    if args.target is not None:
        machine = machine_at(args.target, args.level, android=args.toolchain == "ndk")
    return Order(args.llama_cpp_dir, args.sanitize, args.toolchain, machine, args.ndk_dir)


def _run(args: argparse.Namespace, line: ProgressLine) -> int:
    from harness.build.engine import ensure_engine
    from harness.build.suite import clean, run_tests

    order = _order(args)
    if args.clean:
        clean(args.cache_dir, order)
    build = ensure_engine(
        llama_cpp_dir=order.llama_cpp_dir,
        cache_dir=args.cache_dir,
        sanitize=order.sanitize,
        toolchain=order.toolchain,
        machine=order.machine,
        ndk_dir=order.ndk_dir,
        progress=line,
    )
    tests = None
    if args.tests:
        tests = run_tests(order, cache_dir=args.cache_dir, progress=line)
    line.close()
    if args.json:
        result = {k: str(v) if isinstance(v, Path) else v for k, v in asdict(build).items()}
        if tests is not None:
            result["tests"] = {"passed": tests.passed, "log": str(tests.log)}
        print(json.dumps(result))
    else:
        print(f"engine   {build.engine}\nlauncher {build.launcher}")
        version = build.version or f"build {build.build_id}, which cannot be run here"
        print(f"{build.source}: {version}")
        if tests is not None:
            print(f"tests {'passed' if tests.passed else 'FAILED'}: {tests.log}")
    return 0 if tests is None or tests.passed else 1
