"""Tells of regressions: opens one issue with the label, or adds to the one that is open.

    python .github/nightly/issue.py --page gate.md --run URL

Needs `gh`, and GH_TOKEN that may write issues. What the page says is passed in a file, never as a
word of a command.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

LABEL = "regression"
TITLE = "The nightly found a regression"
# GitHub takes 65,536 characters
MOST = 60_000


def main(argv: list[str]) -> int:
    p = argparse.ArgumentParser(description="Open or update the issue about regressions.")
    p.add_argument("--page", type=Path, required=True, metavar="FILE")
    p.add_argument("--run", required=True, metavar="URL", help="of the workflow's run")
    args = p.parse_args(argv)
    text = args.page.read_text(encoding="utf-8")
    if len(text) > MOST:
        text = text[:MOST] + "\n\n(cut: the rest is in the run's artifacts)"
    with tempfile.TemporaryDirectory() as there:
        body = Path(there) / "body.md"
        body.write_text(f"{text}\n\nRun, and its artifacts: {args.run}\n", encoding="utf-8")
        found = gh("issue", "list", "--label", LABEL, "--state", "open", "--json", "number")
        numbers = [int(issue["number"]) for issue in json.loads(found)]
        if numbers:
            gh("issue", "comment", str(min(numbers)), "--body-file", str(body))
            print(f"added to issue {min(numbers)}")
            return 0
        # an existing label is left as it is
        label = ["label", "create", LABEL, "--description", "found by the nightly"]
        subprocess.run(["gh", *label], stderr=subprocess.DEVNULL, check=False)
        gh("issue", "create", "--title", TITLE, "--label", LABEL, "--body-file", str(body))
        print("opened an issue")
    return 0


def gh(*words: str) -> str:
    return subprocess.run(["gh", *words], stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
