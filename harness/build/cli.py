"""`python -m harness build`: build the engine ahead of a campaign, or run its tests."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from harness.build.machine import LEVELS, machine_at
from harness.errors import HarnessError, UsageError

if TYPE_CHECKING:
    from harness.build.recipe import Order
    from harness.build.types import BuildProgress
    from harness.progress import Progress


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


# what stages do; the others tell that themselves
_DOES = {"configure": "configuring", "compile": "compiling"}


def shown_on(progress: Progress) -> Callable[[BuildProgress], None]:
    """A build, step by step, on a screen or in a log."""
    from harness.progress import Step

    def show(step: BuildProgress) -> None:
        if step.stage == "note":
            progress.note(step.message)
        elif step.stage in _DOES:
            counted = step.stage == "compile"
            detail = step.message if counted else ""
            what = _DOES[step.stage]
            progress(Step(what, step.done, step.total, "steps", detail), worth_a_line=True)
        else:
            progress(Step(step.message), worth_a_line=True)

    return show


def main(argv: list[str]) -> int:
    """Run the verb; returns the exit code."""
    args = parser().parse_args(argv)
    from harness.progress import Progress
    from harness.screen import Screen

    progress = Progress(Screen(sys.stderr))
    try:
        return _run(args, progress)
    except HarnessError as e:
        progress.close()
        print(f"harness: error: {e}", file=sys.stderr)
        return e.exit_code
    except KeyboardInterrupt:
        progress.close()
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


def _run(args: argparse.Namespace, progress: Progress) -> int:
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
        progress=shown_on(progress),
    )
    tests = None
    if args.tests:
        tests = run_tests(order, cache_dir=args.cache_dir, progress=shown_on(progress))
    progress.close()
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
