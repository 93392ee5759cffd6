"""Numbers in sentences, and sentences that have them."""

from __future__ import annotations

from record_parts import paging, plain

from harness.analysis.identity import identity_in_words
from harness.analysis.levels import level_rows, levels_in_words
from harness.findings import IdentityRow
from harness.words import counted


def test_one_of_a_thing_is_not_many() -> None:
    said = [counted(n, "token") for n in (0, 1, 2, None)]
    assert said == ["0 tokens", "1 token", "2 tokens", "an unknown number of tokens"]


def test_a_ladder_of_one_level_and_a_comparison_of_one_cell() -> None:
    (line,) = levels_in_words(level_rows([plain(), paging("lru", 8, status="refused")]))
    assert line.startswith("lru: 0 of 1 level passed")
    row = IdentityRow("lru", "lru", None, "differs")
    assert identity_in_words([row]) == "greedy output: 0 of 1 cell identical to plain, 1 differs"
