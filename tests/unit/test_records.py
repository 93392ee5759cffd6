"""Records go to JSON and come back equal; what is wrong in a file is named."""

from __future__ import annotations

import json
import typing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.jsonable import from_json, to_json
from harness.planned import Plan
from harness.readings import DeviceState
from harness.records import CellRecord, Counters, Metrics, TargetId
from harness.verdicts import CampaignVerdict, CandidateVerdict, Drift

st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))


def whole(cls: type[object]) -> st.SearchStrategy[object]:
    """Any value of a dataclass, every field drawn: defaults would leave most of them None."""
    return st.builds(
        cls, **{name: st.from_type(hint) for name, hint in typing.get_type_hints(cls).items()}
    )


@pytest.mark.parametrize("cls", [CellRecord, Plan, CampaignVerdict], ids=lambda c: c.__name__)
@given(data=st.data())
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_written_is_read_back_equal(cls: type[object], data: st.DataObject) -> None:
    value = data.draw(whole(cls))
    text = json.dumps(to_json(value), allow_nan=False)
    assert from_json(cls, json.loads(text)) == value


MINIMAL = {
    "cell": "baseline",
    "arm": "B",
    "role": "baseline",
    "index": 0,
    "status": "ok",
    "exit_code": None,
    "argv": [],
    "target": {"kind": "local", "name": "x"},
}


def test_what_an_old_record_lacks_is_not_measured() -> None:
    record = from_json(CellRecord, MINIMAL)
    assert record.target == TargetId("local", "x")
    assert record.counters == Counters()
    assert record.metrics == Metrics()
    assert record.entry is None


def test_what_a_newer_record_has_more_is_passed_over() -> None:
    newer = MINIMAL | {"phase_of_the_moon": 3, "counters": {"tokens": 5, "guesses": 9}}
    assert from_json(CellRecord, newer).counters == Counters(tokens=5)


def test_null_means_not_measured_and_zero_means_zero() -> None:
    metrics = from_json(Metrics, {"tok_s": None, "hit_rate": 0})
    assert metrics.tok_s is None
    assert metrics.hit_rate == 0.0
    assert isinstance(metrics.hit_rate, float)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"index": None}, "CellRecord.index: expected int, found None"),
        ({"index": "0"}, "CellRecord.index: expected int, found '0'"),
        ({"index": True}, "CellRecord.index: expected int, found True"),
        ({"index": 0.0}, "CellRecord.index: expected int, found 0.0"),
        ({"status": "fine"}, "CellRecord.status: 'fine' is none of ok, failed, refused, killed"),
        ({"argv": "moe-engine"}, "CellRecord.argv: expected a list, found str"),
        ({"argv": ["a", 1]}, r"CellRecord.argv\[1\]: expected str, found 1"),
        ({"target": []}, "CellRecord.target: expected an object, found list"),
        ({"target": {"kind": "local"}}, "CellRecord.target.name: missing"),
        ({"metrics": {"tok_s": "fast"}}, "CellRecord.metrics.tok_s: expected float, found 'fast'"),
        (
            {"entry": {"thermal": [{"zone": "z"}, {"type": "cpu"}]}},
            r"CellRecord.entry.thermal\[1\].zone: missing",
        ),
    ],
)
def test_a_damaged_record_names_the_key(change: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=f"^{words}"):
        from_json(CellRecord, MINIMAL | change)


def test_an_interval_has_two_ends() -> None:
    verdict = CandidateVerdict("C", "B", "win", ci_pct=(1.0, 2.0))
    data = to_json(CampaignVerdict("x", Drift("stable", 0.5), (verdict,)))
    assert data["verdicts"][0]["ci_pct"] == [1.0, 2.0]
    data["verdicts"][0]["ci_pct"] = [1.0]
    with pytest.raises(ValueError, match=r"verdicts\[0\].ci_pct: expected 2 items, found 1"):
        from_json(CampaignVerdict, data)


def test_a_state_keeps_an_empty_list_apart_from_nothing() -> None:
    assert from_json(DeviceState, {}).thermal == ()
    assert to_json(DeviceState())["thermal"] == []
    assert to_json(DeviceState())["battery"] is None
