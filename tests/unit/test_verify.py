"""The layer check's parts: roundings, routing, and dumps that are not whole."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.models.architectures import ARCHITECTURES
from harness.verify import libm, limits, routing
from harness.verify.cli import main
from harness.verify.dump import F32_NAMES, read_dump
from harness.verify.numbers import same_bits, ulps
from harness.verify.report import Check, Report
from harness.verify.rounding import ROUNDING, rounded
from harness.verify.routing import Router
from harness.verify.rules import ARCHITECTURES as RULES
from harness.verify.rules import Facts, Rule, rule_of

ROWS = np.random.default_rng(7).normal(size=(6, 512)).astype(np.float32)


def facts(n_layer: int = 4, n_vocab: int | None = None, **metadata: Any) -> Facts:
    return Facts(metadata.get, n_layer, n_vocab)


# --- roundings ---


@pytest.mark.parametrize("kind", ROUNDING)
def test_rounding_is_close_and_keeps_zeros(kind: str) -> None:
    steps = {"F32": 0, "F16": 2**-11, "BF16": 2**-8}
    largest = np.abs(ROWS).max()
    bound = steps[kind] * np.abs(ROWS) if kind in steps else 0.51 * largest / 127 * 1.001
    assert (np.abs(rounded(ROWS, kind) - ROWS) <= bound).all()
    assert not rounded(np.zeros_like(ROWS), kind).any()


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0"])
def test_rounding_is_that_of_the_gguf_package(kind: str) -> None:
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize, quantize

    its = GGMLQuantizationType[kind]
    expected = dequantize(quantize(ROWS, its), its)
    assert np.array_equal(rounded(ROWS, kind), expected)


def test_the_largest_of_a_k_block_becomes_minus_127() -> None:
    block = np.linspace(-1, 2, 256, dtype=np.float32)[None]
    values = rounded(block, "Q4_K")
    assert values[0, -1] == pytest.approx(2, rel=1e-6)
    assert len(np.unique(values)) <= 192


def test_ulps_are_counted_in_last_places() -> None:
    one = np.array([1], dtype=np.float32)
    above = np.nextafter(one, np.float32(2))
    assert ulps(above, np.array([1.0])) == 1
    assert ulps(np.float32([0.0]), np.array([1e-45])) < 1
    assert not same_bits(np.float32([0.0]), np.float32([-0.0])).any()


def test_expf_is_correctly_rounded_nearly_always() -> None:
    x = -np.abs(ROWS[0]) * 5
    assert ulps(libm.expf(x), np.exp(x.astype(np.float64))).max() < 1


# --- rules ---


def test_every_architecture_that_can_be_made_can_be_verified() -> None:
    assert RULES.keys() == ARCHITECTURES.keys()


def test_rules_come_from_metadata() -> None:
    stored = facts(
        expert_gating_func=2,
        expert_weights_norm=True,
        expert_weights_scale=2.5,
        expert_group_count=4,
        expert_group_used_count=2,
    )
    assert rule_of("deepseek2", stored) == Rule("sigmoid", True, 2.5, 4, 2)
    assert rule_of("deepseek2", facts()) == Rule("softmax", False)
    assert rule_of("deepseek2", facts(n_layer=47, n_vocab=154880)).gate == "sigmoid"
    assert rule_of("laguna", facts(expert_weights_scale=1.0)) == Rule("sigmoid", False)
    with pytest.raises(UsageError, match="expert_gating_func None cannot be verified"):
        rule_of("lfm2moe", facts())
    with pytest.raises(UsageError, match="expert_gating_func 4 cannot"):
        rule_of("laguna", facts(expert_gating_func=4))
    with pytest.raises(UsageError, match="architecture mixtral cannot be verified; those that"):
        rule_of("mixtral", facts())


# --- routing ---

SOFTMAX = Rule("softmax", True)


def router(n_expert: int = 8, **more: Any) -> Router:
    random = np.random.default_rng(3)
    return Router(random.normal(size=(n_expert, 512)).astype(np.float32) / 8, "F32", **more)


def test_equal_scores_may_come_in_any_order_and_are_counted() -> None:
    probs = np.float32([[0.4, 0.3, 0.3, 0.0], [0.4, 0.3, 0.2, 0.1]])
    selection = routing.selection(SOFTMAX, router(4), probs, 2)
    assert selection.tied.tolist() == [True, False]
    assert selection.allows(np.int32([[0, 1], [0, 1]])).all()
    assert selection.allows(np.int32([[0, 2], [0, 2]])).tolist() == [True, False]
    assert not selection.allows(np.int32([[1, 0], [1, 0]])).any()
    assert not selection.allows(np.int32([[0, 0], [0, 0]])).any()


def test_a_selection_bias_and_groups_decide() -> None:
    rule = Rule("sigmoid", True, None, 2, 1)
    probs = np.float32([[0.9, 0.1, 0.6, 0.5]])
    grouped = routing.selection(rule, router(4), probs, 2)
    assert grouped.allows(np.int32([[2, 3]])).all()
    bias = np.float32([0, 0.2, 0, 0])
    biased = routing.selection(rule, router(4, selection_bias=bias), probs, 2)
    assert biased.allows(np.int32([[0, 1]])).all()
    assert not biased.allows(np.int32([[0, 2]])).any()


def test_groups_that_are_equal_are_a_tie() -> None:
    rule = Rule("sigmoid", True, None, 2, 1)
    probs = np.float32([[0.75, 0.25, 0.5, 0.5]])
    assert routing.selection(rule, router(4), probs, 1).tied.all()


def test_near_ties_are_told_from_decisions() -> None:
    matrix = router().matrix.copy()
    matrix[5] = matrix[2]
    matrix[5, 0] += np.float32(1e-9)
    twins = Router(matrix, "F32")
    found = routing.recompute(SOFTMAX, twins, ROWS, 8)
    assert found.open_rows.all()
    assert found.explains(found.ids).all()
    twin = np.select([found.ids == 2, found.ids == 5], [5, 2], found.ids).astype(np.int32)
    assert found.explains(twin).all()
    assert not found.explains(np.roll(found.ids, 1, axis=1)).any()
    apart = routing.recompute(SOFTMAX, router(), ROWS, 3)
    assert not apart.open_rows.any()
    assert apart.margin.min() > 1


@pytest.mark.parametrize(
    "rule",
    [
        SOFTMAX,
        Rule("softmax", False),
        Rule("sigmoid", True, 2.5, 4, 2),
        Rule("softmax_of_selected", False),
    ],
)
def test_steps_and_float64_agree_within_the_bound(rule: Rule) -> None:
    ours = router(bias=np.full(8, 0.25, dtype=np.float32))
    alone = routing.recompute(rule, ours, ROWS, 3)
    logits32 = ROWS @ ours.matrix.T
    assert (np.abs(logits32 - alone.logits) <= alone.logit_bound).all()
    assert ours.bias is not None
    probs = routing.exact_gate(rule.gate, logits32, ours.bias).astype(np.float32)
    assert routing.selection(rule, ours, probs, 3).allows(alone.ids).all()
    logits = alone.logits + 0.25
    weights = routing.weights_in_steps(rule, probs, alone.ids)
    expected = routing.weights_alone(rule, logits, alone.ids)
    bound = routing.weight_bound(ours, alone, logits)
    assert (np.abs(weights / expected - 1) <= bound[:, None]).all()
    if rule.normalised or rule.gate == "softmax_of_selected":
        assert weights.sum(axis=1) == pytest.approx(np.full(6, rule.scale or 1.0))


def test_mixed_types_have_the_limit_of_the_widest() -> None:
    for table in (limits.PLAIN, limits.AS_GGML):
        assert limits.widest(table, ["F16", "Q6_K"]) == table["Q6_K"]
        assert table.keys() == ROUNDING.keys()
    assert limits.expert_limit(["Q4_K", "BF16"]) == limits.expert_limit(["BF16"])


# --- dumps ---


def write_dump(folder: Path, **changes: Any) -> str:
    sizes = {"input": 4, "router_input": 4, "logits": 3, "probs": 3, "weights": 2, "output": 4}
    for name in F32_NAMES:
        np.zeros((2, sizes[name]), dtype="<f4").tofile(folder / f"d.{name}.1")
    np.int32([[0, 1], [2, 1]]).tofile(folder / "d.ids.1")
    columns = {name: {"type": "f32", "width": width} for name, width in sizes.items()}
    meta = {
        **{"type": "moe_dump", "version": 1, "model": "m", "arch": "qwen3moe", "layer": 1},
        **{"n_expert": 3, "top_k": 2, "routing_edited": False},
        "columns": columns | {"ids": {"type": "i32", "width": 2}},
        "calls": [{"phase": "decode", "first_position": 5, "tokens": 2, "rows": 2}],
    }
    (folder / "d.meta.1").write_text(json.dumps(meta | changes))
    return str(folder / "d")


def test_a_dump_is_read(tmp_path: Path) -> None:
    dump = read_dump(write_dump(tmp_path), 1)
    assert dump.positions == (5, 6)
    assert dump.ids.tolist() == [[0, 1], [2, 1]]
    assert dump.input.shape == (2, 4)


def spoil(folder: Path, name: str, content: bytes | None) -> None:
    path = folder / f"d.{name}.1"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("meta", None, "cannot be read"),
        ("meta", b"", "did not end"),
        ("meta", b"{", "not JSON"),
        ("meta", b"{}", "not the meta file of a version 1 dump"),
        ("meta", b'{"type": "moe_dump", "version": 2}', "version 1"),
        (
            "meta",
            b'{"type": "moe_dump", "version": 1}',
            "not the meta file of a dump .meta.model: miss",
        ),
        ("meta", b"\xff\xfe{}", "not JSON .'utf-8'"),
        ("output", None, "cannot be read"),
        ("output", bytes(31), "31 bytes, not 2 rows of 4 numbers"),
        ("output", bytes(36), "36 bytes, not 2 rows"),
        ("ids", np.int32([[0, 1], [3, 1]]).tobytes(), "ids outside of 0 to 2"),
        ("ids", np.int32([[0, 1], [-1, 1]]).tobytes(), "ids outside of 0 to 2"),
        ("probs", np.full(6, np.nan, dtype="<f4").tobytes(), "probs has numbers that are not"),
    ],
)
def test_a_dump_that_is_not_whole_is_refused(
    name: str, content: bytes | None, words: str, tmp_path: Path
) -> None:
    prefix = write_dump(tmp_path)
    spoil(tmp_path, name, content)
    with pytest.raises(UsageError, match=words):
        read_dump(prefix, 1)


WRONG_META = [
    ("model", 5, "meta.model: expected str, found 5"),
    ("model", "", "meta.model is empty"),
    ("arch", None, "meta.arch: expected str"),
    ("layer", 1.0, "meta.layer: expected int"),
    ("n_expert", True, "meta.n_expert: expected int"),
    ("top_k", -1, "meta.top_k is out of range"),
    ("routing_edited", None, "meta.routing_edited: expected bool, found None"),
    ("routing_edited", [], "meta.routing_edited: expected bool"),
    ("routing_edited", 0, "meta.routing_edited: expected bool, found 0"),
    ("columns", None, "meta.columns: expected an object"),
    ("columns", "f32", "meta.columns: expected an object"),
    ("columns", 7, "meta.columns: expected an object"),
    ("columns", [], "meta.columns: expected an object"),
    ("columns", {}, "meta.columns.input: missing"),
    ("calls", {}, "meta.calls: expected a list"),
    ("calls", [{"first_position": 0}], "meta.calls.0..rows: missing"),
    ("calls", [{"first_position": 0, "rows": -2}], "a number in meta.calls is out of range"),
    ("calls", [{"first_position": 0, "rows": 10**12}], "a number in meta.calls is out of range"),
    ("calls", [{"first_position": 0, "rows": 2**31 - 1}] * 9, "rows of 4 numbers"),
]


@pytest.mark.parametrize(("key", "value", "words"), WRONG_META)
def test_a_meta_file_with_a_wrong_value_is_refused(
    key: str, value: Any, words: str, tmp_path: Path
) -> None:
    prefix = write_dump(tmp_path, **{key: value})
    with pytest.raises(UsageError, match=words):
        read_dump(prefix, 1)


@pytest.mark.parametrize(
    ("column", "form", "words"),
    [
        ("ids", {"type": "f32", "width": 2}, "meta.columns.ids.type: f32, not i32"),
        ("probs", {"type": "f64", "width": 3}, "meta.columns.probs.type: 'f64' is none of"),
        ("probs", {"type": "f32", "width": 0}, "meta.columns.probs.width is out of range"),
        ("probs", {"type": "f32", "width": "3"}, "meta.columns.probs.width: expected int"),
        ("probs", None, "meta.columns.probs: expected an object"),
    ],
)
def test_a_column_of_a_wrong_form_is_refused(
    column: str, form: Any, words: str, tmp_path: Path
) -> None:
    prefix = write_dump(tmp_path)
    meta = json.loads((tmp_path / "d.meta.1").read_text())
    meta["columns"][column] = form
    (tmp_path / "d.meta.1").write_text(json.dumps(meta))
    with pytest.raises(UsageError, match=words):
        read_dump(prefix, 1)


def test_columns_that_have_one_width_differ_in_it(tmp_path: Path) -> None:
    prefix = write_dump(tmp_path)
    meta = json.loads((tmp_path / "d.meta.1").read_text())
    meta["columns"]["output"]["width"] = 8
    (tmp_path / "d.meta.1").write_text(json.dumps(meta))
    spoil(tmp_path, "output", bytes(64))
    with pytest.raises(UsageError, match="input, router_input and output differ in width"):
        read_dump(prefix, 1)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
META_KEYS = ("model", "arch", "layer", "n_expert", "top_k", "routing_edited", "columns", "calls")


def read_or_refuse(folder: Path) -> None:
    try:
        read_dump(str(folder / "d"), 1)
    except UsageError as error:
        assert len(str(error).splitlines()) == 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.binary(max_size=60))
@example(b"\xff\xfe\x00")
@example(b"[" * 100_000)
def test_any_bytes_as_meta_are_one_line(tmp_path: Path, content: bytes) -> None:
    write_dump(tmp_path)
    spoil(tmp_path, "meta", content)
    read_or_refuse(tmp_path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(META_KEYS), JSON, min_size=1, max_size=2))
def test_any_values_in_meta_are_one_line(tmp_path: Path, changes: dict[str, Any]) -> None:
    write_dump(tmp_path, **changes)
    read_or_refuse(tmp_path)


def test_a_dump_of_a_file_of_another_name_says_so() -> None:
    report = Report(
        "a.gguf", "/there/b.gguf", "qwen3moe", 1, ["F32"], 3, 2, 1, [Check("x", True, "y")]
    )
    assert "1 row, dumped from '/there/b.gguf'" in report.text()
    renamed = dataclasses.replace(report, dumped_from="/there/a.gguf")
    assert renamed.text().splitlines()[0].endswith("1 row")


def test_a_dump_without_rows_is_refused(tmp_path: Path) -> None:
    prefix = write_dump(tmp_path, calls=[])
    for path in tmp_path.glob("d.*.1"):
        if "meta" not in path.name:
            path.write_bytes(b"")
    with pytest.raises(UsageError, match="no rows"):
        read_dump(prefix, 1)


# --- command line ---


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--layer -1", "--layer -1: layers are counted from 0"),
        ("--layer 1 --dump d --tokens 4", "--tokens cannot act with --dump"),
        ("--layer 1 --dump d -- --overlap", "-- cannot act with --dump"),
        ("--layer 1 --dump d", "d.meta.1: cannot be read"),
    ],
)
def test_wrong_usage_is_one_line(
    arguments: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["layer", "/absent/model.gguf", *arguments.split()]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.startswith("harness: error: ")
    assert said.count("\n") == 1
