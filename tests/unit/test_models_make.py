"""Synthetic and inflated models, and resolving a configuration to a file."""

from __future__ import annotations

import dataclasses
import json
import socket
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, quants

from harness.errors import DeviceError, UsageError
from harness.models import hashes, hub, model_info, registry, resolve, resolve_model
from harness.models.cli import main
from harness.models.config import HubModel, SyntheticModel, parse_model
from harness.models.geometry import GEOMETRIES, Geometry
from harness.models.ggml_types import BY_NAME
from harness.models.gguf_header import read_header
from harness.models.gguf_write import TensorPlan, encode_field, write_gguf
from harness.models.inflate import inflate
from harness.models.layer_types import layer_types
from harness.models.synth import bit_stream, write_synthetic
from harness.models.weights import BLOCKS

SMALLEST = Geometry("for these tests", 1, 4, 2, 256, 256, n_head=2, n_head_kv=1)
TINY = {"kind": "synthetic", "geometry": "tiny"}


def decoded(kind: str, raw: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if kind in {"F32", "F16"}:
        return raw.reshape(-1).view({"F32": "<f4", "F16": "<f2"}[kind]).astype(np.float64)
    return np.asarray(quants.dequantize(raw, GGMLQuantizationType[kind]), dtype=np.float64)


# --- random weights ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(BLOCKS))
def test_random_blocks_have_the_wanted_mean_and_deviation(kind: str) -> None:
    n = 65536 // BY_NAME[kind].block
    raw = BLOCKS[kind](bit_stream("x", 1), n, 0.05).reshape(n, -1)
    assert raw.shape[1] == BY_NAME[kind].block_bytes
    values = decoded(kind, raw)
    assert np.isfinite(values).all()
    assert abs(values.mean()) < 0.0025
    # MXFP4's scales are powers of two
    assert values.std() == pytest.approx(0.05, rel=0.4 if kind == "MXFP4" else 0.05)


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    a = write_synthetic(tmp_path / "a.gguf", SMALLEST)
    b = write_synthetic(tmp_path / "b.gguf", SMALLEST)
    c = write_synthetic(tmp_path / "c.gguf", SMALLEST, seed=1)
    assert a == b != c
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_the_bytes_of_a_seed_are_pinned(tmp_path: Path) -> None:
    """They are part of records: raise synth.RECIPE when this has to change."""
    sha256 = write_synthetic(tmp_path / "a.gguf", GEOMETRIES["tiny"])
    assert sha256 == "41561b62ec28b7fb69bf8a04cbd6ae6cacdd4ecc90a4e5deb501a566179b7db5"


@pytest.mark.parametrize("kind", list(BLOCKS))
def test_every_weight_type_makes_a_readable_model(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    sha256 = write_synthetic(path, SMALLEST, weights=kind)
    assert model_info(path).types == {kind: 3}
    assert hashes.files_sha256([path], tmp_path / "cache") == sha256
    by_name = {t.name: t for t in GGUFReader(path).tensors}
    down = by_name["blk.0.ffn_down_exps.weight"]
    assert down.tensor_type == GGMLQuantizationType[kind]
    assert list(down.shape) == [256, 256, 4]


def test_the_experts_of_a_layer_have_the_type_that_is_named_for_it(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    write_synthetic(path, GEOMETRIES["tiny"], weights="Q4_K+Q8_0@1+BF16@2-3")
    kinds = [
        {t.tensor_type.name for t in GGUFReader(path).tensors if t.name.startswith(f"blk.{i}.ffn_")}
        - {"F32"}
        for i in range(4)
    ]
    assert kinds == [{"Q4_K"}, {"Q8_0"}, {"BF16"}, {"BF16"}]
    assert model_info(path).layer_expert_bytes == tuple(
        8 * n for n in (110592, 208896, 393216, 393216)
    )


def test_a_type_by_layer_makes_a_model_of_its_own(tmp_path: Path) -> None:
    third, second = (
        resolve_model({**TINY, "arch": "laguna", "weights": w}, cache_dir=tmp_path)
        for w in ("Q4_K+BF16@3", "Q4_K+BF16@2")
    )
    small, large = 8 * 110_592, 8 * 393_216
    # layer 0 is dense
    assert third.info.layer_expert_bytes == (small, small, large)
    assert second.info.layer_expert_bytes == (small, large, small)
    assert third.path != second.path


def test_the_published_pagers_geometry_is_its_model_scaled_down() -> None:
    """Layers, experts, top-k and the ratio of the two expert sizes are the published ones."""
    config = parse_model(registry.configuration("epq_small"))
    assert isinstance(config, SyntheticModel)
    shape = GEOMETRIES[config.geometry]
    assert (shape.n_layer, shape.n_expert, shape.n_expert_used) == (48, 256, 10)
    types = layer_types(str(config.weights), shape.n_layer)
    sizes = [3 * shape.n_ff_expert * types.of(i).row_bytes(shape.n_embd) for i in range(1, 48)]
    assert sizes == 39 * [110_592] + 8 * [393_216]
    assert 256 * sum(sizes) == 1_909_456_896
    assert 110_592 * 18_874_368 == 393_216 * 5_308_416


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ("Q4_K+BF16", "'BF16' is not TYPE@LAYER"),
        ("Q4_K+BF16@", "is not TYPE@LAYER"),
        ("Q4_K+BF16@2-", "is not TYPE@LAYER"),
        ("Q4_K+BF16@4", "layers are 0 to 3"),
        ("Q4_K+BF16@3-2", "first to last"),
        ("Q4_K+BF16@1-2+F16@2-3", "layer 2 stands there twice"),
        ("Q4_K+B16@1", "'B16' is none of F32"),
        ("+BF16@1", "'' is none of F32"),
    ],
)
def test_a_type_by_layer_that_cannot_be_is_refused(weights: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        layer_types(weights, 4)


def test_the_tokenizer_has_one_token_for_every_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    write_synthetic(path, SMALLEST)
    tokens = read_header(path).value("tokenizer.ggml.tokens")
    assert len(set(tokens)) == 260
    assert tokens[ord("a")] == "a"
    assert tokens[ord(" ")] == "Ġ"


# --- inflated ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Q4_K", "Q8_0", "F16", "MXFP4"])
def test_inflating_adds_zeros_and_keeps_every_byte(kind: str, tmp_path: Path) -> None:
    source, target = tmp_path / "a.gguf", tmp_path / "b.gguf"
    write_synthetic(source, SMALLEST, weights=kind)
    sha256 = inflate(source, target, 3)
    assert hashes.files_sha256([target], tmp_path / "cache") == sha256
    before = {t.name: t for t in GGUFReader(source).tensors}
    after = {t.name: t for t in GGUFReader(target).tensors}
    assert before.keys() == after.keys()
    for name, old in before.items():
        new = after[name]
        if "_exps." not in name:
            assert np.array_equal(old.data, new.data), name
            continue
        # as (expert, row, bytes)
        a = old.data.reshape(4, 256, -1).view(np.uint8)
        b = new.data.reshape(4, 256 if "down" in name else 768, -1).view(np.uint8)
        kept = b[:, :256, : a.shape[2]]
        assert np.array_equal(a, kept), name
        assert int(np.count_nonzero(b)) == int(np.count_nonzero(a)), name
        assert new.n_bytes == 3 * old.n_bytes


def test_inflating_changes_one_metadata_value(tmp_path: Path) -> None:
    source, target = tmp_path / "a.gguf", tmp_path / "b.gguf"
    write_synthetic(source, SMALLEST)
    inflate(source, target, 2)
    a, b = (
        {k: (f.type, f.value) for k, f in read_header(p).fields.items()} for p in (source, target)
    )
    changed = {k for k in a if a[k] != b[k]}
    assert a.keys() == b.keys()
    assert changed == {"qwen3moe.expert_feed_forward_length"}
    assert b["qwen3moe.expert_feed_forward_length"][1] == 512


def _foreign(tmp_path: Path, kind: str, extra: list[TensorPlan], width: int = 256) -> Path:
    """A model of one layer that is not from our own recipe."""
    path = tmp_path / "foreign.gguf"
    fields = {
        "general.architecture": "other",
        "other.block_count": 1,
        "other.embedding_length": 256,
        "other.expert_count": 2,
        "other.expert_used_count": 1,
    }
    if width:
        fields["other.expert_feed_forward_length"] = width
    tensors = [_ones("blk.0.ffn_down_exps.weight", (256, 256, 2), kind), *extra]
    write_gguf(path, [encode_field(k, v) for k, v in fields.items()], tensors)
    return path


def _ones(name: str, dims: tuple[int, ...], kind: str) -> TensorPlan:
    plan = TensorPlan(name, dims, BY_NAME[kind], lambda: [])
    return TensorPlan(name, dims, BY_NAME[kind], lambda: [b"\1" * plan.n_bytes])


def test_fused_gate_and_up_are_padded_apart(tmp_path: Path) -> None:
    path = _foreign(
        tmp_path, "Q8_0", [_ones("blk.0.ffn_gate_up_exps.weight", (256, 512, 2), "F32")]
    )
    inflate(path, tmp_path / "b.gguf", 2)
    after = {t.name: t for t in GGUFReader(tmp_path / "b.gguf").tensors}
    rows = after["blk.0.ffn_gate_up_exps.weight"].data.reshape(2, 4, 256, 256).any(axis=3)
    assert rows[:, [0, 2]].all()
    assert not rows[:, [1, 3]].any()


def test_hidden_biases_are_padded_and_the_others_kept(tmp_path: Path) -> None:
    biases = [
        _ones("blk.0.ffn_gate_exps.bias", (256, 2), "F32"),
        _ones("blk.0.ffn_down_exps.bias", (256, 2), "F32"),
    ]
    inflate(_foreign(tmp_path, "Q8_0", biases), tmp_path / "b.gguf", 2)
    after = {t.name: t for t in GGUFReader(tmp_path / "b.gguf").tensors}
    assert list(after["blk.0.ffn_gate_exps.bias"].shape) == [512, 2]
    assert list(after["blk.0.ffn_down_exps.bias"].shape) == [256, 2]


@pytest.mark.parametrize(
    ("kind", "extra", "width", "words"),
    [
        ("TQ2_0", [], 256, "zeros in TQ2_0"),
        ("Q8_0", [], 0, "no single other.expert_feed_forward_length"),
        ("Q8_0", [], 128, "whole blocks"),
        ("Q8_0", [_ones("blk.0.ffn_up_chexps.weight", (256, 256, 2), "F32")], 256, "no plain"),
        ("Q8_0", [_ones("blk.0.ffn_odd_exps.weight", (256, 256, 2), "F32")], 256, "unknown kind"),
    ],
)
def test_what_cannot_be_inflated_exactly_is_refused(
    kind: str, extra: list[TensorPlan], width: int, words: str, tmp_path: Path
) -> None:
    path = _foreign(tmp_path, kind, extra, width)
    with pytest.raises(UsageError, match=words):
        inflate(path, tmp_path / "b.gguf", 2)
    assert not list(tmp_path.glob("*b.gguf*"))


# --- writing -------------------------------------------------------------------------------------


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    short = TensorPlan("x", (256,), BY_NAME["F32"], lambda: [b"short"])
    with pytest.raises(DeviceError, match="yielded 5 bytes"):
        write_gguf(tmp_path / "a.gguf", [], [short])
    assert not list(tmp_path.iterdir())


def test_no_room_is_said_before_anything_is_written(tmp_path: Path) -> None:
    big = TensorPlan("x", (2**50,), BY_NAME["F32"], lambda: [])
    with pytest.raises(UsageError, match="disk full"):
        write_gguf(tmp_path / "a.gguf", [], [big])
    assert not list(tmp_path.iterdir())


# --- resolving -----------------------------------------------------------------------------------


def test_a_synthetic_model_is_made_once(tmp_path: Path) -> None:
    made = resolve_model(TINY, cache_dir=tmp_path)
    again = resolve_model(TINY, cache_dir=tmp_path)
    assert (made.origin, again.origin) == ("made", "cached")
    assert made.path == again.path
    assert made.sha256 == again.sha256


def test_an_altered_model_is_made_again_and_the_reason_said(tmp_path: Path) -> None:
    made = resolve_model(TINY, cache_dir=tmp_path)
    with made.path.open("r+b") as f:
        f.seek(-100, 2)
        f.write(b"damaged")
    notes = []
    again = resolve_model(
        TINY, cache_dir=tmp_path, progress=lambda s: notes.append(s.message) if s.note else None
    )
    assert again.origin == "made"
    assert again.sha256 == made.sha256
    assert len(notes) == 1 and "altered" in notes[0]


def test_nothing_is_made_when_that_is_not_wanted(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"model make synthetic geometry=tiny --cache-dir [^ ]+`"):
        resolve_model(TINY, cache_dir=tmp_path, make=False)


def test_inflated_from_a_file(tmp_path: Path) -> None:
    base = resolve_model(TINY, cache_dir=tmp_path)
    config = {"kind": "inflated", "factor": 2, "base": str(base.path)}
    model = resolve_model(config, cache_dir=tmp_path)
    assert model.info.expert_bytes == 2 * base.info.expert_bytes
    assert model.info.dense_bytes == base.info.dense_bytes


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"kind": "synthetik"}, "did you mean 'synthetic'"),
        ({}, "model.kind"),
        ({"kind": "path", "path": None}, "model.path"),
        ({"kind": "path", "path": 3}, "model.path"),
        ({"kind": "inflated", "factor": 1}, "model.factor"),
        ({"kind": "inflated", "factor": 2.5}, "model.factor"),
        ({"kind": "synthetic", "geometry": "huge"}, "model.geometry.*tiny"),
        ({"kind": "synthetic", "weights": "Q4_K_M"}, "model.weights.*Q4_K"),
        ({"kind": "synthetic", "seed": -1}, "model.seed"),
        ({"kind": "synthetic", "sede": 1}, "model.sede"),
    ],
)
def test_mistakes_are_one_line(config: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        resolve_model(config, cache_dir=tmp_path)
    assert "\n" not in str(caught.value)


def test_the_reference_must_be_what_its_sidecar_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve, "DATA", tmp_path)
    reference = {"kind": "reference"}
    with pytest.raises(UsageError, match="missing from this installation"):
        resolve_model(reference, cache_dir=tmp_path / "cache")
    sha256 = write_synthetic(tmp_path / resolve.REFERENCE, SMALLEST)
    sidecar = tmp_path / resolve.REFERENCE_SIDECAR
    sidecar.write_text(json.dumps({"sha256": sha256}))
    assert resolve_model(reference, cache_dir=tmp_path / "cache").sha256 == sha256
    sidecar.write_text(json.dumps({"sha256": "0" * 64}))
    with pytest.raises(UsageError, match="has SHA-256"):
        resolve_model(reference, cache_dir=tmp_path / "cache")


# --- hashes --------------------------------------------------------------------------------------


def test_a_hash_is_remembered_until_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"one")
    first = hashes.files_sha256([file], tmp_path / "cache")
    with monkeypatch.context() as m:
        m.setattr(hashes, "sha256_file", lambda *a: pytest.fail("hashed again"))
        assert hashes.files_sha256([file], tmp_path / "cache") == first
    file.write_bytes(b"two!")
    assert hashes.files_sha256([file], tmp_path / "cache") != first


# --- the hub -------------------------------------------------------------------------------------

HUB = HubModel("Test", "some/repo", ("q4/x-00001-of-00002.gguf", "q4/x-00002-of-00002.gguf"))


def fake_hub(monkeypatch: pytest.MonkeyPatch, download: Any) -> None:
    module = types.ModuleType("huggingface_hub")
    module.hf_hub_download = download  # type: ignore[attr-defined]
    module.constants = types.SimpleNamespace(ENDPOINT="")  # type: ignore[attr-defined]
    monkeypatch.setattr(hub, "_unreachable", lambda endpoint: None)
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)


def test_files_put_by_hand_are_found(tmp_path: Path) -> None:
    folder = hub.folder_of(HUB, tmp_path)
    folder.mkdir(parents=True)
    for name in HUB.files:
        (folder / Path(name).name).touch()
    path, fetched = hub.locate(HUB, tmp_path, fetch=True, say=print)
    assert (path, fetched) == (folder / "x-00001-of-00002.gguf", False)


def test_without_the_library_the_line_says_what_to_put_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UsageError) as caught:
        hub.locate(HUB, tmp_path, fetch=True, say=print)
    for words in ("x-00002-of-00002.gguf", str(tmp_path), "some/repo", "moe-harness[hub]"):
        assert words in str(caught.value)


def test_an_unreachable_hub_is_known_at_once() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]  # bound, and nobody listens
        why = hub._unreachable(f"http://127.0.0.1:{port}")
    assert why is not None
    assert "refused" in why


def test_a_failed_fetch_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: Any) -> str:
        raise ConnectionError("many\nlines")

    fake_hub(monkeypatch, fail)
    with pytest.raises(UsageError, match=r"cannot be fetched \(ConnectionError\)") as caught:
        hub.locate(HUB, tmp_path, fetch=True, say=print)
    assert "\n" not in str(caught.value)


def test_a_fetch_tells_what_has_come_from_the_first_file_to_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int | None]] = []

    def download(**kw: Any) -> str:
        """As the library does it: under another name until it is whole."""
        target = Path(kw["local_dir"]) / kw["filename"]
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name("x.incomplete")
        for size in (1000, 3000):
            part.write_bytes(bytes(size))
            wanted = size + 3000 * HUB.files.index(kw["filename"])
            while (wanted, 6000) not in seen:
                time.sleep(0.01)
        return str(part.rename(target))

    fake_hub(monkeypatch, download)
    monkeypatch.setattr(hub, "LOOK_S", 0.01)
    config = dataclasses.replace(HUB, bytes=6000)
    told = lambda done, total: seen.append((done, total))  # noqa: E731
    hub.locate(config, tmp_path, fetch=True, say=print, tick=told)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert not [t for t in threading.enumerate() if t.name == "hub"]


def test_fetched_files_keep_the_paths_of_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(**kw: Any) -> str:
        target = Path(kw["local_dir"]) / kw["filename"]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
        return str(target)

    fake_hub(monkeypatch, download)
    path, fetched = hub.locate(HUB, tmp_path, fetch=True, say=print)
    assert fetched
    assert path == hub.folder_of(HUB, tmp_path) / HUB.files[0]
    assert hub.locate(HUB, tmp_path, fetch=True, say=print) == (path, False)


# --- the verb ------------------------------------------------------------------------------------


def test_list_names_every_file_of_the_group(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", "--json", "--cache-dir", str(tmp_path)]) == 0
    rows = {r["name"]: r for r in json.loads(capsys.readouterr().out)}
    assert {"reference", "inflated", "synthetic", "path", "gpt_oss_120b"} <= rows.keys()
    assert all(r["about"].endswith(".") for r in rows.values())


def test_make_then_info(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "made.gguf"
    make = ["make", "synthetic", "geometry=tiny", "-o", str(output), "--json"]
    assert main([*make, "--cache-dir", str(tmp_path)]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["path"] == str(output)
    assert main(["info", str(output), "--json", "--cache-dir", str(tmp_path)]) == 0
    info = json.loads(capsys.readouterr().out)
    assert info["sha256"] == made["sha256"]
    assert info["info"]["n_expert"] == 8


@pytest.mark.parametrize(
    "argv",
    [
        ["info", "sinthetic"],
        ["info", "/no/such.gguf"],
        ["make", "synthetic", "geometry"],
        ["make", "synthetic", "geometry=[unclosed"],
        ["make", "path", "path=README.md"],
        ["make", "path", "path=README.md", "-o", "x.gguf"],
    ],
)
def test_mistakes_exit_with_2(
    argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*argv, "--cache-dir", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("harness: error: ")
    assert err.count("\n") == 1
