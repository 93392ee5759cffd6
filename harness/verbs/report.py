"""`python -m harness report RUN`: the verdict of a campaign, judged again from disk alone."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness import rundir
from harness.configure import load_yaml
from harness.errors import DeviceError
from harness.journal import read_journal
from harness.jsonable import to_json
from harness.jsonfile import read_as
from harness.judgement import Measured, judge
from harness.records import CellRecord
from harness.verdicts import CampaignVerdict

if TYPE_CHECKING:
    from harness.report.contents import Contents


def parser() -> argparse.ArgumentParser:
    """The verb's command line."""
    p = argparse.ArgumentParser(
        prog="python -m harness report",
        description="Judge a campaign again from its records, and show what was found. "
        "Changes nothing in its directory, but for what --html and --plots ask for.",
    )
    p.add_argument("run", metavar="RUN", help="a campaign's directory, or its id in --runs-dir")
    p.add_argument("--runs-dir", type=Path, default=Path(rundir.DEFAULT_RUNS_DIR), metavar="DIR")
    p.add_argument("--plots", action="store_true", help="draw plots/*.svg in its directory")
    p.add_argument(
        "--html",
        nargs="?",
        const="",
        metavar="FILE",
        help="write one self-contained page: report.html in its directory, or FILE",
    )
    p.add_argument(
        "--md", action="store_true", help="print Markdown for a pull request, and nothing else"
    )
    p.add_argument("--json", action="store_true", help="print the verdict as JSON")
    return p


def main(argv: list[str]) -> int:
    """Run the verb; returns the exit code."""
    args = parser().parse_args(argv)
    directory = rundir.find_campaign(args.run, args.runs_dir, "report ")
    measured = Measured.read(directory)
    records = measured.records()
    verdict = judge(measured, records)
    written = draw(measured, records, verdict) if args.plots else []
    if args.html is not None:
        written.append(write_html(measured, records, verdict, args.html or None))
    if args.md:
        from harness.report.markdown import markdown_report

        print(markdown_report(contents_of(measured, records, verdict)), end="")
        return 0
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
        for path in written:
            view.say(f"written: {path}")
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


def write_html(
    measured: Measured,
    records: Sequence[CellRecord],
    verdict: CampaignVerdict,
    file: str | None = None,
) -> Path:
    """Write the page that shows the campaign: `file`, or report.html in its directory."""
    from harness.report.html import write_report

    contents = contents_of(measured, records, verdict, device=True)
    return write_report(contents, None if file is None else Path(file))


def contents_of(
    measured: Measured,
    records: Sequence[CellRecord],
    verdict: CampaignVerdict,
    *,
    device: bool = False,
) -> Contents:
    """What a report is made of; `device`: also what was sampled while cells ran."""
    from harness.report.contents import Contents

    stored = load_yaml(measured.directory / rundir.CONFIG)
    return Contents(
        directory=measured.directory.absolute(),
        plan=measured.plan,
        verdict=verdict,
        records=records,
        series=measured.series(records),
        device=measured.device_courses(records) if device else {},
        damaged=measured.damaged,
        margin_pct=measured.settings.margin_pct,
        config=stored if isinstance(stored, Mapping) else {},
        environment=rundir.read_environment(measured.directory),
        events=read_journal(measured.directory),
        sweep=rundir.read_sweep(measured.directory),
    )


def _against_stored(directory: Path, verdict: CampaignVerdict) -> str:
    path = directory / rundir.VERDICT
    try:
        stored = read_as(CampaignVerdict, path)
    except DeviceError as e:
        return f"{e}, so there is nothing to compare with"
    if stored is None:
        return "there is no verdict.json to compare with"
    changed = [
        f.name
        for f in dataclasses.fields(CampaignVerdict)
        # a directory may have been copied under another name
        if f.name != "campaign" and getattr(stored, f.name) != getattr(verdict, f.name)
    ]
    if not changed:
        return f"the same as {path}"
    return f"differs from {path} in: {', '.join(changed)}"
