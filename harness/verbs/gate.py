"""`python -m harness gate`: is the engine worse than it was? Over stored campaigns, or by a run."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness import rundir
from harness.errors import DeviceError, HarnessError, UsageError

if TYPE_CHECKING:
    from harness.gate.answer import Request
    from harness.gate.result import GateResult

NO_VERDICT = 3
RunCampaign = Callable[[Sequence[str]], int]
_EXIT_CODES = (
    "exit codes: 0 pass; 1 regression, or another output; 3 no readable verdict (a contaminated "
    "campaign is neither a regression nor a pass), also the first campaign, which has nothing to "
    "be compared with, and one that cannot be accepted; 2 wrong usage; 130 interrupted"
)


def parser() -> argparse.ArgumentParser:
    """The verb's command line."""
    p = argparse.ArgumentParser(
        prog="python -m harness gate",
        usage="%(prog)s [--baseline RUN|last-green] [--candidate RUN] [options] [-- KEY=VALUE ...]",
        description="Whether a campaign shows the engine to be worse than another campaign did "
        "(--baseline, --candidate); what a campaign says of its own candidate (--candidate alone); "
        "or run one that compares the baseline's engine with the present one, pair by pair "
        "(--baseline alone). The answer is kept in gate.json beside the candidate (docs/gate.md).",
        epilog=_EXIT_CODES,
    )
    p.add_argument(
        "--baseline",
        metavar="RUN",
        help="a campaign's directory, its id in --runs-dir, or last-green: the newest before the "
        "candidate, of its experiment, configuration and device, that passed by no wider margin",
    )
    p.add_argument("--candidate", metavar="RUN", help="a campaign's directory or id")
    p.add_argument(
        "--metric",
        action="append",
        metavar="NAME",
        help="of the records; repeatable (default: tok_s)",
    )
    p.add_argument(
        "--margin", type=float, default=3.0, metavar="PCT", help="worse by this is allowed (3)"
    )
    p.add_argument("--arm", action="append", metavar="NAME", help="only this arm; repeatable")
    p.add_argument("--accept", action="store_true", help="make the candidate green, by hand")
    p.add_argument("--runs-dir", type=Path, default=Path(rundir.DEFAULT_RUNS_DIR), metavar="DIR")
    p.add_argument("--junit", type=Path, metavar="FILE", help="write JUnit XML")
    p.add_argument(
        "--md", metavar="FILE|-", help="write Markdown; -: print it instead of the table"
    )
    p.add_argument("--json", action="store_true", help="print JSON")
    p.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="of the campaign that is run, after --"
    )
    return p


def main(argv: list[str], run_campaign: RunCampaign) -> int:
    """Run the verb; returns the exit code. `run_campaign`: by its overrides, to its exit code."""
    args = parser().parse_args(argv)
    try:
        return _gate(args, run_campaign)
    except (HarnessError, KeyboardInterrupt):
        raise
    except Exception:  # a fault of ours would end with 1, which accuses the engine
        traceback.print_exc()
        return NO_VERDICT


def _gate(args: argparse.Namespace, run_campaign: RunCampaign) -> int:
    _check(args)
    from harness.gate.answer import Request, answer
    from harness.gate.metrics import metrics_named

    metrics = metrics_named(args.metric or ["tok_s"])
    candidate = args.runs_dir
    if args.candidate is not None:
        candidate = rundir.find_campaign(args.candidate, args.runs_dir, "--candidate ")
    request = Request(
        candidate=candidate,
        baseline="last-green" if args.accept and args.baseline is None else args.baseline,
        metrics=metrics,
        margin_pct=args.margin,
        runs_dir=args.runs_dir,
        arms=tuple(args.arm) if args.arm else None,
        accept=args.accept,
    )
    if args.candidate is not None:
        return _tell(answer(request), args)
    return _tell(_measured(request, args, run_campaign), args)


def _measured(request: Request, args: argparse.Namespace, run_campaign: RunCampaign) -> GateResult:
    """The answer of a campaign that is run now. What fails on the way accuses no engine."""
    from harness.gate.answer import unread
    from harness.gate.rerun import run_and_answer

    # what the campaign tells while it runs is not the answer
    apart = contextlib.redirect_stdout(sys.stderr) if args.json or args.md == "-" else None
    try:
        with apart or contextlib.nullcontext():
            return run_and_answer(request, args.overrides, run_campaign)
    except DeviceError as e:
        return unread(request, str(e))


def _check(args: argparse.Namespace) -> None:
    if not 0 < args.margin < 100:
        raise UsageError(f"--margin {args.margin:g}: percent, above 0 and below 100")
    if args.baseline == "":  # a variable of the shell that is not set
        raise UsageError("--baseline: is empty; name a campaign, or last-green")
    if args.candidate is None and args.baseline is None:
        raise UsageError("gate: needs --candidate RUN, --baseline RUN, or both")
    if args.accept and args.candidate is None:
        raise UsageError("--accept: accepts a campaign that is there; name it with --candidate")
    if args.candidate is not None and args.overrides:
        raise UsageError(
            f"{args.overrides[0]}: only a campaign that is run has a configuration; leave it out, "
            "or --candidate"
        )
    if args.json and args.md == "-":
        raise UsageError("--md -: and --json both print to standard output; give --md a file")
    for flag, path in (("--junit", args.junit), ("--md", args.md)):
        if path is not None and str(path) != "-" and not Path(path).absolute().parent.is_dir():
            raise UsageError(f"{flag} {path}: there is no such directory")


def _tell(result: GateResult, args: argparse.Namespace) -> int:
    from harness.gate.junit import junit_xml
    from harness.gate.markdown import markdown
    from harness.gate.text import text
    from harness.jsonable import to_json

    # first what nothing can keep from being said: it may be the answer of half an hour's run
    if args.json:
        print(json.dumps(to_json(result), indent=1))
    elif args.md == "-":
        print(markdown(result), end="")
    else:
        text(result, sys.stdout)
    if args.junit is not None:
        _write("--junit", args.junit, junit_xml(result))
    if args.md is not None and args.md != "-":
        _write("--md", Path(args.md), markdown(result).encode())
    return result.exit_code


def _write(flag: str, path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as e:
        raise UsageError(f"{flag} {path}: {e.strerror}") from None
