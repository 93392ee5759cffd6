"""`python -m harness report RUN`: the verdict of a campaign, judged again from disk alone."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from harness import rundir
from harness.jsonable import from_json, to_json
from harness.judgement import Measured, judge
from harness.records import CellRecord
from harness.verdicts import CampaignVerdict


def parser() -> argparse.ArgumentParser:
    """The verb's command line."""
    p = argparse.ArgumentParser(
        prog="python -m harness report",
        description="Judge a campaign again from its records, and show what was found. "
        "Changes nothing in its directory, but for plots that are asked for.",
    )
    p.add_argument("run", metavar="RUN", help="a campaign's directory, or its id in --runs-dir")
    p.add_argument("--runs-dir", type=Path, default=Path(rundir.DEFAULT_RUNS_DIR), metavar="DIR")
    p.add_argument("--plots", action="store_true", help="draw plots/*.svg in its directory")
    p.add_argument("--json", action="store_true", help="print the verdict as JSON")
    return p


def main(argv: list[str]) -> int:
    """Run the verb; returns the exit code."""
    args = parser().parse_args(argv)
    directory = rundir.find_campaign(args.run, args.runs_dir, "report ")
    measured = Measured.read(directory)
    records = measured.records()
    verdict = judge(measured, records)
    plots = draw(measured, records, verdict) if args.plots else []
    if args.json:
        print(json.dumps(to_json(verdict), indent=1))
        return 0
    from harness.report.terminal import Terminal

    view = Terminal()
    try:
        view.say(f"campaign {directory}")
        view.results(records)
        view.verdict(verdict)
        view.say("")
        for index, wrong in sorted(measured.damaged.items()):
            view.say(f"cell {index} is left out: {wrong}", "yellow")
        view.say(_against_stored(directory, verdict))
        for path in plots:
            view.say(f"drawn: {path}")
    finally:
        view.close()
    return 0


def draw(measured: Measured, records: Sequence[CellRecord], verdict: CampaignVerdict) -> list[Path]:
    """Write the campaign's plots; their paths."""
    from harness.report.plots import write_plots

    return write_plots(
        measured.directory,
        verdict,
        measured.plan,
        records,
        measured.series(records),
        measured.device_courses(records),
        margin_pct=measured.settings.margin_pct,
    )


def _against_stored(directory: Path, verdict: CampaignVerdict) -> str:
    path = directory / rundir.VERDICT
    if not path.is_file():
        return "there is no verdict.json to compare with: the campaign did not come to its end"
    try:
        stored = from_json(CampaignVerdict, json.loads(path.read_bytes()), str(path))
    except ValueError as e:
        return f"{path}: cannot be read ({e}), so there is nothing to compare with"
    changed = [
        f.name
        for f in dataclasses.fields(CampaignVerdict)
        # a directory may have been copied under another name
        if f.name != "campaign" and getattr(stored, f.name) != getattr(verdict, f.name)
    ]
    if not changed:
        return f"the same as {path}"
    return f"differs from {path} in: {', '.join(changed)}"
