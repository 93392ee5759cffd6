"""Identity of greedy output: what is compared, what a difference is called, what shows nothing."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_parts import MIB, paging, plain

from harness.analysis.identity import (
    identity_in_words,
    identity_rows,
    identity_table,
    identity_verdict,
)
from harness.analysis.outputs import Output, difference_in_words, first_difference
from harness.findings import IdentityRow
from harness.jsonable import from_json, to_json
from harness.records import CellRecord, Counters
from harness.verdicts import CampaignVerdict, Drift

SAID = Output((5, 6, 7, 8), b"In the beginning")


def compared(*records: CellRecord, **outputs: Output | None) -> tuple[IdentityRow, ...]:
    """`outputs` by cell; a cell that is not named said what plain said."""
    said = {r.index: outputs.get(r.cell.partition("@")[0], SAID) for r in records}
    return identity_rows(records, {i: o for i, o in said.items() if o is not None})


def one(record: CellRecord, output: Output | None = SAID) -> IdentityRow:
    (row,) = compared(plain(), record, **{record.cell.partition("@")[0]: output})
    return row


def test_the_same_tokens_and_bytes_are_identical() -> None:
    row = one(paging("lru", 96))
    assert (row.likeness, row.detail) == ("identical", None)
    assert (row.cell, row.policy, row.cap_bytes) == ("lru", "lru", 96 * MIB)
    assert (row.tokens, row.text_bytes, row.evictions) == (4, 16, 7)


def test_the_first_token_that_differs_is_named() -> None:
    row = one(paging("lru", 96), Output((5, 6, 9, 9), b"In the end"))
    assert row.likeness == "differs"
    assert row.detail == "token 2: id 9, in plain id 7"


def test_other_bytes_for_the_same_tokens_are_a_difference() -> None:
    row = one(paging("lru", 96), dataclasses.replace(SAID, text=b"In the Beginning"))
    assert row.likeness == "differs"
    assert row.detail == "byte 7: b'Beginning', in plain b'beginning'"


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (Output((5, 6), b"In"), "token 2: none, it has 2, in plain id 7"),
        (Output((5, 6, 7, 8, 9), b"In"), "token 4: id 9, in plain none, it has 4"),
        (Output(SAID.ids, b""), "byte 0: none, it has 0, in plain b'In the begin'"),
    ],
)
def test_a_beginning_of_the_same_output_is_a_difference(output: Output, words: str) -> None:
    row = one(paging("lru", 96), output)
    assert (row.likeness, row.detail) == ("differs", words)


@pytest.mark.parametrize(
    ("record", "output", "words"),
    [
        (paging("lru", 96), None, "left no output"),
        (paging("lru", 96), Output((), b""), "left no output"),
        (paging("lru", 8, status="refused"), None, "lru@8MiB refused: no reason given"),
        (paging("lru", 96, status="killed"), SAID, "killed"),
        (paging("lru", 96, "--drop-cold-experts", "0.5"), SAID, "drops experts"),
        (paging("lru", 96, threads=2), SAID, "threads 2, in plain 1"),
        (paging("lru", 96, expert_used=2), SAID, "top-k 2, in plain 4"),
        (paging("lru", 96, model_sha256=None), SAID, "model not known, in plain m"),
        (paging("lru", 96, engine_build_id="other"), SAID, "build other, in plain e"),
        (paging("lru", 96, prompt_sha256="q"), SAID, "prompt q, in plain p"),
        (paging("lru", 96, "-b", "64"), SAID, "batch 64, in plain 128"),
    ],
)
def test_what_cannot_be_compared_is_not_shown_and_never_identical(
    record: CellRecord, output: Output | None, words: str
) -> None:
    row = one(record, output)
    assert row.likeness == "not shown"
    assert row.detail is not None
    assert words in row.detail


@pytest.mark.parametrize("missing", [{"status": "failed"}, {}])
def test_without_plain_output_no_cell_is_identical(missing: dict[str, Any]) -> None:
    records = plain(**missing), paging("lru", 96), paging("ls", 96, index=2, evict="ls")
    rows = compared(*records, plain=SAID if missing else None)
    assert [row.likeness for row in rows] == ["not shown", "not shown"]
    assert all("plain" in (row.detail or "") for row in rows)


def test_a_given_text_shows_nothing() -> None:
    text = ("--given-text", "t")
    (row,) = compared(plain(*text), paging("lru", 96, *text))
    assert row.likeness == "not shown"
    # beside a greedy plain cell it is not what the campaign asks
    assert compared(plain(), paging("lru", 96, *text)) == ()


def test_without_a_plain_cell_nothing_is_compared() -> None:
    assert compared(paging("lru", 96), paging("ls", 96, index=2)) == ()
    assert compared(plain()) == ()


def test_a_cell_that_scores_a_text_is_no_greedy_cell() -> None:
    assert compared(plain("--ppl-file", "t"), paging("lru", 96)) == ()
    assert compared(plain(), paging("ppl", None, "--ppl-file", "t")) == ()


def test_rows_go_by_cap_and_no_cap_comes_last() -> None:
    rows = compared(
        plain(),
        paging("all", None, index=1),
        paging("lru", 128, index=2),
        paging("lru", 96, index=3),
        paging("ls", 96, index=4, evict="ls"),
    )
    assert [(row.cap_bytes, row.policy) for row in rows] == [
        (96 * MIB, "lru"),
        (96 * MIB, "ls"),
        (128 * MIB, "lru"),
        (None, "lru"),
    ]


def row_of(likeness: Any, evictions: int | None = 3) -> IdentityRow:
    return IdentityRow("lru", "lru", MIB, likeness, evictions=evictions)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (["identical", "identical"], "identical"),
        (["identical", "not shown"], "not shown"),
        (["not shown", "differs", "identical"], "differs"),
        ([], "not shown"),
    ],
)
def test_one_difference_decides_and_one_gap_leaves_it_open(found: list[str], verdict: str) -> None:
    assert identity_verdict([row_of(likeness) for likeness in found]) == verdict


def test_the_line_counts_every_kind_and_cells_that_evicted_nothing() -> None:
    rows = [row_of("identical"), row_of("identical", 0), row_of("differs"), row_of("not shown")]
    assert identity_in_words(rows) == (
        "greedy output: 2 of 4 cells identical to plain, 1 differs, 1 not shown, "
        "1 of the identical evicted nothing"
    )
    assert identity_in_words(rows[:1]) == "greedy output: 1 of 1 cell identical to plain"


def test_the_table_and_the_stored_verdict_have_every_row() -> None:
    rows = compared(plain(), paging("lru", 96), lru=Output((5, 1), b"In"))
    data = identity_table(rows)
    (row,) = data.rows
    assert dict(zip([c.key for c in data.columns], row, strict=True)) == {
        "cap_mib": 96.0,
        "policy": "lru",
        "cell": "lru",
        "likeness": "differs",
        "tokens": 2,
        "text_bytes": 2,
        "hit_rate": None,
        "evictions": 7,
        "detail": "token 1: id 1, in plain id 6",
    }
    verdict = CampaignVerdict("c", Drift("unknown", None), (), identity=rows)
    assert from_json(CampaignVerdict, to_json(verdict)) == verdict


def test_counters_that_were_not_measured_are_not_called_idle() -> None:
    row = one(dataclasses.replace(paging("lru", 96), counters=Counters()))
    assert row.evictions is None
    assert "evicted nothing" not in identity_in_words([row])


ids = st.lists(st.integers(0, 3), max_size=6)


@given(ids, ids)
def test_the_first_difference_is_the_end_of_the_longest_common_beginning(
    a: list[int], b: list[int]
) -> None:
    at = first_difference(a, b)
    assert (at is None) == (a == b)
    if at is not None:
        assert a[:at] == b[:at]
        assert a[at : at + 1] != b[at : at + 1]
    assert at == first_difference(b, a)
    words = difference_in_words(Output(tuple(a), b""), Output(tuple(b), b""), "plain")
    assert (words is None) == (a == b)
