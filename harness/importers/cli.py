"""`python -m harness import bmoe|csv DIR`. Reads DIR, writes campaigns into the runs directory.

Who judges a campaign directory is told by the caller, so that this room stays below judgement.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import rundir
from harness.errors import HarnessError, UsageError
from harness.importers.design import DESIGNS
from harness.importers.write import PLACE_GUESSED, Imported, write_campaign
from harness.words import counted

if TYPE_CHECKING:
    from harness.verdicts import CampaignVerdict

Judge = Callable[[Path], "CampaignVerdict"]


@dataclass(frozen=True)
class _Done:
    """A campaign that was written, and judged where somebody could."""

    directory: Path
    imported: Imported
    verdict: CampaignVerdict | None


def parser() -> argparse.ArgumentParser:
    """The verb's command line."""
    p = argparse.ArgumentParser(
        prog="python -m harness import",
        description="Foreign campaigns into campaign directories like any other; their verdicts.",
    )
    kinds = p.add_subparsers(dest="kind", required=True, metavar="bmoe|csv")
    bmoe = kinds.add_parser(
        "bmoe", help="sessions of BigMoeOnEdge: per-token CSV, .metrics, .state, logs"
    )
    plain = kinds.add_parser("csv", help="campaign.csv and one table of tokens for each cell")
    bmoe.add_argument("dir", type=Path, metavar="DIR", help="one session, or several below it")
    plain.add_argument("dir", type=Path, metavar="DIR", help="where campaign.csv is")
    for kind, of in ((bmoe, "CELL"), (plain, "CONFIG")):
        kind.add_argument(
            "--runs-dir", type=Path, default=Path(rundir.DEFAULT_RUNS_DIR), metavar="DIR"
        )
        kind.add_argument("--name", help="of the campaign; default: the directory's")
        kind.add_argument("--baseline", metavar=of, help="what the others are compared with")
        kind.add_argument(
            "--design", choices=DESIGNS, help="default: recognised from the order of the cells"
        )
        kind.add_argument("--json", action="store_true", help="print JSON")
    return p


def main(argv: list[str], judge: Judge | None = None) -> int:
    """Run the verb; returns the exit code. Without `judge` the campaigns are written only."""
    args = parser().parse_args(argv)
    try:
        done = [
            _finish(imported, args.runs_dir, judge)
            for imported in _read(args.kind, args.dir, args.name, args.baseline, args.design)
        ]
    except HarnessError as e:
        print(f"harness: error: {_plain(str(e))}", file=sys.stderr)
        return e.exit_code
    if args.json:
        print(json.dumps(_as_json(done)))
    else:
        for campaign in done:
            print(_plain(_in_words(campaign)))
    return 0


def _read(
    kind: str, directory: Path, name: str | None, baseline: str | None, design: str | None
) -> list[Imported]:
    if not directory.is_dir():
        wrong = "is not a directory" if directory.exists() else "there is no such directory"
        raise UsageError(f"{directory}: {wrong}")
    if kind == "csv":
        from harness.importers.plain_csv import read_csv_campaign

        return [read_csv_campaign(directory, name=name, baseline=baseline, design=design)]
    from harness.importers.bmoe import read_sessions

    return read_sessions(directory, name=name, baseline=baseline, design=design)


def _finish(imported: Imported, runs_dir: Path, judge: Judge | None) -> _Done:
    directory = write_campaign(imported, runs_dir)
    if judge is None:
        return _Done(directory, imported, None)
    from harness.journal import write_json

    verdict = judge(directory)
    write_json(directory / rundir.VERDICT, verdict)
    return _Done(directory, imported, verdict)


# --- what is shown -------------------------------------------------------------------------------


def _as_json(done: list[_Done]) -> dict[str, Any]:
    """`campaign_dir`: the one campaign; null where there are several, all in `campaign_dirs`."""
    from harness.jsonable import to_json

    return {
        "campaign_dir": str(done[0].directory) if len(done) == 1 else None,
        "campaign_dirs": [str(d.directory) for d in done],
        "campaigns": [
            {
                "campaign_dir": str(d.directory),
                "design": d.imported.plan.design,
                "baseline": d.imported.plan.baseline,
                "cells": _cell_rows(d),
                "verdicts": [] if d.verdict is None else to_json(d.verdict.verdicts),
                "drift": None if d.verdict is None else to_json(d.verdict.drift),
                "passed_over": to_json(d.imported.passed_over),
                "notes": list(d.imported.notes),
            }
            for d in done
        ],
    }


def _cell_rows(done: _Done) -> list[dict[str, Any]]:
    judged = {} if done.verdict is None else {c.index: c for c in done.verdict.cells}
    rows = []
    for cell in done.imported.cells:
        r, found = cell.record, judged.get(cell.record.index)
        rows.append(
            {
                "index": r.index,
                "cell": r.cell,
                "arm": r.arm,
                "role": r.role,
                "run": r.status,
                "tokens": r.counters.tokens,
                "tok_s": r.metrics.tok_s,
                "status": None if found is None else found.status,
                "reasons": [*([r.status_detail] if r.status_detail else [])]
                if found is None
                else list(found.reasons),
                "notes": [*r.notes, *(() if found is None else found.notes)],
            }
        )
    return rows


def _in_words(done: _Done) -> str:
    imported = done.imported
    lines = [f"campaign {done.directory}"]
    of = "" if imported.plan.baseline is None else f", baseline {imported.plan.baseline}"
    lines.append(f"  {counted(len(imported.cells), 'cell')}, design {imported.plan.design}{of}")
    lines += [f"  {note}" for note in imported.notes]
    rows = _cell_rows(done)
    table = [["", "cell", "arm", "tokens", "tok/s", "status"]]
    for row in rows:
        speed = row["tok_s"]
        table.append(
            [
                str(row["index"]),
                row["cell"],
                row["arm"],
                "-" if row["tokens"] is None else str(row["tokens"]),
                "-" if speed is None else f"{speed:.3f}",
                row["status"] or row["run"],
            ]
        )
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    for i, line in enumerate(table):
        cells = [
            text.rjust(w) if k in (0, 3, 4) else text.ljust(w)
            for k, (text, w) in enumerate(zip(line, widths, strict=True))
        ]
        lines.append("  " + "  ".join(cells).rstrip())
        if i:
            row = rows[i - 1]
            lines += [f"       {reason}" for reason in row["reasons"]]
            lines += [
                f"       note: {note}"
                for note in row["notes"]
                if not note.startswith(PLACE_GUESSED)  # said of the campaign
            ]
    if imported.passed_over:
        lines.append("  passed over:")
        lines += [f"    {p.file}: {p.reason}" for p in imported.passed_over]
    if done.verdict is not None:
        lines += _verdict_lines(done.verdict)
    return "\n".join(lines)


def _verdict_lines(verdict: CampaignVerdict) -> list[str]:
    drift = verdict.drift
    change = "" if drift.sentinel_change_pct is None else f" {drift.sentinel_change_pct:+.1f} %"
    lines = [f"  drift: {drift.verdict}{change}"]
    for v in verdict.verdicts:
        effect = "" if v.effect_pct is None else f" {v.effect_pct:+.1f} %"
        if v.ci_pct is not None:
            effect += f" [{v.ci_pct[0]:+.1f}, {v.ci_pct[1]:+.1f}]"
        lines.append(f"  {v.candidate} against {v.baseline}: {v.outcome}{effect}")
        lines += [f"       {reason}" for reason in v.reasons]
    return lines


def _plain(text: str) -> str:
    """`text` as any terminal can show it: names of files need not be valid UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")
