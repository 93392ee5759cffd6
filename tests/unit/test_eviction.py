"""The table of eviction policies: rows by cap, measured against lru at the same cap."""

from __future__ import annotations

import pytest
from record_parts import MIB, paging, plain

from harness.analysis.eviction import eviction_rows, eviction_table
from harness.jsonable import from_json, to_json
from harness.records import CellRecord, Counters, Metrics
from harness.verdicts import CampaignVerdict, Drift


def measured(policy: str, cap: int, index: int, mib: float | None = 2.0) -> CellRecord:
    return paging(
        policy,
        cap,
        "--evict",
        policy,
        index=index,
        evict=policy,
        metrics=Metrics(
            tok_s=50.0, hit_rate=0.5, bytes_per_token=None if mib is None else mib * MIB
        ),
        counters=Counters(
            evictions=10,
            evict_stale_left=4,
            evict_stale_right=3,
            evict_current_left=2,
            evict_current_right=1,
        ),
    )


def test_policies_stand_by_cap_in_the_order_of_the_cells() -> None:
    rows = eviction_rows(
        [
            measured("lru", 128, 0),
            measured("ls", 128, 1),
            measured("lru", 96, 2),
            measured("ls", 96, 3),
        ]
    )
    assert [(r.cap_bytes, r.policy) for r in rows] == [
        (96 * MIB, "lru"),
        (96 * MIB, "ls"),
        (128 * MIB, "lru"),
        (128 * MIB, "ls"),
    ]


def test_bytes_are_measured_against_lru_at_the_same_cap() -> None:
    rows = eviction_rows(
        [
            measured("lru", 96, 0, 4.0),
            measured("ls", 96, 1, 3.0),
            measured("lru", 128, 2, 1.0),
            measured("ls", 128, 3, 2.0),
        ]
    )
    assert [r.read_vs_lru for r in rows] == [1.0, 0.75, 1.0, 2.0]


@pytest.mark.parametrize("lru_mib", [None, 0.0])
def test_without_bytes_of_lru_there_is_no_measure(lru_mib: float | None) -> None:
    rows = eviction_rows([measured("lru", 96, 0, lru_mib), measured("ls", 96, 1)])
    assert rows[1].read_vs_lru is None


def test_a_refused_cell_keeps_its_row_without_numbers() -> None:
    refused = paging("ls", 8, "--evict", "ls", index=1, status="refused", counters=Counters(),
                     evict=None)  # fmt: skip
    rows = eviction_rows([measured("lru", 96, 0), refused])
    assert (rows[0].policy, rows[0].status, rows[0].evictions) == ("ls", "refused", None)


def test_one_policy_makes_no_table() -> None:
    assert eviction_rows([measured("lru", 96, 0), measured("lru", 128, 1), plain(index=2)]) == ()


def test_the_groups_stand_in_the_table_and_in_the_stored_verdict() -> None:
    rows = eviction_rows([measured("lru", 96, 0), measured("ls", 96, 1, 1.0)])
    data = eviction_table(rows)
    named = dict(zip([c.key for c in data.columns], data.rows[1], strict=True))
    groups = ("stale_left", "stale_right", "current_left", "current_right")
    assert [named[g] for g in groups] == [4, 3, 2, 1]
    assert named["evictions"] == sum(named[g] for g in groups)  # type: ignore[misc]
    assert (named["cap_mib"], named["mib_per_token"], named["read_vs_lru"]) == (96.0, 1.0, 0.5)
    verdict = CampaignVerdict("c", Drift("unknown", None), (), eviction=rows)
    assert from_json(CampaignVerdict, to_json(verdict)) == verdict
