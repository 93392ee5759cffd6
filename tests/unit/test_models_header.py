"""GGUF headers: facts of good files, one line for bad ones, whatever the bytes are."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.models.geometry import GEOMETRIES
from harness.models.ggml_types import BY_NAME, TYPES, ZERO_BYTES_ARE_ZERO
from harness.models.gguf_header import read_header
from harness.models.gguf_info import model_info
from harness.models.gguf_write import TensorPlan, encode_field, write_gguf
from harness.models.synth import write_synthetic

F32 = BY_NAME["F32"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    write_synthetic(path, GEOMETRIES["tiny"])
    return path


def header_end(path: Path) -> int:
    return read_header(path).data_start


def one_line(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        model_info(path)
    text = str(caught.value)
    assert "\n" not in text
    assert str(path) in text
    return text


def zeros(name: str, dims: tuple[int, ...], kind: str = "F32") -> TensorPlan:
    plan = TensorPlan(name, dims, BY_NAME[kind], lambda: iter(()))
    return TensorPlan(name, dims, BY_NAME[kind], lambda: [bytes(plan.n_bytes)])


def moe_fields(**changes: object) -> list[bytes]:
    values: dict[str, object] = {
        "general.architecture": "qwen3moe",
        "qwen3moe.block_count": 1,
        "qwen3moe.embedding_length": 32,
        "qwen3moe.expert_count": 4,
        "qwen3moe.expert_used_count": 2,
    }
    values.update({k.replace("__", "."): v for k, v in changes.items()})
    return [encode_field(k, v) for k, v in values.items() if v is not None]  # type: ignore[arg-type]


EXPERTS = [
    zeros("blk.0.ffn_gate_exps.weight", (32, 32, 4)),
    zeros("blk.0.ffn_up_exps.weight", (32, 32, 4)),
    zeros("blk.0.ffn_down_exps.weight", (32, 32, 4), "Q8_0"),
]


# --- good files ----------------------------------------------------------------------------------


def test_the_type_table_equals_the_gguf_package() -> None:
    from gguf.constants import GGML_QUANT_SIZES

    theirs = {int(k): v for k, v in GGML_QUANT_SIZES.items()}
    assert {i: (t.block, t.block_bytes) for i, t in TYPES.items() if i in theirs} == theirs


def test_zero_bytes_decode_to_zeros_where_we_say_so() -> None:
    import numpy as np
    from gguf import GGMLQuantizationType, quants

    for name in sorted(ZERO_BYTES_ARE_ZERO - {"F32", "F16"}):
        block = np.zeros((1, BY_NAME[name].block_bytes), dtype=np.uint8)
        assert not quants.dequantize(block, GGMLQuantizationType[name]).any(), name


def test_facts_of_a_synthetic_model(tiny: Path) -> None:
    info = model_info(tiny)
    slice_bytes = 256 * 256 // 256 * 144
    assert info.arch == "qwen3moe"
    assert (info.n_layer, info.n_moe_layer, info.n_expert, info.n_expert_used) == (4, 4, 8, 2)
    assert info.expert_bytes_max == 3 * slice_bytes
    assert info.layer_expert_bytes == (8 * 3 * slice_bytes,) * 4
    assert info.expert_bytes == sum(info.layer_expert_bytes)
    assert info.file_bytes == tiny.stat().st_size
    assert info.n_vocab == 260
    assert info.types == {"Q4_K": 12}


def test_the_gguf_package_reads_the_same(tiny: Path) -> None:
    from gguf import GGUFReader

    theirs = {t.name: (t.data_offset, t.n_bytes) for t in GGUFReader(tiny).tensors}
    ours = {t.name: (t.offset, t.n_bytes) for t in read_header(tiny).tensors}
    assert ours == theirs
    info = model_info(tiny)
    assert info.expert_bytes + info.dense_bytes == sum(n for _, n in theirs.values())


def test_a_large_vocabulary_is_stepped_over_quickly(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.gguf"
    tokens = [f"token{i}" for i in range(200_000)]
    extra = encode_field("tokenizer.ggml.tokens", tokens)
    write_gguf(path, [*moe_fields(), extra], EXPERTS)
    start = time.process_time()
    info = model_info(path)
    assert time.process_time() - start < 1.0
    assert info.n_vocab == 200_000


# --- shards --------------------------------------------------------------------------------------


def write_shards(folder: Path, promised: int = 3) -> list[Path]:
    """Three shards, the first without tensors, as llama.cpp's split tool makes them."""
    paths = [folder / f"m-{i + 1:05d}-of-00003.gguf" for i in range(3)]
    for i, (path, tensors) in enumerate(zip(paths, ([], EXPERTS[:1], EXPERTS[1:]), strict=True)):
        split = [
            struct.pack("<Q", 8) + b"split.no" + struct.pack("<IH", 2, i),
            struct.pack("<Q", 11) + b"split.count" + struct.pack("<IH", 2, 3),
            struct.pack("<Q", 19) + b"split.tensors.count" + struct.pack("<Ii", 5, promised),
        ]
        write_gguf(path, [*(moe_fields() if i == 0 else []), *split], tensors)
    return paths


def test_any_shard_stands_for_the_model(tmp_path: Path) -> None:
    paths = write_shards(tmp_path)
    for path in paths:
        info = model_info(path)
        assert info.path == paths[0]
        assert info.shards == tuple(paths)
        assert info.file_bytes == sum(p.stat().st_size for p in paths)
        assert info.n_tensor == 3


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    paths = write_shards(tmp_path)
    paths[2].unlink()
    assert f"shard {paths[2].name} is missing" in one_line(paths[0])


def test_a_renamed_shard_is_refused(tmp_path: Path) -> None:
    paths = write_shards(tmp_path)
    other = paths[0].rename(tmp_path / "whole.gguf")
    assert "one of 3 shards" in one_line(other)


def test_swapped_shards_are_refused(tmp_path: Path) -> None:
    paths = write_shards(tmp_path)
    data = paths[1].read_bytes()
    paths[1].write_bytes(paths[2].read_bytes())
    paths[2].write_bytes(data)
    with pytest.raises(UsageError, match="its name is wrong"):
        model_info(paths[0])


def test_a_shard_with_too_few_tensors_is_refused(tmp_path: Path) -> None:
    assert "3 tensors" in one_line(write_shards(tmp_path, promised=4)[0])


# --- bad files -----------------------------------------------------------------------------------


def test_absent_directory_empty_and_text(tmp_path: Path) -> None:
    assert "no such file" in one_line(tmp_path / "none.gguf")
    assert "directory" in one_line(tmp_path)
    path = tmp_path / "a.gguf"
    path.write_bytes(b"")
    assert "not a GGUF" in one_line(path)
    path.write_text("this is a text")
    assert "not a GGUF" in one_line(path)


def test_versions(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 1, 0, 0))
    assert "version 1" in one_line(path)
    path.write_bytes(b"GGUF" + struct.pack(">IQQ", 3, 0, 0))
    assert "big-endian" in one_line(path)


def test_truncated_data_and_truncated_header(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    data = tiny.read_bytes()
    path.write_bytes(data[:-64])
    assert "truncated: tensor" in one_line(path)
    path.write_bytes(data[:1000])
    assert "truncated" in one_line(path)


def test_a_dense_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "dense.gguf"
    fields = [encode_field("general.architecture", "llama"), encode_field("llama.block_count", 1)]
    write_gguf(path, fields, [zeros("token_embd.weight", (32, 8))])
    assert "not a Mixture-of-Experts (MoE) model" in one_line(path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"qwen3moe__expert_count": None}, "expert_count is missing"),
        ({"qwen3moe__expert_count": "four"}, "expert_count is 'four'"),
        ({"qwen3moe__expert_count": 5}, "holds 4 experts, not 5"),
        ({"qwen3moe__expert_used_count": 0}, "expert_used_count is '0'"),
        ({"qwen3moe__expert_used_count": 5}, "routes to 5 of 4"),
        ({"qwen3moe__block_count": None}, "block_count is missing"),
        ({"general__architecture": None}, "no general.architecture"),
        ({"general__alignment": 24}, "power of two"),
    ],
)
def test_metadata_that_cannot_be(changes: dict[str, object], words: str, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    write_gguf(path, moe_fields(**changes), EXPERTS)
    assert words in one_line(path)


def test_hostile_counts_cost_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    huge = 2**62
    heads = [
        struct.pack("<IQQ", 3, huge, 0),
        struct.pack("<IQQ", 3, 0, huge),
        struct.pack("<IQQQ", 3, 0, 1, huge),
        struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IQ", 8, huge),
        struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 8, huge),
        struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 0, huge),
        struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 9, 1),
    ]
    start = time.process_time()
    for head in heads:
        path.write_bytes(b"GGUF" + head + bytes(100))
        one_line(path)
    assert time.process_time() - start < 1.0


# --- any bytes -----------------------------------------------------------------------------------

QUIET = settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def usable_or_one_line(path: Path) -> None:
    try:
        model_info(path)
    except UsageError as e:
        assert "\n" not in str(e)


@QUIET
@given(data=st.binary(max_size=400), after_magic=st.booleans())
def test_random_bytes(data: bytes, after_magic: bool, tmp_path: Path) -> None:
    path = tmp_path / "random.gguf"
    path.write_bytes((b"GGUF\3\0\0\0" if after_magic else b"") + data)
    usable_or_one_line(path)


@QUIET
@given(data=st.data())
def test_truncation_anywhere(data: st.DataObject, tiny: Path, tmp_path: Path) -> None:
    whole = tiny.read_bytes()
    cut = data.draw(st.one_of(st.integers(0, header_end(tiny)), st.integers(0, len(whole) - 1)))
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole[:cut])
    one_line(path)


@QUIET
@given(data=st.data())
def test_flipped_bits_in_the_header(data: st.DataObject, tiny: Path, tmp_path: Path) -> None:
    raw = bytearray(tiny.read_bytes())
    end = header_end(tiny)
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, end - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path = tmp_path / "flipped.gguf"
    path.write_bytes(raw)
    usable_or_one_line(path)


def test_a_fifo_is_refused_rather_than_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe.gguf"
    os.mkfifo(path)
    with pytest.raises(UsageError, match="no regular file"):
        read_header(path)
