"""One night: run +experiment=nightly, ask the gate about each campaign, and say what came of it.

    python .github/nightly/night.py --out DIR [key=value ...]

Writes DIR/night.md, DIR/night.json, DIR/gate.md, DIR/gate.json and JUnit XML, appends the pages to
$GITHUB_STEP_SUMMARY and `regressed=true|false` to $GITHUB_OUTPUT, where these are set. Exit codes:
0; 1 a regression, or a campaign that failed; 2 nothing was started; 130 interrupted. A night in
which nothing can be read is no regression: it is shown, and exits 0.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

HARNESS = [sys.executable, "-m", "harness"]


def main(argv: list[str]) -> int:
    p = argparse.ArgumentParser(description="Run the nightly, and the gate over it.")
    p.add_argument("--out", type=Path, required=True, metavar="DIR")
    p.add_argument("--runs-dir", type=Path, default=Path("runs"), metavar="DIR")
    p.add_argument("--budget-s", default="", metavar="S", help="'': as conf/ says")
    p.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    args = p.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    overrides = [f"runs_dir={args.runs_dir}", *args.overrides]
    if args.budget_s.strip():
        overrides.append(f"nightly.budget_s={args.budget_s.strip()}")
    before = sweeps(args.runs_dir)
    ran = subprocess.run([*HARNESS, "+experiment=nightly", *overrides], check=False).returncode
    new = sweeps(args.runs_dir) - before
    if not new:  # it said why
        tell("GITHUB_STEP_SUMMARY", "### The nightly did not start: its log says why\n")
        tell("GITHUB_OUTPUT", "regressed=false\n")
        return ran or 2
    gated = gate(args.runs_dir, max(new), args.out)
    for name in ("night.md", "gate.md"):
        if (args.out / name).is_file():
            tell("GITHUB_STEP_SUMMARY", (args.out / name).read_text(encoding="utf-8") + "\n")
    tell("GITHUB_OUTPUT", f"regressed={'true' if gated == 1 else 'false'}\n")
    if gated not in (0, 1, 3):
        print(f"night: the gate ended with exit code {gated}", file=sys.stderr)
        return ran or gated
    return ran or int(gated == 1)


def sweeps(runs_dir: Path) -> set[str]:
    return {path.parent.name for path in runs_dir.glob("*/campaigns.json")}


def gate(runs_dir: Path, sweep: str, out: Path) -> int:
    """Its exit code; pages and JSON are in `out`."""
    done = subprocess.run(
        [
            *(*HARNESS, "sweep", sweep, "--runs-dir", str(runs_dir), "--md", str(out / "night.md")),
            *("--gate", "last-green", "--gate-dir", str(out), "--json"),
        ],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.stdout:
        (out / "night.json").write_text(done.stdout, encoding="utf-8")
        for answer in json.loads(done.stdout)["gate"]:
            print(f"{answer['campaign']}: {answer['headline']}")
    return done.returncode


def tell(variable: str, text: str) -> None:
    """Append to the file that GitHub reads, where there is one."""
    path = os.environ.get(variable)
    if path:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
