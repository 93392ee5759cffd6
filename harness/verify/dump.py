"""Reads what `moe-engine --moe-dump` has written of one layer. Touches those files only."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from harness.errors import UsageError
from harness.jsonable import from_json
from harness.verify.numbers import F32, I32
from harness.words import counted

F32_NAMES = ("input", "router_input", "logits", "probs", "weights", "output")
_MOST = 2**31 - 1  # all that the engine counts here is below that


@dataclass(frozen=True)
class _Form:
    """Of the numbers in a row."""

    type: Literal["f32", "i32"]
    width: int


@dataclass(frozen=True)
class _Columns:
    """One file each."""

    input: _Form
    router_input: _Form
    logits: _Form
    probs: _Form
    ids: _Form
    weights: _Form
    output: _Form


@dataclass(frozen=True)
class _Call:
    """Rows of one decode, of tokens that follow each other."""

    first_position: int
    rows: int


@dataclass(frozen=True)
class _Meta:
    """The meta file: all of it that is needed here."""

    model: str
    arch: str
    layer: int
    n_expert: int
    top_k: int
    routing_edited: bool
    columns: _Columns
    calls: tuple[_Call, ...]


@dataclass(frozen=True)
class Dump:
    """Rows of one layer, a row per token that it was computed for."""

    model: str  # the file as the engine was given it
    arch: str
    layer: int
    n_expert: int
    top_k: int
    routing_edited: bool
    positions: tuple[int, ...]  # of each row's token in the sequence
    input: F32
    router_input: F32
    logits: F32
    probs: F32
    ids: I32
    weights: F32
    output: F32


def read_dump(prefix: str, layer: int) -> Dump:
    """The dump `PREFIX.*.LAYER`. UsageError, one line, when it is not whole or not consistent."""
    meta = _meta(_path(prefix, "meta", layer))
    n_rows = sum(call.rows for call in meta.calls)
    # the files first: what they hold bounds the number of rows
    columns = {
        name: _rows(_path(prefix, name, layer), form, n_rows)
        for name, form in vars(meta.columns).items()
    }
    positions = tuple(call.first_position + i for call in meta.calls for i in range(call.rows))
    facts = (meta.model, meta.arch, meta.layer, meta.n_expert, meta.top_k, meta.routing_edited)
    dump = Dump(*facts, positions, **columns)
    _check(dump, prefix)
    return dump


def _path(prefix: str, name: str, layer: int) -> Path:
    return Path(f"{prefix}.{name}.{layer}")


def _meta(path: Path) -> _Meta:
    try:
        content = path.read_bytes()
    except OSError as e:
        raise UsageError(f"{path}: cannot be read ({e.strerror}); --dump takes a prefix") from e
    if not content:
        raise UsageError(
            f"{path}: empty, so the run that wrote this dump did not end; run it again"
        )
    try:
        data = json.loads(content.decode())
    except (ValueError, RecursionError) as e:
        raise UsageError(f"{path}: not JSON ({e})") from e
    if not isinstance(data, dict) or data.get("type") != "moe_dump" or data.get("version") != 1:
        raise UsageError(f"{path}: not the meta file of a version 1 dump")
    try:
        meta = from_json(_Meta, data, "meta")
    except ValueError as e:
        raise UsageError(f"{path}: not the meta file of a dump ({str(e)[:200]})") from e
    if wrong := _wrong(meta):
        raise UsageError(f"{path}: not the meta file of a dump ({wrong})")
    return meta


def _wrong(meta: _Meta) -> str | None:
    """The first value that no dump has, though it is of the right type."""
    for name in ("model", "arch"):
        if not getattr(meta, name):
            return f"meta.{name} is empty"
    for name in ("layer", "n_expert", "top_k"):
        if not 0 <= getattr(meta, name) <= _MOST:
            return f"meta.{name} is out of range"
    for name, form in vars(meta.columns).items():
        kind = "i32" if name == "ids" else "f32"
        if form.type != kind:
            return f"meta.columns.{name}.type: {form.type}, not {kind}"
        if not 1 <= form.width <= _MOST:
            return f"meta.columns.{name}.width is out of range"
    numbers = [n for call in meta.calls for n in (call.first_position, call.rows)]
    if not all(0 <= n <= _MOST for n in numbers):
        return "a number in meta.calls is out of range"
    return None


def _rows(path: Path, form: _Form, n_rows: int) -> Any:
    try:
        n_bytes = path.stat().st_size
        if n_bytes != n_rows * form.width * 4:
            raise UsageError(
                f"{path}: {counted(n_bytes, 'byte')}, not {counted(n_rows, 'row')} of "
                f"{counted(form.width, 'number')}"
            )
        values = np.fromfile(path, dtype={"f32": "<f4", "i32": "<i4"}[form.type])
    except OSError as e:
        raise UsageError(f"{path}: cannot be read ({e.strerror})") from e
    return values.reshape(n_rows, form.width)


def _check(dump: Dump, prefix: str) -> None:
    n, k = dump.n_expert, dump.top_k
    widths = [(dump.logits, n), (dump.probs, n), (dump.ids, k), (dump.weights, k)]
    if any(values.shape[1] != width for values, width in widths):
        raise UsageError(f"{prefix}: widths that do not belong to top {k} of {n} experts")
    if len({v.shape[1] for v in (dump.input, dump.router_input, dump.output)}) > 1:
        raise UsageError(f"{prefix}: input, router_input and output differ in width")
    if not dump.positions:
        raise UsageError(f"{prefix}: no rows; the layer was computed for no token")
    for name in F32_NAMES:
        if not np.isfinite(getattr(dump, name)).all():
            raise UsageError(f"{prefix}: {name} has numbers that are not finite")
    if dump.ids.min() < 0 or dump.ids.max() >= n:
        raise UsageError(f"{prefix}: ids outside of 0 to {n - 1}")
