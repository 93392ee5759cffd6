"""A composed configuration to a typed one, once its settings can act together. Touches nothing.

`check_config` turns a plain mapping into the dataclasses of `schema`, or raises UsageError with one
line: the key, what is wrong with it, what to do. Unknown keys, wrong types and numbers out of range
are refused by what `schema` says of single keys; settings that cannot act together here. What of
that is about a part with a module of its own (`build_config`, `target_config`, ...) stands there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from harness.build_config import check_build
from harness.engine_flags import acts, conflict, excluding, off
from harness.errors import UsageError
from harness.memory_config import LADDER, check_memory, check_moved
from harness.nightly_config import check_no_night
from harness.schema import (
    BLOCK_DESIGNS,
    COMPARING,
    SENTINEL,
    CellConfig,
    Config,
    DesignConfig,
    candidates_of,
)
from harness.session_config import check_session
from harness.target_config import check_target
from harness.tracking_config import check_tracking, survives_in_address
from harness.typed import MISSING, from_mapping, nearest, say
from harness.words import counted

# a cell's name, and the experiment's, become directory and MLflow run names
CELL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NAME_RULE = "1 to 64 letters, digits, '.', '_' or '-', beginning with a letter or digit"
_SENTINELS = re.compile(rf"{SENTINEL}(_\d+)?")
# of a chunk of two tokens none is scored
MIN_SCORED_CTX = 3
# so long must a cell's trace be to tell a step of the device in it
MIN_TOKENS_OF_PAIRS = 64
# what acts only while single tokens are decoded
_OF_DECODING = ("prefetch", "predict_prefetch", "predict_log", "forced_routes")


def check_config(data: Mapping[str, Any]) -> Config:
    """Check a composed configuration and return it typed; UsageError names the first fault."""
    check_moved(data)
    config = from_mapping(Config, merge_cells(data))
    check_no_night(config.nightly)
    for key in ("name", "runs_dir"):
        if not getattr(config, key).strip():
            raise UsageError(f"{key}: empty; add {key}=VALUE")
    check_target(config.target)
    check_tracking(config.tracking)
    own_store = config.tracking.enabled and config.tracking.uri is None
    if own_store and not survives_in_address(config.runs_dir):
        raise UsageError(
            f"runs_dir: {config.runs_dir}: MLflow's store cannot lie below a '?' or a '%41'; use "
            "another one, or tracking=off"
        )
    if not CELL_NAME.fullmatch(config.name):
        raise UsageError(f"name: found {config.name!r}; needs {_NAME_RULE}")
    for key, value in config.model.items():
        if value == MISSING:
            raise UsageError(f"model.{key}: needs a value; add model.{key}=VALUE")
    _check_engine(config)
    check_memory(
        config.memory,
        config.design.kind,
        {name: getattr(config.design, name) for name in LADDER},
        {name: cell.capped for name, cell in config.cells.items()},
    )
    _check_cells(config)
    _check_design(config)
    check_session(config.session, config.schedule.gate)
    return config


def _check_engine(config: Config) -> None:
    """Refuse what says how an engine is come by that no cell would use."""
    engine = config.engine
    all_own = bool(config.cells) and all(c.binary is not None for c in config.cells.values())
    for key in ("binary", "llama_cpp_dir"):
        value = getattr(engine, key)
        if all_own and value is not None:
            raise UsageError(
                f"engine.{key}: {value} cannot act, as every cell has a binary of its own; "
                "set it to null"
            )
    engine_given = all_own or engine.binary is not None
    check_build(config.build, all_given=engine_given and engine.launcher is not None)


def merge_cells(data: Mapping[str, Any]) -> dict[str, Any]:
    """A copy in which each of `cells` is the shared `cell` with the cell's own settings on top."""
    merged = dict(data)
    shared, cells = data.get("cell"), data.get("cells")
    if isinstance(shared, Mapping) and isinstance(cells, Mapping):
        for name, own in cells.items():
            if not isinstance(own, Mapping | None):
                raise UsageError(
                    f"cells.{name}: found {say(own)}; needs settings like those of `cell`, "
                    "or the name of a file in conf/cell"
                )
        merged["cells"] = {name: _overlay(shared, own or {}) for name, own in cells.items()}
    return merged


def _overlay(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        result[key] = (
            _overlay(old, value)
            if isinstance(old, Mapping) and isinstance(value, Mapping)
            else value
        )
    return result


def _check_cells(config: Config) -> None:
    if not config.cells:
        raise UsageError("cells: empty; give at least a baseline and a candidate, cells.NAME=...")
    for name, cell in config.cells.items():
        key = f"cells.{name}"
        if not CELL_NAME.fullmatch(name):
            raise UsageError(f"{key}: a cell's name needs {_NAME_RULE}")
        if _SENTINELS.fullmatch(name):
            raise UsageError(f"{key}: the design adds the cell {name!r}; choose another name")
        if not cell.prompt:
            raise UsageError(f"{key}.prompt: empty; the engine needs a prompt")
        if not _encodable(cell.prompt):
            raise UsageError(f"{key}.prompt: is not valid UTF-8; the engine needs valid text")
        if cell.binary is not None and not cell.binary.strip():
            raise UsageError(f"{key}.binary: empty; give a moe-engine, or null for the campaign's")
        if cell.text is not None and not cell.text.strip():
            raise UsageError(
                f"{key}.text: empty; give a text file, heldout, or null for greedy decoding"
            )
        if cell.perplexity is not None:
            _check_perplexity(key, cell.perplexity, cell, config.design.kind)
        elif cell.perplexity_chunks is not None:
            raise UsageError(
                f"{key}.perplexity_chunks: {cell.perplexity_chunks} cannot act without perplexity; "
                "set it to null, or perplexity to a text"
            )
        elif cell.n_predict >= cell.n_ctx:
            raise UsageError(
                f"{key}.n_predict: {counted(cell.n_predict, 'token')} and a prompt do not fit in "
                f"n_ctx={cell.n_ctx}; raise cell.n_ctx or lower cell.n_predict"
            )
        if cell.seed != 0:
            raise UsageError(
                f"{key}.seed: {cell.seed} cannot act, the engine decodes greedily; use cell.seed=0"
            )
        _check_flags(key, cell, config.design.kind == "levels")


def _check_perplexity(key: str, scored: str, cell: CellConfig, design: str) -> None:
    """A cell that scores a text decodes nothing, and so has no speed to compare."""
    if not scored.strip():
        raise UsageError(f"{key}.perplexity: empty; give a text file, heldout, or null")
    if cell.text is not None:
        raise UsageError(
            f"{key}.perplexity: {say(scored)} and text={say(cell.text)} exclude each other: "
            "a text is scored or decoded; set one of them to null"
        )
    if design in COMPARING:
        raise UsageError(
            f"{key}.perplexity: {say(scored)} where speeds are compared; "
            "set it to null, or use design=survey"
        )
    if cell.n_ctx < MIN_SCORED_CTX:
        raise UsageError(
            f"{key}.n_ctx: {cell.n_ctx} is too short to score a text; use {MIN_SCORED_CTX} or more"
        )
    settings = vars(cell.engine)
    for name in _OF_DECODING:
        if acts(settings, name):
            raise UsageError(
                f"{key}.engine.{name}: {say(settings[name])} cannot act where a text is scored: "
                f"nothing is decoded; set it to {off(name, settings[name])}"
            )
    if cell.engine.drop_cold_experts is not None and not cell.engine.drop_in_prefill:
        raise UsageError(
            f"{key}.engine.drop_cold_experts: {say(cell.engine.drop_cold_experts)} cannot act "
            "where a text is scored, as a prompt is; set drop_in_prefill to true"
        )


def _encodable(text: str) -> bool:
    """False for bytes of the command line that Python could only keep as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_flags(key: str, cell: CellConfig, levels: bool) -> None:
    flags = cell.engine
    settings = dict(vars(flags))
    sizes = ("cache_mb", "cache_fraction", "ram_budget_mb")
    if levels and cell.capped and flags.moe_stream:
        own = "ram_budget_mb" if flags.ram_budget_mb is not None else None
        if name := own or excluding(settings, "ram_budget_mb"):
            raise UsageError(
                f"{key}.engine.{name}: {say(settings[name])} where each level is the engine's "
                f"ram_budget_mb; set it to {off(name, settings[name])}, or {key}.capped to false"
            )
        settings["ram_budget_mb"] = 1  # whichever: what can act with it is the same
    if flags.moe_stream and all(settings[name] is None for name in sizes):
        raise UsageError(
            f"{key}.engine: moe_stream needs a cache size; set one of {key}.engine.cache_mb (MiB), "
            f"{key}.engine.cache_fraction (0 to 1) and {key}.engine.ram_budget_mb (MiB)"
        )
    found = conflict(settings)
    if found is not None:
        raise UsageError(f"{key}.engine.{found.name}: {found.words}")


def _check_design(config: Config) -> None:
    design, cells = config.design, config.cells
    compares = design.kind in COMPARING
    if not compares and design.baseline is not None:
        raise UsageError(f"design.baseline: a {design.kind} compares nothing; set it to null")
    if compares and design.baseline is None:
        raise UsageError("design.baseline: null; name the cell that the others are compared with")
    if design.baseline is not None and design.baseline not in cells:
        raise UsageError(
            f"design.baseline: no cell is called {design.baseline!r}"
            f"{nearest(design.baseline, cells)}"
        )
    _check_blocks(design, cells)
    candidates = candidates_of(config)
    if not candidates:
        raise UsageError("design.candidates: none; give at least one cell besides the baseline")
    for i, name in enumerate(candidates):
        if name not in cells:
            raise UsageError(f"design.candidates: no cell is called {name!r}{nearest(name, cells)}")
        if name == design.baseline:
            raise UsageError(f"design.candidates: {name!r} is the baseline already")
        if name in candidates[:i]:
            raise UsageError(f"design.candidates: {name!r} stands there twice")
    for name in cells:
        if name != design.baseline and name not in candidates:
            raise UsageError(
                f"cells.{name}: has no place in the design; add it to design.candidates "
                f"or remove it (~cells.{name})"
            )
    if design.baseline is not None:
        _check_same_text(cells, design.baseline)


def _check_blocks(design: DesignConfig, cells: Mapping[str, CellConfig]) -> None:
    in_blocks = design.kind in BLOCK_DESIGNS
    for key in ("pairs", "seed", "stop_when_decided"):
        if not in_blocks and getattr(design, key) is not None:
            raise UsageError(
                f"design.{key}: a {design.kind} has no pairs; use design=pairs or design=abba"
            )
    if in_blocks and design.stop_when_decided is None:
        raise UsageError("design.stop_when_decided: null; use true or false")
    for name, cell in cells.items() if in_blocks else ():
        if cell.n_predict < MIN_TOKENS_OF_PAIRS:
            raise UsageError(
                f"cells.{name}.n_predict: {cell.n_predict} is too short for a verdict of "
                f"{design.kind}; use {MIN_TOKENS_OF_PAIRS} or more"
            )


def _check_same_text(cells: Mapping[str, CellConfig], baseline: str) -> None:
    """Cells whose speeds are compared do the same work."""
    asked = cells[baseline].text
    for name, cell in cells.items():
        if cell.text != asked:
            raise UsageError(
                f"cells.{name}.text: {say(cell.text)} where the baseline {baseline} has "
                f"{say(asked)}; all cells of a campaign need the same text: use cell.text=..."
            )
