"""The layer check against the real engine: every architecture and weight type, plain and streamed.

And that it finds what is wrong: a bit of a weight, an id, a weight, a number of the output.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_parts import engine

from harness.models.architectures import ARCHITECTURES
from harness.models.geometry import GEOMETRIES
from harness.models.gguf_info import read_model
from harness.models.synth import write_synthetic
from harness.verify.cli import PROMPT, main

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

# the layer before the last, which is computed for every token of the prompt
LAYER = GEOMETRIES["tiny"].n_layer - 2
TYPES = ("Q4_K", "Q6_K", "Q8_0", "MXFP4", "BF16", "F16", "F32")


@pytest.fixture(scope="module")
def program() -> Path:
    return engine()


def dump(program: Path, model: Path, prefix: Path, layer: int, *flags: str) -> dict[str, bytes]:
    """Files of a dump by name; of a model in whatever mode."""
    command = [str(program), "-m", str(model), "-p", PROMPT, "-n", "6", "-c", "256", "-b", "64"]
    command += ["-t", "1", "--no-eog", "--moe-dump", f"il={layer}:{prefix}", *flags]
    done = subprocess.run(command, capture_output=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:].decode(errors="replace")
    found = prefix.parent.glob(f"{prefix.name}.*.{layer}")
    files = {p.name.split(".")[1]: p.read_bytes() for p in found}
    assert len(files) == 8
    return files


def verify(
    capsys: pytest.CaptureFixture[str], model: Path, prefix: Path, layer: int = LAYER
) -> tuple[int, dict[str, Any]]:
    """Exit code and report of `verify layer --dump`."""
    capsys.readouterr()
    code = main(["layer", str(model), "--layer", str(layer), "--dump", str(prefix), "--json"])
    said = capsys.readouterr()
    assert said.out, said.err
    return code, json.loads(said.out)


def failed(report: dict[str, Any]) -> set[str]:
    return {check["name"] for check in report["checks"] if not check["ok"]}


def measured(report: dict[str, Any], name: str) -> dict[str, Any]:
    return dict(next(c["measured"] for c in report["checks"] if c["name"] == name))


def holds(
    program: Path, model: Path, folder: Path, layer: int, capsys: pytest.CaptureFixture[str]
) -> dict[str, Any]:
    """The report of a layer whose dumps are the same in every mode, and hold."""
    plain = dump(program, model, folder / "plain", layer)
    for flags in (
        ("--moe-stream",),
        ("--moe-stream", "--cache-mb", "4", "--force-cache", "--overlap"),
        ("--moe-stream", "--cache-mb", "64", "--no-odirect"),
    ):
        assert dump(program, model, folder / "streamed", layer, *flags) == plain, flags
    code, report = verify(capsys, model, folder / "plain", layer)
    assert (code, failed(report)) == (0, set())
    ids = measured(report, "ids")
    assert ids["equal"] == ids["rows"] == report["rows"] > 0
    return report


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_architecture_holds(
    arch: str, program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model.gguf"
    write_synthetic(model, GEOMETRIES["tiny"], arch=arch)
    report = holds(program, model, tmp_path, LAYER, capsys)
    weights = measured(report, "weights")
    if arch == "gpt-oss":  # an expf of another C library may differ
        assert weights["equal"] >= 0.98 * weights["weights"]
    else:
        assert weights["equal"] == weights["weights"]
    last = holds(program, model, tmp_path, LAYER + 1, capsys)
    assert last["rows"] == 1 + 6
    if arch == "laguna":  # layers of several types
        assert (report["expert_types"], last["expert_types"]) == (["Q4_K"], ["BF16"])
    if arch == "qwen35moe":  # and a layer
        assert report["expert_types"] == ["Q4_K", "Q6_K"]


@pytest.mark.parametrize("weights", TYPES)
def test_every_weight_type_holds_and_a_flipped_bit_is_found(
    weights: str, program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model.gguf"
    write_synthetic(model, GEOMETRIES["tiny"], weights=weights)
    report = holds(program, model, tmp_path, LAYER, capsys)
    assert report["expert_types"] == [weights]
    used = int(np.fromfile(tmp_path / f"plain.ids.{LAYER}", dtype="<i4")[0])

    # the lowest bit of an exponent: of a block's scale, or of a float
    byte, bit = {"Q6_K": (209, 2), "MXFP4": (0, 0), "BF16": (0, 7), "F32": (2, 7)}.get(
        weights, (1, 2)
    )
    flip_bit(model, f"blk.{LAYER}.ffn_down_exps.weight", used, byte, bit)
    code, report = verify(capsys, model, tmp_path / "plain")
    assert code == 1
    assert "output, rounded as ggml" in failed(report)
    assert failed(report) <= {"output", "output, rounded as ggml"}  # the routing is as it was


def flip_bit(model: Path, name: str, expert: int, byte: int, bit: int) -> None:
    """One bit in the middle of an expert's matrix, at a byte of a block."""
    tensor = next(t for h in read_model(model) for t in h.tensors if t.name == name)
    of_expert = tensor.n_bytes // tensor.dims[2]
    block = of_expert // 2 // tensor.type.block_bytes * tensor.type.block_bytes
    with model.open("r+b") as file:
        file.seek(tensor.offset + expert * of_expert + block + byte)
        value = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([value ^ 1 << bit]))


@pytest.fixture(scope="module")
def sound(program: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model and the prefix of a dump that holds."""
    folder = tmp_path_factory.mktemp("sound")
    write_synthetic(folder / "model.gguf", GEOMETRIES["small"], arch="deepseek2", weights="Q8_0")
    dump(program, folder / "model.gguf", folder / "d", LAYER)
    return folder / "model.gguf", folder / "d"


def swapped(rows: Any) -> None:
    rows[3, :2] = rows[3, 1::-1].copy()


def another_expert(rows: Any) -> None:
    rows[3, 3] = next(e for e in range(32) if e not in rows[3])


def twice(rows: Any) -> None:
    rows[3, 1] = rows[3, 0]


def one_place_up(rows: Any) -> None:
    rows[3, 1] = np.nextafter(rows[3, 1], np.float32(2))


def a_thousandth_more(rows: Any) -> None:
    rows[3, 1] *= np.float32(1.001)


def a_thousandth_more_of_all(rows: Any) -> None:
    rows[3] *= np.float32(1.001)


def negated(rows: Any) -> None:
    rows[3] *= -1


@pytest.mark.parametrize(
    "case",
    [
        ("ids", swapped, {"ids", "ids from input", "weights"}),
        ("ids", another_expert, {"ids", "ids from input", "weights", "weights from input"}),
        ("ids", twice, {"ids", "ids from input"}),
        ("weights", one_place_up, {"weights"}),
        ("weights", a_thousandth_more, {"weights", "weights from input"}),
        ("probs", a_thousandth_more_of_all, {"probabilities"}),
        ("logits", a_thousandth_more, {"logits", "probabilities"}),
        ("router_input", negated, {"router input", "logits", "ids from input"}),
        ("output", negated, {"output", "output, rounded as ggml"}),
    ],
)
def test_a_wrong_number_in_a_dump_is_found(
    case: tuple[str, Callable[[Any], None], set[str]],
    sound: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, change, expected = case
    model, prefix = sound
    for path in prefix.parent.glob("d.*"):
        shutil.copy(path, tmp_path)
    meta = json.loads((tmp_path / f"d.meta.{LAYER}").read_text())
    path = tmp_path / f"d.{name}.{LAYER}"
    form = meta["columns"][name]
    rows = np.fromfile(path, dtype={"f32": "<f4", "i32": "<i4"}[form["type"]])
    rows = rows.reshape(-1, form["width"])
    change(rows)
    rows.tofile(path)
    code, report = verify(capsys, model, tmp_path / "d")
    assert code == 1
    assert expected <= failed(report)
    assert failed(report) - expected <= {"output", "output, rounded as ggml", "ids", "weights"} | (
        {"weights from input"} if "ids" in expected or name == "router_input" else set()
    )


def test_the_verb_runs_the_engine_itself(
    sound: tuple[Path, Path], program: Path, tmp_path: Path
) -> None:
    model, _ = sound
    command = [sys.executable, "-m", "harness", "verify", "layer", str(model), "--layer", "1"]
    command += ["--engine", str(program), "--threads", "1", "--tokens", "2"]

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *more], capture_output=True, text=True, check=False)

    kept = str(tmp_path / "kept")
    done = run("--cache-mb", "64", "--overlap", "--keep", kept, "--", "--evict", "lru")
    if "unknown flag '--evict'" in done.stderr:
        done = run("--cache-mb", "64", "--overlap", "--keep", kept)
    assert done.returncode == 0, done.stderr
    assert "deepseek2, experts in Q8_0, top 4 of 32" in done.stdout.splitlines()[0]
    assert all(line.startswith("ok ") for line in done.stdout.splitlines()[1:])
    assert Path(f"{kept}.meta.1").stat().st_size > 0

    for more, code, words in [
        (["--", "--no-such-flag"], 2, "the engine: unknown flag '--no-such-flag'"),
        (["--keep", "/absent/folder/d"], 1, "the engine: cannot open dump's meta file"),
        (["--engine", "/absent"], 2, "--engine: /absent does not exist"),
    ]:
        done = run(*more)
        assert (done.returncode, done.stdout) == (code, "")
        assert words in done.stderr
        assert done.stderr.count("\n") == 1


def test_what_cannot_be_verified_is_refused(
    sound: tuple[Path, Path], program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, prefix = sound
    other = tmp_path / "other.gguf"
    write_synthetic(other, GEOMETRIES["tiny"], arch="laguna")
    dump(
        *(program, other, tmp_path / "dropped", LAYER, "--moe-stream", "--cache-mb", "4"),
        *("--drop-cold-experts", "1"),
    )
    for arguments, words in [
        ([str(other), "--layer", "0"], "layer 0 has no routed experts"),
        ([str(other), "--layer", "9"], "layer 9: other.gguf has layers 0 to 3"),
        ([str(other), "--layer", "2", "--dump", str(prefix)], "the dump is of another model"),
        ([str(other), "--layer", "2", "--dump", str(tmp_path / "dropped")], "dropped routes"),
        ([str(model), "--layer", "1", "--dump", str(prefix)], "cannot be read"),
        ([str(tmp_path / "absent.gguf"), "--layer", "1"], "no such file"),
    ]:
        capsys.readouterr()
        assert main(["layer", *arguments]) == 2
        said = capsys.readouterr()
        assert (said.out, said.err.count("\n")) == ("", 1)
        assert words in said.err


@pytest.mark.parametrize("arch", ["gpt-oss", "gemma4"])
def test_shards_and_another_top_k_hold(
    arch: str, program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = tmp_path / "parts-00001-of-00003.gguf"
    write_synthetic(first, GEOMETRIES["small"], arch=arch, shards=3)
    holds(program, first, tmp_path, LAYER, capsys)
    for used in (1, 9):
        flags = ("--expert-used", str(used), "--moe-stream", "--overlap")
        dump(program, first, tmp_path / "other", LAYER, *flags)
        code, report = verify(capsys, first, tmp_path / "other")
        assert (code, failed(report), report["top_k"]) == (0, set(), used)
