"""The nights before: fetched from the newest earlier run that keeps them, and packed for the next.

    python .github/nightly/history.py restore --workflow nightly.yml --branch main
    python .github/nightly/history.py pack history.tar.gz --nights 60

`restore` leaves runs/ as the newest earlier run of the workflow on that branch packed it, or
absent, where none keeps any: then this night is the first. It needs `gh`, and GH_TOKEN that may
read actions. `pack` lets go of what is older than so many nights, in runs/ and in its MLflow store.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ARTIFACT, ARCHIVE = "nightly-history", "history.tar.gz"
LOOK_BACK = 30  # runs


def main(argv: list[str]) -> int:
    p = argparse.ArgumentParser(description="Keep the history of the nightly.")
    p.add_argument("--runs-dir", type=Path, default=Path("runs"), metavar="DIR")
    verbs = p.add_subparsers(dest="verb", required=True)
    get = verbs.add_parser("restore")
    get.add_argument("--workflow", required=True)
    get.add_argument("--branch", required=True)
    put = verbs.add_parser("pack")
    put.add_argument("archive", type=Path)
    put.add_argument("--nights", type=int, default=60)
    args = p.parse_args(argv)
    if args.verb == "restore":
        return restore(args.runs_dir, args.workflow, args.branch)
    return pack(args.runs_dir, args.archive, args.nights)


# --- fetching ------------------------------------------------------------------------------------


def restore(runs_dir: Path, workflow: str, branch: str) -> int:
    if runs_dir.exists():
        print(f"history: {runs_dir}/ is there already (this runner keeps it); nothing is fetched")
        return 0
    asked = ["run", "list", "--workflow", workflow, "--branch", branch, "--status", "completed"]
    found = gh(*asked, "--limit", str(LOOK_BACK), "--json", "databaseId")
    if found is None:
        return 1
    for run in json.loads(found):
        with tempfile.TemporaryDirectory(dir=runs_dir.absolute().parent) as there:
            number = str(int(run["databaseId"]))
            if gh("run", "download", number, "--name", ARTIFACT, "--dir", there) is None:
                continue  # it was cancelled early, or its artifact has expired
            unpack(Path(there) / ARCHIVE, runs_dir)
        print(f"history: as run {number} left it")
        return 0
    print(f"history: none of the last {LOOK_BACK} runs keeps any; this night is the first")
    return 0


def gh(*words: str) -> str | None:
    """What it prints; None where it fails, which it says itself."""
    try:
        done = subprocess.run(["gh", *words], stdout=subprocess.PIPE, text=True, check=False)
    except FileNotFoundError:
        print("history: needs gh, GitHub's command line, on this runner", file=sys.stderr)
        return None
    return done.stdout if done.returncode == 0 else None


def unpack(archive: Path, runs_dir: Path) -> None:
    """Whole or not at all."""
    with tempfile.TemporaryDirectory(dir=runs_dir.absolute().parent) as there:
        with tarfile.open(archive) as tar:
            tar.extractall(there, filter="data")
        (Path(there) / "runs").rename(runs_dir)


# --- packing -------------------------------------------------------------------------------------


def pack(runs_dir: Path, archive: Path, nights: int) -> int:
    if not runs_dir.is_dir():
        print(f"history: there is no {runs_dir}/ to pack", file=sys.stderr)
        return 1
    gone = forget(runs_dir, nights)
    if gone:
        print(f"history: let go of {len(gone)} campaigns and nights, the oldest")
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(runs_dir, "runs")
    print(f"history: {archive}, {archive.stat().st_size / 2**20:.1f} MiB")
    return 0


def forget(runs_dir: Path, nights: int) -> list[str]:
    """Remove what began before the newest `nights` nights; the names of what is gone.

    Ids begin with the moment in UTC; a night's first campaign may begin in the same second.
    """
    kept = sorted(moment(path.parent) for path in runs_dir.glob("*/campaigns.json"))[-nights:]
    if not kept:
        return []
    known = {
        p.parent for name in ("plan.json", "campaigns.json") for p in runs_dir.glob(f"*/{name}")
    }
    old = sorted(p for p in known if moment(p) < kept[0])
    for directory in old:
        shutil.rmtree(directory)
    gone = [directory.name for directory in old]
    if gone and (runs_dir / "mlflow.db").is_file():
        forget_runs(runs_dir, set(gone))
    return gone


def moment(directory: Path) -> str:
    return directory.name.partition("-")[0]


def forget_runs(runs_dir: Path, names: set[str]) -> None:
    """The MLflow runs of campaigns and nights that are gone, with their artifacts."""
    from mlflow import MlflowClient
    from mlflow.cli import gc as collect

    uri = f"sqlite:///{(runs_dir / 'mlflow.db').resolve()}"
    client = MlflowClient(uri)
    gone = []
    for experiment in client.search_experiments():
        token = None
        while True:
            page = client.search_runs([experiment.experiment_id], page_token=token)
            for run in page:
                tags = run.data.tags
                own = "harness.sweep" if tags.get("harness.kind") == "sweep" else "harness.campaign"
                if tags.get(own) in names:
                    gone.append(run.info.run_id)
            token = page.token
            if not token:
                break
    for run_id in gone:  # not while paging: pages would move
        client.delete_run(run_id)
    collect(["--backend-store-uri", uri, "--tracking-uri", uri], standalone_mode=False)
    for run_id in gone:  # it leaves an empty directory
        shutil.rmtree(runs_dir / "mlartifacts" / run_id, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
