"""What the tables of capped cells ask of a record, and how they show it. Pure."""

from __future__ import annotations

from harness.analysis.counters import flag_value
from harness.analysis.tables import MIB, Column
from harness.records import CellRecord

CAP = Column("cap_mib", "cap MiB", "g")


def cap_bytes(record: CellRecord) -> int | None:
    """The anonymous memory that the cell was allowed; None: no cap."""
    return record.data_limit_bytes


def cap_mib(cap: int | None) -> float | None:
    return None if cap is None else cap / MIB


def smallest_cap_first(cap: int | None) -> tuple[bool, int]:
    """A key to sort by; no cap comes last."""
    return cap is None, cap or 0


def configured_name(record: CellRecord) -> str:
    """The cell as the configuration names it, whichever the cap."""
    return record.cell if record.level is None else record.level.cell


def policy_of(record: CellRecord) -> str | None:
    """Which rule names the expert that goes; None in plain inference, which keeps none."""
    if flag_value(record.argv, "--moe-stream") is None:
        return None
    return record.identity.evict or flag_value(record.argv, "--evict") or "lru"


def decodes_given_text(record: CellRecord) -> bool:
    return flag_value(record.argv, "--given-text") is not None


def scores_a_text(record: CellRecord) -> bool:
    """Its work was to read a text for its perplexity: it decoded nothing."""
    return flag_value(record.argv, "--ppl-file") is not None
