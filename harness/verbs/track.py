"""`python -m harness track RUN...`: log stored campaigns to MLflow, or what is not there yet."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness import rundir
from harness.configure import load_yaml
from harness.errors import HarnessError, Interrupted
from harness.journal import is_running
from harness.tracking_process import LoggingProcess
from harness.tracking_store import TrackingError, default_uri
from harness.tracking_text import without_credentials
from harness.tracking_worker import Request

# A store may be slow, and the first request imports MLflow and may make a store's tables; but one
# that does nothing for so long is given up.
SILENT_S = 120.0
AT_MOST_S = 24 * 3600.0
REQUEST_S = 60


def parser() -> argparse.ArgumentParser:
    """The verb's command line."""
    p = argparse.ArgumentParser(
        prog="python -m harness track",
        description="Log campaigns from their directories to MLflow. What is there already is not "
        "logged again; each campaign is logged whatever becomes of the others.",
        epilog="exit codes: 0 all are logged; 1 some are not; 2 wrong usage, nothing was done",
    )
    p.add_argument(
        "runs", nargs="+", metavar="RUN", help="a campaign's directory, or its id in --runs-dir"
    )
    p.add_argument("--runs-dir", type=Path, default=Path(rundir.DEFAULT_RUNS_DIR), metavar="DIR")
    p.add_argument(
        "--uri",
        help="where to, instead of what the campaign was told (tracking.uri; by default the store "
        "beside it); passwords are better left to the environment (MLFLOW_TRACKING_PASSWORD)",
    )
    p.add_argument("--json", action="store_true", help="print a JSON list, one object a campaign")
    return p


def main(argv: list[str]) -> int:
    """Run the verb; returns the exit code."""
    args = parser().parse_args(argv)
    directories = [rundir.find_campaign(run, args.runs_dir, "track ") for run in args.runs]
    rows = []
    try:
        with LoggingProcess() as process:
            for directory in dict.fromkeys(directories):
                rows.append(_track(process, directory, args.uri))
                if not args.json:
                    print(_line(rows[-1]), flush=True)
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted with {len(rows)} of {len(directories)} logged; the same command goes on"
        ) from None
    if args.json:
        print(json.dumps(rows, indent=1))
    return 0 if all(row["logged"] for row in rows) else 1


def _track(process: LoggingProcess, directory: Path, uri: str | None) -> dict[str, Any]:
    row: dict[str, Any] = {"campaign": str(directory), "logged": False}
    try:
        config = load_yaml(directory / rundir.CONFIG)
        where, experiment = _meant_for(directory, config)
        where = uri or where
        runs_dir = directory.resolve().parent
        row["store"] = without_credentials(where or default_uri(runs_dir))
        if is_running(directory):
            raise TrackingError("it is running, and logs itself after each cell")
        answer = process.ask(
            Request(
                directory=str(directory.resolve()),
                uri=where,
                runs_dir=str(runs_dir),
                experiment=experiment,
                seconds=AT_MOST_S,
                request_s=REQUEST_S,
            ),
            at_most_s=AT_MOST_S,
            silent_s=SILENT_S,
        )
    except HarnessError as e:
        return {**row, "run_id": None, "error": str(e)}
    return {**row, "logged": True, "run_id": answer.run_id if answer else None, "error": None}


def _meant_for(directory: Path, config: Any) -> tuple[str | None, str]:
    """The store that its configuration names, None for the one beside it, and the experiment."""
    if not isinstance(config, Mapping):
        raise TrackingError(f"{directory / rundir.CONFIG}: is no configuration")
    tracking = config.get("tracking")
    uri = tracking.get("uri") if isinstance(tracking, Mapping) else None
    return (uri if isinstance(uri, str) else None), str(config.get("name") or "campaigns")


def _line(row: dict[str, Any]) -> str:
    if row["logged"]:
        return f"{row['campaign']}: logged to {row['store']}, run {row['run_id']}"
    return f"{row['campaign']}: not logged: {row['error']}"
