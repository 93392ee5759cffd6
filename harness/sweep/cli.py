"""`python -m harness sweep`: the campaigns of a sweep, one row each, from disk alone."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from harness import rundir
from harness.errors import UsageError
from harness.journal import write_atomically
from harness.jsonable import to_json
from harness.sweep.gating import exit_code, gate_all, write
from harness.sweep.gating import standing as gate_standing
from harness.sweep.state import find_sweep, known_sweeps, read_state
from harness.sweep.words import markdown, standing, table
from harness.typed import nearest

LAST = "last"
STYLES = {"pass": "green", "regression": "red", "none": "yellow"}


def parser() -> argparse.ArgumentParser:
    """The verb's command line."""
    p = argparse.ArgumentParser(
        prog="python -m harness sweep",
        description="Show a sweep (-m, or +experiment=nightly): for each campaign what set it "
        "apart, what it found, how long it took. A sweep is taken up with resume=ID.",
        epilog="exit codes: 0; with --gate: 1 a regression; 3 no readable verdict of any "
        "campaign, or one of them failed",
    )
    p.add_argument(
        "sweep", metavar="SWEEP", help="a sweep's directory, its id in --runs-dir, or: last"
    )
    p.add_argument("--runs-dir", type=Path, default=Path(rundir.DEFAULT_RUNS_DIR), metavar="DIR")
    p.add_argument("--md", type=Path, metavar="FILE", help="write the table as Markdown")
    p.add_argument(
        "--gate",
        metavar="RUN|last-green",
        help="ask the gate about every campaign: tok_s against this baseline, and where the design "
        "compares no speeds, bytes_per_token",
    )
    p.add_argument(
        "--margin",
        type=float,
        default=3.0,
        metavar="PCT",
        help="with --gate: worse by this is allowed (3)",
    )
    p.add_argument(
        "--gate-dir",
        type=Path,
        metavar="DIR",
        help="with --gate: write gate.md, gate.json, JUnit XML",
    )
    p.add_argument("--json", action="store_true", help="print it as JSON")
    return p


def main(argv: list[str]) -> int:
    """Run the verb; returns the exit code."""
    args = parser().parse_args(argv)
    _check(args)
    directory = directory_of(args.sweep, args.runs_dir)
    state = read_state(directory)
    if args.md is not None:
        write_atomically(args.md, markdown(state).encode())
    gated = None
    if args.gate is not None:
        gated = gate_all(directory.parent, state, baseline=args.gate, margin_pct=args.margin)
        if args.gate_dir is not None:
            write(args.gate_dir, state, gated)
    code = 0 if gated is None else exit_code(gated)
    if args.json:
        said = {"directory": str(directory), **to_json(state)}
        print(json.dumps(said if gated is None else {**said, "gate": to_json(gated)}, indent=1))
        return code
    from harness.report.terminal import Terminal

    view = Terminal()
    try:
        view.say(f"sweep {directory}")
        view.table(table(state))
        view.say(standing(state))
        for one in gated or ():
            view.say(f"{one.campaign}: {one.headline}", STYLES[one.verdict])
        if gated is not None:
            view.say(f"gate: {gate_standing(gated)}")
        if state.unfinished:
            view.say(f"resume with: {rundir.resume_command(directory)}")
    finally:
        view.close()
    return code


def _check(args: argparse.Namespace) -> None:
    if args.md is not None and not args.md.absolute().parent.is_dir():
        raise UsageError(f"--md {args.md}: there is no directory {args.md.parent}")
    if args.gate_dir is not None:
        if args.gate is None:
            raise UsageError("--gate-dir: cannot act without --gate")
        if not args.gate_dir.is_dir():
            raise UsageError(f"--gate-dir {args.gate_dir}: there is no such directory")
    if not 0 < args.margin < 100:
        raise UsageError(f"--margin {args.margin:g}: percent, above 0 and below 100")


def directory_of(name: str, runs_dir: Path) -> Path:
    """The sweep that is meant. Raises UsageError."""
    known = known_sweeps(runs_dir)
    if name == LAST and not known:
        raise UsageError(f"sweep {name}: no sweep in {runs_dir}/")
    found = find_sweep(known[-1] if name == LAST else name, runs_dir)
    if found is None:
        near = nearest(name, known[-20:], "sweeps")
        raise UsageError(f"sweep {name}: no sweep there, nor in {runs_dir}/{near}")
    return found
