"""Inflated models: every expert wider by a factor, every output bit for bit the same.

The added rows of gate and up are zero, so the added hidden units are zero; the added columns of
down are zero too, and adding zeros to a sum changes no bit of it. What grows is what the harness
measures: the bytes of an expert. Down's columns are whole quantisation blocks, so the stored bytes
of the original are copied as they are and nothing is quantised again. Metadata is copied byte for
byte but for the expert width. Needs numpy.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from harness.cachedir import guarded
from harness.errors import UsageError
from harness.models.ggml_types import ZERO_BYTES_ARE_ZERO
from harness.models.gguf_header import UINT32, GgufHeader, Tensor, refuse
from harness.models.gguf_info import EXPERT_TENSOR, info_of, read_model
from harness.models.gguf_write import TensorPlan, reading, write_gguf

# raised when the bytes for a factor change
RECIPE = 1
MAX_FACTOR = 4096
PIECE_BYTES = 4 * 2**20
# biases of the hidden units, one row per expert; padded like the rows they belong to
HIDDEN_BIAS = ("ffn_gate_exps.bias", "ffn_up_exps.bias")
SHARED_EXPERT = re.compile(r"blk\.\d+\.ffn_(gate|up|down)_shexp\.weight")


def check_factor(factor: object) -> int:
    """A whole number from 2 up. UsageError otherwise."""
    if type(factor) is not int or not 2 <= factor <= MAX_FACTOR:
        raise UsageError(f"model.factor: {factor} is no whole number from 2 to {MAX_FACTOR}")
    return factor


def inflate(
    source: Path, target: Path, factor: int, tick: Callable[[int, int], None] | None = None
) -> str:
    """Write `source` with experts `factor` times as wide; returns the SHA-256 of `target`.

    Shards become one file. `tick` receives bytes written and bytes in all. UsageError when the
    model cannot be widened exactly, or there is no room for it.
    """
    check_factor(factor)
    headers = read_model(source)
    info = info_of(headers)
    first = headers[0]
    width_key = f"{info.arch}.expert_feed_forward_length"
    width = first.fields.get(width_key)
    if width is None or width.type != UINT32 or type(width.value) is not int:
        refuse(source, f"cannot be inflated: it has no single {width_key}")
    fields = _fields(first, width_key, width.value * factor)
    # where the shared expert has no width of its own, it is so many times as wide as the others
    shared = (
        f"{info.arch}.expert_shared_count" in first.fields
        and f"{info.arch}.expert_shared_feed_forward_length" not in first.fields
    )
    plans = [
        _plan(header, tensor, width.value, factor, shared)
        for header in headers
        for tensor in header.tensors
    ]
    return write_gguf(target, fields, plans, alignment=first.alignment, tick=tick)


def _fields(header: GgufHeader, width_key: str, width: int) -> list[bytes]:
    """The metadata as it is stored, the width replaced; a merged file has no shards."""
    found = []
    with (
        guarded("reading the model", header.path),
        reading(header.path) as read,
    ):
        for field in header.fields.values():
            if field.key.startswith("split."):
                continue
            raw = read(field.start, field.end - field.start)
            if field.key == width_key:
                raw = raw[: field.value_start - field.start] + struct.pack("<I", width)
            found.append(raw)
    return found


def _plan(header: GgufHeader, tensor: Tensor, width: int, factor: int, shared: bool) -> TensorPlan:
    """How one tensor is written: as it is, with zero rows added, or with zero columns added.

    `shared`: the shared expert grows with the routed ones.
    """
    match = EXPERT_TENSOR.fullmatch(tensor.name)
    if match is None:
        if shared and (found := SHARED_EXPERT.fullmatch(tensor.name)) is not None:
            axis = 0 if found[1] == "down" else 1
            return _padded(header, tensor, axis, tensor.dims[axis], factor)
        if tensor.name.partition(".")[2].partition(".")[2] in HIDDEN_BIAS:
            return _padded(header, tensor, 0, width, factor)
        if "exps.weight" in tensor.name:
            refuse(header.path, f"cannot be inflated: {tensor.name} is of an unknown kind")
        return TensorPlan(tensor.name, tensor.dims, tensor.type, lambda: _copy(header, tensor))
    if match[3] is not None:
        refuse(header.path, f"cannot be inflated: {tensor.name} is no plain expert tensor")
    return _padded(header, tensor, 0 if match[2] == "down" else 1, width, factor)


def _padded(header: GgufHeader, tensor: Tensor, axis: int, width: int, factor: int) -> TensorPlan:
    """Grow `axis` by `factor`, keeping runs of `width` together (gate and up fused: two runs)."""
    if tensor.type.name not in ZERO_BYTES_ARE_ZERO:
        refuse(header.path, f"cannot be inflated: zeros in {tensor.type.name} are not known")
    dims = list(tensor.dims)
    if dims[axis] % width:
        refuse(
            header.path,
            f"cannot be inflated: {tensor.name} has {dims[axis]}, no multiple of the width {width}",
        )
    if axis == 0 and (dims[0] != width or width % tensor.type.block):
        refuse(
            header.path,
            f"cannot be inflated: rows of {tensor.name} ({dims[0]}) are no whole blocks of "
            f"{tensor.type.block}",
        )
    run = tensor.type.row_bytes(dims[0]) * (width if axis == 1 else 1)
    dims[axis] *= factor
    return TensorPlan(
        tensor.name, tuple(dims), tensor.type, lambda: _stretch(header, tensor, run, factor)
    )


def _copy(header: GgufHeader, tensor: Tensor) -> Iterator[bytes]:
    with reading(header.path) as read:
        for start in range(0, tensor.n_bytes, PIECE_BYTES):
            yield read(tensor.offset + start, min(PIECE_BYTES, tensor.n_bytes - start))


def _stretch(header: GgufHeader, tensor: Tensor, run: int, factor: int) -> Iterator[memoryview]:
    """Each `run` bytes of the tensor followed by (factor - 1) times as many zeros."""
    import numpy as np

    runs = tensor.n_bytes // run
    step = max(1, PIECE_BYTES // (run * factor))
    with reading(header.path) as read:
        for start in range(0, runs, step):
            n = min(step, runs - start)
            out = np.zeros((n, factor, run), dtype=np.uint8)
            raw = read(tensor.offset + start * run, n * run)
            out[:, 0, :] = np.frombuffer(raw, dtype=np.uint8).reshape(n, run)
            yield out.reshape(-1).data
