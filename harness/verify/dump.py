"""Reads what `moe-engine --moe-dump` has written of one layer. Touches those files only."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import UsageError
from harness.verify.numbers import F32, I32

F32_NAMES = ("input", "router_input", "logits", "probs", "weights", "output")


@dataclass(frozen=True)
class Dump:
    """Rows of one layer, a row per token that it was computed for."""

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
    try:
        positions = tuple(
            call["first_position"] + i for call in meta["calls"] for i in range(call["rows"])
        )
        columns = {
            name: _rows(_path(prefix, name, layer), form["type"], form["width"], len(positions))
            for name, form in meta["columns"].items()
        }
        facts = (meta["arch"], meta["layer"], meta["n_expert"], meta["top_k"])
        floats = {name: columns[name] for name in F32_NAMES}
        dump = Dump(*facts, meta["routing_edited"], positions, ids=columns["ids"], **floats)
    except (KeyError, TypeError) as e:
        raise UsageError(
            f"{_path(prefix, 'meta', layer)}: not the meta file of a dump ({e})"
        ) from e
    _check(dump, prefix)
    return dump


def _path(prefix: str, name: str, layer: int) -> Path:
    return Path(f"{prefix}.{name}.{layer}")


def _meta(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as e:
        raise UsageError(f"{path}: cannot be read ({e.strerror}); --dump takes a prefix") from e
    if not text:
        raise UsageError(
            f"{path}: empty, so the run that wrote this dump did not end; run it again"
        )
    try:
        meta = json.loads(text)
    except ValueError as e:
        raise UsageError(f"{path}: not JSON ({e})") from e
    if not isinstance(meta, dict) or meta.get("type") != "moe_dump" or meta.get("version") != 1:
        raise UsageError(f"{path}: not the meta file of a version 1 dump")
    return meta


def _rows(path: Path, kind: str, width: int, n_rows: int) -> Any:
    try:
        values = np.fromfile(path, dtype={"f32": "<f4", "i32": "<i4"}[kind])
    except OSError as e:
        raise UsageError(f"{path}: cannot be read ({e.strerror})") from e
    if values.size != n_rows * width or path.stat().st_size != 4 * values.size:
        raise UsageError(
            f"{path}: {path.stat().st_size} bytes, not {n_rows} rows of {width} numbers"
        )
    return values.reshape(n_rows, width)


def _check(dump: Dump, prefix: str) -> None:
    n, k = dump.n_expert, dump.top_k
    widths = [(dump.logits, n), (dump.probs, n), (dump.ids, k), (dump.weights, k)]
    if any(values.shape[1] != width for values, width in widths):
        raise UsageError(f"{prefix}: widths that do not belong to top {k} of {n} experts")
    if not dump.positions:
        raise UsageError(f"{prefix}: no rows; the layer was computed for no token")
    for name in F32_NAMES:
        if not np.isfinite(getattr(dump, name)).all():
            raise UsageError(f"{prefix}: {name} has numbers that are not finite")
    if dump.ids.min() < 0 or dump.ids.max() >= n:
        raise UsageError(f"{prefix}: ids outside of 0 to {n - 1}")
