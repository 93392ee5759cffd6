"""`python -m harness import KIND DIR`: foreign campaigns, written like any other and judged."""

from __future__ import annotations

from harness.importers.cli import main as import_them
from harness.judgement import judge_directory


def main(argv: list[str]) -> int:
    """Run the verb; returns the exit code."""
    return import_them(argv, judge_directory)
