"""The top-k table: speed by cap, joined with perplexity and with where greedy outputs part."""

from __future__ import annotations

import dataclasses

from record_parts import MIB, paging, plain

from harness.analysis.outputs import Output
from harness.analysis.topk import topk_rows, topk_table
from harness.findings import TopKRow
from harness.jsonable import from_json, to_json
from harness.records import Arena, CellRecord, Counters, Metrics, Perplexity
from harness.verdicts import CampaignVerdict, Drift

TEXT = ("--given-text", "t")


def flags(top_k: int) -> tuple[str, ...]:
    return () if top_k == 4 else ("--expert-used", str(top_k))


def speed(top_k: int, cap: int, index: int) -> CellRecord:
    record = paging(
        f"top{top_k}",
        cap,
        *TEXT,
        *flags(top_k),
        index=index,
        expert_used=top_k,
        metrics=Metrics(tok_s=10.0 * index, bytes_per_token=3 * MIB, hit_rate=0.25),
        counters=Counters(evictions=5, requests=100 * top_k),
    )
    # what fewer experts need less of is left to the arena
    return dataclasses.replace(record, arena=Arena(coverage=0.25 - top_k / 100))


def scored(top_k: int, value: float, index: int) -> CellRecord:
    record = plain("--ppl-file", "t", *flags(top_k), cell=f"ppl{top_k}", index=index)
    return dataclasses.replace(
        record,
        identity=dataclasses.replace(record.identity, expert_used=top_k),
        perplexity=Perplexity(value, 3.4, 256, 1, 512, 0.5),
    )


def greedy(top_k: int, index: int) -> CellRecord:
    return paging(f"greedy{top_k}", None, *flags(top_k), index=index, expert_used=top_k)


CELLS = (
    scored(4, 30.0, 0),
    scored(2, 32.0, 1),
    greedy(4, 2),
    greedy(2, 3),
    speed(2, 128, 4),
    speed(4, 128, 5),
    speed(4, 96, 6),
    speed(2, 96, 7),
)
SAID = {2: Output((5, 6, 7), b"abc"), 3: Output((5, 9, 9), b"axx")}


def rows_of(*cells: CellRecord, said: dict[int, Output] | None = None) -> tuple[TopKRow, ...]:
    return topk_rows(cells, SAID if said is None else said)


def test_rows_go_by_cap_and_from_the_largest_top_k() -> None:
    rows = rows_of(*CELLS)
    assert [(r.cap_bytes, r.top_k) for r in rows] == [
        (96 * MIB, 4),
        (96 * MIB, 2),
        (128 * MIB, 4),
        (128 * MIB, 2),
    ]
    assert [r.tok_s for r in rows] == [60.0, 70.0, 50.0, 40.0]
    assert [r.requests for r in rows] == [400, 200, 400, 200]


def test_the_share_of_the_experts_that_is_resident_stands_beside_the_cap() -> None:
    rows = rows_of(*CELLS)
    assert [r.coverage for r in rows] == [0.21, 0.23] * 2
    column = [c.key for c in topk_table(rows).columns].index("coverage")
    assert [row[column] for row in topk_table(rows).rows] == [0.21, 0.23] * 2
    assert rows_of(*(dataclasses.replace(c, arena=None) for c in CELLS))[0].coverage is None


def test_perplexity_is_joined_at_every_cap() -> None:
    assert [r.perplexity for r in rows_of(*CELLS)] == [30.0, 32.0, 30.0, 32.0]
    assert [r.perplexity for r in rows_of(*CELLS[1:])] == [None, 32.0, None, 32.0]


def test_the_first_token_that_parts_is_counted_from_0() -> None:
    rows = rows_of(*CELLS)
    assert [(r.greedy_tokens, r.parts_at) for r in rows[:2]] == [(None, None), (3, 1)]
    assert [row[-2] for row in topk_table(rows).rows[:2]] == [None, "at token 1 of 3"]


def test_outputs_that_agree_say_over_how_many_tokens() -> None:
    rows = rows_of(*CELLS, said={2: SAID[2], 3: SAID[2]})
    assert (rows[1].greedy_tokens, rows[1].parts_at) == (3, None)
    assert topk_table(rows).rows[1][-2] == "not in 3 tokens"


def test_without_one_of_the_outputs_nothing_is_said() -> None:
    for said in ({}, {2: SAID[2]}, {3: SAID[3]}):
        assert all(r.greedy_tokens is None for r in rows_of(*CELLS, said=said))
    failed = dataclasses.replace(CELLS[3], status="failed")
    assert rows_of(*CELLS[:3], failed, *CELLS[4:])[1].greedy_tokens is None


def test_a_given_text_is_no_greedy_output() -> None:
    said = {r.index: Output((1, 2), b"") for r in CELLS if r.level is not None}
    assert all(r.greedy_tokens is None for r in rows_of(*CELLS, said=said))


def test_a_cell_refused_before_it_could_report_keeps_its_place() -> None:
    refused = dataclasses.replace(
        paging("top2", 8, *TEXT, *flags(2), index=9, status="refused", expert_used=None),
        counters=Counters(),
    )
    row = rows_of(*CELLS, refused)[0]
    assert (row.top_k, row.status, row.tok_s, row.requests) == (2, "refused", None, None)


def test_one_top_k_makes_no_table() -> None:
    assert rows_of(*(c for c in CELLS if c.identity.expert_used == 4)) == ()


def test_the_table_and_the_stored_verdict_have_every_row() -> None:
    rows = rows_of(*CELLS)
    data = topk_table(rows)
    assert len(data.rows) == 4
    named = dict(zip([c.key for c in data.columns], data.rows[1], strict=True))
    assert (named["cap_mib"], named["top_k"], named["mib_per_token"]) == (96.0, 2, 3.0)
    assert (named["perplexity"], named["perplexity_stderr"]) == (32.0, 0.5)
    verdict = CampaignVerdict("c", Drift("unknown", None), (), topk=rows)
    assert from_json(CampaignVerdict, to_json(verdict)) == verdict
