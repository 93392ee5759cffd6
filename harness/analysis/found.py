"""What the cells of a campaign found beside speed, and the tables of it. Pure.

Each table is there where the cells differ in what it is about, so no setting asks for it. The last
four tell how a verdict came about.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from harness.analysis.attribution_words import attribution_table
from harness.analysis.counters import engine_asked
from harness.analysis.eviction import eviction_rows, eviction_table
from harness.analysis.evidence import cells_table, looks_table, pairs_table
from harness.analysis.identity import identity_rows, identity_table
from harness.analysis.levels import level_rows, levels_memory_table, levels_table
from harness.analysis.outputs import Output
from harness.analysis.tables import Data
from harness.analysis.topk import topk_rows, topk_table
from harness.records import CellRecord
from harness.verdicts import CampaignVerdict


def with_findings(
    verdict: CampaignVerdict, records: Sequence[CellRecord], outputs: Mapping[int, Output]
) -> CampaignVerdict:
    """`outputs`: what cells generated, by their index.

    What a policy or fewer experts change is told by cells of one engine alone.
    """
    by_engine: dict[str | None, list[CellRecord]] = {}
    for record in records:
        by_engine.setdefault(engine_asked(record), []).append(record)
    return dataclasses.replace(
        verdict,
        levels=level_rows(records),
        topk=tuple(row for own in by_engine.values() for row in topk_rows(own, outputs)),
        eviction=tuple(row for own in by_engine.values() for row in eviction_rows(own)),
        identity=identity_rows(records, outputs),
    )


def finding_tables(verdict: CampaignVerdict, *, brief: bool = False) -> dict[str, Data]:
    """By the name that a store gives them; only those that have rows.

    `brief`: for people. Of cells and pairs those that were not clean, of looks those that could
    have decided.
    """
    made = {
        "levels": levels_table(verdict.levels),
        "levels_memory": levels_memory_table(verdict.levels),
        "topk": topk_table(verdict.topk),
        "eviction": eviction_table(verdict.eviction),
        "identity": identity_table(verdict.identity),
        "cells": cells_table(verdict.cells, brief=brief),
        "pairs": pairs_table(verdict.pairs, brief=brief),
        "looks": looks_table(verdict.looks, brief=brief),
        "attribution": attribution_table(verdict.attribution),
    }
    return {name: data for name, data in made.items() if data.rows}
