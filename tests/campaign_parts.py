"""One campaign of sequential pairs, run as a user runs it, and what it said."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.journal import load_records
from harness.jsonable import from_json
from harness.records import CellRecord
from harness.verdicts import CampaignVerdict

# Beside a busy neighbour half of the pairs are disturbed and would be left out, so that a campaign
# of real cells may end without an answer. Here nearly all count, and the coins deal with it.
DISTURBED_PAIRS_COUNT = tuple(
    f"verdict.contaminated.{rule}=1000"
    for rule in (
        *("step_pct", "probe_move_pct", "slow_cell_pct", "majflt_time_pct", "cpu_throttled_pct"),
        *("cpu_wait_pct", "neighbour_cpu_pct", "steal_cpu_pct"),
    )
)


class CampaignFailedError(Exception):
    """One line: a campaign that gave no verdict."""


@dataclass(frozen=True)
class Judged:
    directory: Path
    verdict: CampaignVerdict
    records: Sequence[CellRecord]


def judged_campaign(runs_dir: Path, overrides: Sequence[str]) -> Judged:
    """Runs `+experiment=sequential_pairs` below `runs_dir`; the process ends with this call."""
    argv = [sys.executable, "-m", "harness", "+experiment=sequential_pairs", f"runs_dir={runs_dir}"]
    with (runs_dir / "output.txt").open("w+") as output:
        with subprocess.Popen(
            [*argv, *overrides], stdout=output, stderr=subprocess.STDOUT, cwd=runs_dir
        ) as process:
            try:
                code = process.wait()
            finally:
                process.terminate()
        output.seek(0)
        last = output.read().strip().rpartition("\n")[2]
    verdicts = list(runs_dir.glob("*/verdict.json"))
    if code != 0 or len(verdicts) != 1:
        raise CampaignFailedError(f"exit code {code}, {len(verdicts)} verdicts: {last}")
    verdict = from_json(CampaignVerdict, json.loads(verdicts[0].read_bytes()), "verdict.json")
    directory = verdicts[0].parent
    return Judged(directory, verdict, load_records(directory))
