"""The tables of a campaign as numbers, for whoever shows or stores them. Pure.

None: not measured, or nothing to measure it on; never zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.records import CellRecord, LayerScores, Prediction

Value = str | int | float | None

MIB = 2**20
# below this the rows that the predictors were scored on are not the router's
CONTROL_AT_LEAST = 0.999

# as the engine names them, in the order in which they are shown
PREDICTORS = {
    "stale_gate": "stale gate",
    "stale_gate_2": "stale gate, two layers early",
    "previous_token": "previous token",
    "control": "control",
}


@dataclass(frozen=True)
class Column:
    """`key`: in a store; `title` and `form` (of `format`): for people. No form: text."""

    key: str
    title: str
    form: str = ""


@dataclass(frozen=True)
class Data:
    """Every row has a value a column."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]


_RESULTS = (
    Column("index", "", "d"),
    Column("cell", "cell"),
    Column("arm", "arm"),
    Column("tok_s", "tok/s", ".2f"),
    Column("hit_rate", "hit rate", ".1%"),
    Column("mib_per_token", "MiB/token", ".2f"),
    Column("spec_mib_per_token", "of it spec", ".2f"),
    Column("spec_useful_share", "useful", ".1%"),
    Column("dropped_share", "dropped", ".1%"),
    Column("given_perplexity", "given ppl", ".2f"),
    Column("perplexity", "perplexity", ".4f"),
    Column("anon_peak_mib", "anon MiB", ".1f"),
    Column("status", "status"),
)
# of what many cells do without
_WHERE_MEASURED = (
    *("spec_mib_per_token", "spec_useful_share", "dropped_share"),
    *("given_perplexity", "perplexity"),
)


def results(records: Iterable[CellRecord]) -> Data:
    """One row a cell. Speculation, dropping, perplexity have columns where they were measured.

    Two of the last, as they are two quantities: that of a given text, and that of a scored one.
    """
    rows = [_result(record) for record in records]
    shown = [
        i
        for i, column in enumerate(_RESULTS)
        if column.key not in _WHERE_MEASURED or any(row[i] is not None for row in rows)
    ]
    return Data(
        tuple(_RESULTS[i] for i in shown), tuple(tuple(row[i] for i in shown) for row in rows)
    )


def _result(record: CellRecord) -> tuple[Value, ...]:
    m = record.metrics
    return (
        record.index,
        record.cell,
        record.arm,
        m.tok_s,
        m.hit_rate,
        mib(m.bytes_per_token),
        mib(m.spec_bytes_per_token),
        m.spec_useful_share,
        m.dropped_share,
        m.given_perplexity,
        None if record.perplexity is None else record.perplexity.value,
        mib(m.anon_peak_bytes),
        record.status,
    )


def predictors(prediction: Prediction) -> Data:
    """Each predictor over the whole session: shares of slots and of whole routings, with counts."""
    columns = (
        Column("predictor", "predictor"),
        Column("slot_overlap", "slot overlap", ".1%"),
        Column("whole_routings", "whole routings", ".1%"),
        Column("slots", "slots", "d"),
        Column("routings", "routings", "d"),
    )
    scores = prediction.predictors
    names = [n for n in PREDICTORS if n in scores] + [n for n in scores if n not in PREDICTORS]
    rows = [
        (
            PREDICTORS.get(name, name),
            _share(s.slots_hit, s.slots),
            _share(s.exact, s.routings),
            s.slots,
            s.routings,
        )
        for name in names
        for s in (scores[name],)
    ]
    return Data(columns, tuple(rows))


def predictors_by_layer(prediction: Prediction) -> Data:
    """Slot overlap of each predictor at each layer that routes."""
    columns = (
        Column("layer", "layer", "d"),
        *(Column(name, title, ".1%") for name, title in PREDICTORS.items()),
        Column("routings", "routings", "d"),
    )
    return Data(columns, tuple(_layer(row) for row in prediction.layers))


def _layer(row: LayerScores) -> tuple[Value, ...]:
    # a row without routings scored nothing, whatever number stands there
    scored = row.routings > 0
    return (
        row.layer,
        *(getattr(row, name) if scored else None for name in PREDICTORS),
        row.routings,
    )


def control_share(prediction: Prediction) -> float | None:
    """How often the router's own rows name the router's choice; None when not scored."""
    control = prediction.predictors.get("control")
    return None if control is None else _share(control.slots_hit, control.slots)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def mib(value: float | None) -> float | None:
    return None if value is None else value / MIB
