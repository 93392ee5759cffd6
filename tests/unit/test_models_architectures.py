"""Synthetic models of every architecture, and models in shards, as files."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from harness.errors import UsageError
from harness.models import hashes, model_info, resolve_model
from harness.models.architectures import ARCHITECTURES
from harness.models.cli import main
from harness.models.geometry import GEOMETRIES, Geometry
from harness.models.gguf_info import read_model
from harness.models.gguf_write import file_bytes
from harness.models.registry import registry_dir
from harness.models.resolve import write_model
from harness.models.synth import weights_label, write_synthetic

TINY = GEOMETRIES["tiny"]
# layer 3 is the one that attends in hybrid models, the last in all
MADE = {
    "qwen3moe": ("Q4_K", 4, ["blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight"]),
    "qwen2moe": ("Q8_0", 4, ["blk.0.ffn_gate_inp_shexp.weight", "blk.3.attn_q.bias"]),
    "qwen3next": ("Q4_K", 4, ["blk.0.ssm_ba.weight", "blk.3.attn_q.weight"]),
    "qwen35moe": ("Q4_K+Q6_K", 4, ["blk.0.ssm_alpha.weight", "blk.4.nextn.eh_proj.weight"]),
    "gpt-oss": ("MXFP4", 4, ["blk.0.ffn_down_exps.bias", "blk.0.ffn_gate_inp.bias"]),
    "gemma4": ("Q4_K", 4, ["blk.0.ffn_gate_up_exps.weight", "blk.0.ffn_down_exps.scale"]),
    "laguna": ("Q4_K+BF16", 3, ["blk.0.ffn_up.weight", "blk.1.ffn_up_shexp.weight"]),
    "deepseek2": ("BF16", 3, ["blk.1.exp_probs_b.bias", "blk.0.attn_kv_a_mqa.weight"]),
    "lfm2moe": ("F16", 3, ["blk.0.shortconv.conv.weight", "blk.1.attn_q.weight"]),
}


# the beginning of the SHA-256 of `tiny` with seed 0; raise synth.RECIPE when these have to change
PINNED = {
    "qwen3moe": "41561b62ec28b7fb",
    "qwen2moe": "103e5de403627411",
    "qwen3next": "bd7c1b982961a9ba",
    "qwen35moe": "d91ce6d67cd27e29",
    "gpt-oss": "1cc49f7641fb91b7",
    "gemma4": "b71fafd5b55010c9",
    "laguna": "454a7176d4e6629e",
    "deepseek2": "0ee850fa1bb6c8f8",
    "lfm2moe": "4802818f6c631fb9",
}


@pytest.mark.parametrize("arch", list(ARCHITECTURES))
def test_an_architecture_has_its_peculiarities(arch: str, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    sha256 = write_synthetic(path, TINY, arch=arch)
    label, n_moe_layer, tensors = MADE[arch]
    info = model_info(path)
    assert info.arch == arch
    assert (info.n_layer, info.n_moe_layer) == (4, n_moe_layer)
    assert set(info.types) == set(label.split("+"))
    assert weights_label(TINY, arch, None) == label
    assert hashes.files_sha256([path], tmp_path / "cache") == sha256
    assert sha256.startswith(PINNED[arch])
    names = {t.name for t in GGUFReader(path).tensors}
    assert len(names) == info.n_tensor
    assert set(tensors) <= names


@pytest.mark.parametrize("arch", list(ARCHITECTURES))
def test_all_numbers_are_finite_and_none_is_large(arch: str, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    write_synthetic(path, TINY, arch=arch)
    exact = [t for t in GGUFReader(path).tensors if t.tensor_type.name == "F32"]
    assert len(exact) > 4 * 3
    for tensor in exact:
        assert np.isfinite(tensor.data).all(), tensor.name
        assert np.abs(tensor.data).max() <= 16, tensor.name


@pytest.mark.parametrize("size", list(GEOMETRIES))
@pytest.mark.parametrize("arch", list(ARCHITECTURES))
def test_every_geometry_fits_every_architecture_and_the_given_type(
    arch: str, size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plans only: `wide` is large."""
    sizes = []

    def measure(path: Path, fields: list[bytes], tensors: list[object], **_: object) -> str:
        assert len({t.name for t in tensors}) == len(tensors)  # type: ignore[attr-defined]
        experts = [t for t in tensors if "_exps.weight" in t.name]  # type: ignore[attr-defined]
        sizes.append((file_bytes(fields, tensors), {t.type.name for t in experts}))  # type: ignore
        return ""

    monkeypatch.setattr("harness.models.synth.write_gguf", measure)
    for weights in (None, "Q6_K"):
        write_synthetic(tmp_path / "a.gguf", GEOMETRIES[size], arch=arch, weights=weights)
    (_, types), (n_bytes, given) = sizes
    assert types == set(weights_label(GEOMETRIES[size], arch, None).split("+"))
    assert given == {"Q6_K"}
    assert n_bytes > 2**20


def test_the_configuration_names_every_architecture() -> None:
    said = (registry_dir() / "synthetic.yaml").read_text()
    for name in ARCHITECTURES:
        assert re.search(rf"[ ,]{name}(\s|$)", said), name


def test_list_shows_what_make_takes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["list", "--cache-dir", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    for name in ARCHITECTURES:
        assert f"synthetic arch={name} " in said
    output = tmp_path / "a.gguf"
    make = ["make", "synthetic", "arch=gpt-oss", "geometry=tiny", "-o", str(output)]
    assert main([*make, "--cache-dir", str(tmp_path)]) == 0
    assert model_info(output).arch == "gpt-oss"


def test_experts_that_nothing_routes_to_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    write_synthetic(path, TINY, arch="qwen35moe")
    info = model_info(path)
    sizes = {t.name: int(t.n_bytes) for t in GGUFReader(path).tensors}
    experts = {n: s for n, s in sizes.items() if "_exps.weight" in n}
    idle = sum(s for n, s in experts.items() if n.startswith("blk.4."))
    assert idle > 0
    assert info.expert_bytes == sum(experts.values()) - idle
    assert info.dense_bytes == sum(sizes.values()) - sum(experts.values())
    assert len(info.layer_expert_bytes) == 4


# --- shards --------------------------------------------------------------------------------------


def tensors_of(path: Path) -> dict[str, tuple[tuple[int, ...], bytes]]:
    found = {}
    for header in read_model(path):
        raw = header.path.read_bytes()
        for t in header.tensors:
            found[t.name] = (t.dims, raw[t.offset : t.offset + t.n_bytes])
    return found


@pytest.mark.parametrize("count", [2, 3, 17])
def test_shards_hold_what_the_whole_holds(count: int, tmp_path: Path) -> None:
    whole, first = tmp_path / "a.gguf", tmp_path / f"a-00001-of-{count:05d}.gguf"
    write_synthetic(whole, TINY)
    steps: list[tuple[int, int]] = []
    sha256 = write_synthetic(first, TINY, shards=count, tick=lambda *step: steps.append(step))
    paths = model_info(first).shards
    assert len(paths) == count
    assert hashes.files_sha256(paths, tmp_path / "cache") == sha256
    assert list(tensors_of(first).items()) == list(tensors_of(whole).items())
    assert all(h.tensors for h in read_model(first))
    total = sum(p.stat().st_size for p in paths)
    assert steps[-1] == (total, total)
    assert [done for done, _ in steps] == sorted({done for done, _ in steps})
    # about equal, as far as tensors allow
    largest = max(t.n_bytes for h in read_model(whole) for t in h.tensors)
    assert max(p.stat().st_size for p in paths) <= total / count + largest + 2**14


def test_every_shard_has_a_tensor_even_when_most_bytes_come_first(tmp_path: Path) -> None:
    few = Geometry("one layer", 1, 4, 2, 256, 256, n_head=2, n_head_kv=1)
    n_tensor = model_info_of(tmp_path / "a.gguf", few)
    first = tmp_path / f"b-00001-of-{n_tensor:05d}.gguf"
    write_synthetic(first, few, shards=n_tensor)
    assert [len(h.tensors) for h in read_model(first)] == [1] * n_tensor
    with pytest.raises(UsageError, match=r"model.shards: .*has 15 tensors"):
        write_synthetic(first, few, shards=n_tensor + 1)


def model_info_of(path: Path, shape: Geometry) -> int:
    write_synthetic(path, shape)
    return model_info(path).n_tensor


def test_a_sharded_model_is_made_once(tmp_path: Path) -> None:
    config = {"kind": "synthetic", "geometry": "tiny", "arch": "laguna", "shards": 3}
    made = resolve_model(config, cache_dir=tmp_path)
    again = resolve_model(config, cache_dir=tmp_path)
    assert (made.origin, again.origin) == ("made", "cached")
    assert made.sha256 == again.sha256
    assert len(made.paths) == 3
    digests = "".join(f"{hashlib.sha256(p.read_bytes()).hexdigest()}\n" for p in made.paths)
    assert made.sha256 == hashlib.sha256(digests.encode()).hexdigest()
    made.paths[1].unlink()
    assert resolve_model(config, cache_dir=tmp_path).origin == "made"
    whole = resolve_model({**config, "shards": 1}, cache_dir=tmp_path)
    assert whole.path != made.path


def test_a_failed_shard_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.models import shards

    write = shards.write_gguf

    def fail_at_the_first(path: Path, *args: object, **keys: object) -> str:
        if "-00001-" in path.name:
            raise UsageError("disk full")
        return write(path, *args, **keys)  # type: ignore[arg-type]

    monkeypatch.setattr(shards, "write_gguf", fail_at_the_first)
    with pytest.raises(UsageError, match="disk full"):
        write_synthetic(tmp_path / "a-00001-of-00003.gguf", TINY, shards=3)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"arch": "qwen9moe"}, "model.arch: 'qwen9moe' is none of qwen3moe, .*gpt-oss"),
        ({"shards": 0}, "model.shards: 0 is not from 1 to"),
        ({"shards": -1}, "model.shards: -1"),
        ({"shards": 100_000}, "model.shards: 100000"),
        ({"shards": 3}, "ends in -00001-of-00003.gguf"),
    ],
)
def test_mistakes_are_one_line(config: dict[str, object], words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        write_model(
            {"kind": "synthetic", "geometry": "tiny", **config},
            tmp_path / "a.gguf",
            cache_dir=tmp_path / "cache",
        )
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("*.gguf"))
