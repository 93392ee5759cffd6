"""The table of a ladder of memory limits: each level, and what holds along all of them."""

from __future__ import annotations

import dataclasses
import io
import json
from typing import Any

import pytest
from record_parts import MIB, paging, plain

from harness.analysis.found import finding_tables, with_findings
from harness.analysis.levels import (
    details_in_words,
    greedy_likeness,
    level_rows,
    levels_in_words,
    levels_memory_table,
    levels_table,
)
from harness.analysis.survey import survey_verdict
from harness.findings import LevelRow
from harness.jsonable import from_json, to_json
from harness.records import Arena, CellRecord, CgroupMemory, Counters, Metrics, SlotClass
from harness.report.terminal import Terminal
from harness.verdicts import CampaignVerdict


def at(limit_mib: int, cell: str = "lru", **changes: Any) -> CellRecord:
    """A level that was passed, with 90 MiB beside its arena and 20 MiB of pages of files."""
    arena = (limit_mib - 95) * MIB
    record = paging(
        cell,
        limit_mib,
        metrics=Metrics(
            tok_s=10.0,
            hit_rate=0.5,
            bytes_per_token=2 * MIB,
            anon_peak_bytes=arena + 90 * MIB,
            rss_peak_bytes=arena + 110 * MIB,
            anon_within_limit=True,
        ),
        counters=Counters(tokens=4, evictions=7),
    )
    return dataclasses.replace(
        record,
        **{
            "arena": Arena(arena, 30, 0.25, (SlotClass(1, 20, 80), SlotClass(3, 10, 20))),
            "output_sha256": "o",
            **changes,
        },
    )


def refused(limit_mib: int) -> CellRecord:
    return paging(
        *("lru", limit_mib),
        status="refused",
        metrics=Metrics(anon_peak_bytes=MIB),
        counters=Counters(),
    )


def table_of(*records: CellRecord) -> list[dict[str, Any]]:
    data = levels_table(level_rows(records))
    return [dict(zip([c.key for c in data.columns], row, strict=True)) for row in data.rows]


def test_a_level_is_a_row_with_what_it_was_and_how_it_ended() -> None:
    (row,) = table_of(at(200))
    assert row == {
        "cell": "lru",
        "level": "200MiB",
        "limit_mib": 200,
        "result": "PASS",
        "arena_mib": 105,
        "slots": "20+10",
        "coverage": 0.25,
        "anon_mib": 195,
        "rss_mib": 215,
        "within_limit": "yes",
        "tok_s": 10,
        "mib_per_token": 2,
        "hit_rate": 0.5,
        "evictions": 7,
        "detail": None,
    }


@pytest.mark.parametrize(
    ("status", "within", "result"),
    [
        ("ok", True, "PASS"),
        ("ok", False, "FAIL (above its limit)"),
        ("ok", None, "FAIL (not sampled)"),
        ("refused", True, "FAIL (refused)"),
        ("failed", True, "FAIL (failed)"),
        ("killed", True, "KILLED"),
    ],
)
def test_only_a_whole_run_within_its_limit_passes(
    status: str, within: bool | None, result: str
) -> None:
    record = at(200, status=status)
    metrics = dataclasses.replace(record.metrics, anon_within_limit=within)
    (row,) = table_of(dataclasses.replace(record, metrics=metrics))
    assert row["result"] == result


def test_what_a_refused_level_did_not_measure_is_not_zero() -> None:
    (row,) = table_of(refused(20))
    assert {key for key, value in row.items() if value is None} == {
        *("arena_mib", "slots", "coverage", "rss_mib", "within_limit"),
        *("tok_s", "mib_per_token", "hit_rate", "evictions", "detail"),
    }


WHY = "--reserve-mb 3: below the 71 MiB that are measured"


def test_a_level_that_did_not_end_well_says_why() -> None:
    records = [
        dataclasses.replace(refused(20), status_detail=WHY),
        at(200),
        at(300, status="killed", status_detail="out of memory"),
    ]
    rows = level_rows(records)
    assert [row.detail for row in rows] == [WHY, None, "out of memory"]
    assert [row["detail"] for row in table_of(*records)] == [WHY, None, "out of memory"]
    assert details_in_words(rows) == [
        f"lru@20MiB: FAIL (refused): {WHY}",
        "lru@300MiB: KILLED: out of memory",
    ]
    stored = to_json(with_findings(survey_verdict("c", "a ladder"), records, {}))
    assert [row["detail"] for row in stored["levels"]] == [WHY, None, "out of memory"]


def test_the_terminal_says_why_under_the_table_and_not_in_it() -> None:
    out = io.StringIO()
    records = [dataclasses.replace(refused(20), status_detail=WHY), at(200)]
    Terminal(out).verdict(with_findings(survey_verdict("c", "a ladder"), records, {}))
    lines = out.getvalue().splitlines()
    assert [line for line in lines if WHY in line] == [f"lru@20MiB: FAIL (refused): {WHY}"]
    assert not any(line.split()[-1] == "detail" for line in lines if line)


def test_rows_are_cell_by_cell_and_from_the_smallest_limit_up() -> None:
    rows = level_rows([plain(), at(400), at(300, "lfu"), at(200), at(200, "lfu")])
    assert [(r.cell, r.level) for r in rows] == [
        *(("lru", "200MiB"), ("lru", "400MiB"), ("lfu", "200MiB"), ("lfu", "300MiB")),
    ]


def test_the_cgroup_and_what_must_be_constant_stand_apart() -> None:
    cgroup = CgroupMemory(limit_bytes=264 * MIB, peak_bytes=260 * MIB)
    data = levels_memory_table(level_rows([at(200, cgroup=cgroup), refused(20)]))
    assert [c.key for c in data.columns[3:]] == [
        *("anon_beside_arena_mib", "rss_beside_anon_mib", "cgroup_limit_mib", "cgroup_peak_mib"),
    ]
    assert [row[3:] for row in data.rows] == [(None, None, None, None), (90, 20, 264, 260)]


def test_the_words_give_the_spread_along_the_levels_that_were_passed() -> None:
    odd = at(400)
    more = dataclasses.replace(odd.metrics, anon_peak_bytes=(305 + 91) * MIB)
    records = [refused(20), at(200), dataclasses.replace(odd, metrics=more)]
    assert levels_in_words(level_rows(records)) == [
        "lru: 2 of 3 levels passed; anonymous beside the arena 90.0 to 91.0 MiB (spread 1.0); "
        "resident beside anonymous 19.0 to 20.0 MiB (spread 1.0); "
        "greedy output at the passed levels: identical"
    ]
    (line,) = levels_in_words(level_rows([refused(20)]))
    assert line == "lru: 0 of 1 level passed; greedy output at the passed levels: not shown"


def likeness(*records: CellRecord) -> str:
    return greedy_likeness(level_rows(records))


def test_output_is_identical_when_all_passed_levels_have_it() -> None:
    assert likeness(at(200), at(300), refused(20)) == "identical"
    assert likeness(at(200), at(300, output_sha256="p")) == "differs"
    assert likeness(at(200), at(300, output_sha256="p", status="killed"), at(400)) == "identical"


def test_one_level_no_output_or_a_given_text_shows_nothing() -> None:
    given = ("moe-engine", "--moe-stream", "--given-text", "t")
    assert likeness(at(200)) == "not shown"
    assert likeness(at(200), at(300, output_sha256=None)) == "not shown"
    assert likeness(at(200, argv=given), at(300, argv=given)) == "not shown"


def test_an_engine_of_one_slot_size_shows_its_slots() -> None:
    (row,) = table_of(at(200, arena=Arena(5 * MIB, 12)))
    assert (row["slots"], row["coverage"]) == ("12", None)


def test_the_rows_are_part_of_the_verdict_and_survive_its_file() -> None:
    verdict = with_findings(survey_verdict("c", "a ladder"), [refused(20), at(200)], {})
    assert [type(row) for row in verdict.levels] == [LevelRow, LevelRow]
    assert from_json(CampaignVerdict, json.loads(json.dumps(to_json(verdict)))) == verdict
    assert {"levels", "levels_memory"} <= finding_tables(verdict).keys()
    assert "levels" not in finding_tables(with_findings(verdict, [plain()], {}))
