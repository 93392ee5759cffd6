"""`python -m harness sweep`: the campaigns of a sweep, one row each, from disk alone."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from harness import rundir
from harness.errors import UsageError
from harness.journal import write_atomically
from harness.jsonable import to_json
from harness.sweep.state import find_sweep, known_sweeps, read_state
from harness.sweep.words import markdown, standing, table
from harness.typed import nearest

LAST = "last"


def parser() -> argparse.ArgumentParser:
    """The verb's command line."""
    p = argparse.ArgumentParser(
        prog="python -m harness sweep",
        description="Show a sweep (-m, or +experiment=nightly): for each campaign what set it "
        "apart, what it found, how long it took. A sweep is taken up with resume=ID.",
    )
    p.add_argument(
        "sweep", metavar="SWEEP", help="a sweep's directory, its id in --runs-dir, or: last"
    )
    p.add_argument("--runs-dir", type=Path, default=Path(rundir.DEFAULT_RUNS_DIR), metavar="DIR")
    p.add_argument("--md", type=Path, metavar="FILE", help="write the table as Markdown")
    p.add_argument("--json", action="store_true", help="print it as JSON")
    return p


def main(argv: list[str]) -> int:
    """Run the verb; returns the exit code."""
    args = parser().parse_args(argv)
    directory = directory_of(args.sweep, args.runs_dir)
    state = read_state(directory)
    if args.md is not None:
        if not args.md.parent.is_dir():
            raise UsageError(f"--md {args.md}: there is no directory {args.md.parent}")
        write_atomically(args.md, markdown(state).encode())
    if args.json:
        print(json.dumps({"directory": str(directory), **to_json(state)}, indent=1))
        return 0
    from harness.report.terminal import Terminal

    view = Terminal()
    try:
        view.say(f"sweep {directory}")
        view.table(table(state))
        view.say(standing(state))
        if state.unfinished:
            view.say(f"resume with: {rundir.resume_command(directory)}")
    finally:
        view.close()
    return 0


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
