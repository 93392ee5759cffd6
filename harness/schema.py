"""Typed configuration: what every key may hold. Touches nothing; knows neither Hydra nor YAML.

`from_mapping(Config, data)` turns a plain mapping into the dataclasses below, or raises UsageError
with one line: the key, what is wrong with it, what to do. Unknown keys, wrong types and numbers out
of range are refused before anything runs. What a key *means* is said where it is defined, in
`conf/`; here is what it may be.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from harness.errors import UsageError

T = TypeVar("T")

# a cell's name, and the experiment's, become directory and MLflow run names
CELL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NAME_RULE = "1 to 64 letters, digits, '.', '_' or '-', beginning with a letter or digit"
# written in a configuration where the user must give the value
MISSING = "???"
# planned by the design itself, so no cell of the user's may be called so
SENTINEL = "sentinel"


def ranged(
    low: float | None = None, high: float | None = None, above: float | None = None
) -> dict[str, float | None]:
    """Field metadata: the value must lie in [low, high], or be more than `above`."""
    return {"low": low, "high": high, "above": above}


@dataclass(frozen=True)
class EngineFlags:
    """`cell.engine`: the engine's flags as asked for; None leaves a flag out."""

    threads: int | None = field(metadata=ranged(1, 1024))
    moe_stream: bool
    cache_mb: int | None = field(metadata=ranged(0))
    cache_fraction: float | None = field(metadata=ranged(0, 1))
    io_threads: int | None = field(metadata=ranged(1, 16))
    direct_io: bool | None
    dense_weights: Literal["mmap", "anon"] | None
    expert_used: int | None = field(metadata=ranged(1))
    repack: bool
    no_eog: bool


@dataclass(frozen=True)
class CellConfig:
    """`cell`, and each of `cells` once it is merged over `cell`."""

    prompt: str
    n_predict: int = field(metadata=ranged(1))
    n_ctx: int = field(metadata=ranged(1))
    n_batch: int = field(metadata=ranged(1))
    seed: int = field(metadata=ranged(0))
    time_limit_s: float = field(metadata=ranged(above=0, high=30 * 86400))
    engine: EngineFlags


@dataclass(frozen=True)
class MemoryConfig:
    limit_mb: int | None = field(metadata=ranged(1, 2**30))


@dataclass(frozen=True)
class EngineConfig:
    """Where the engine comes from."""

    binary: str | None
    launcher: str | None
    llama_cpp_dir: str | None
    cache_dir: str | None


@dataclass(frozen=True)
class TargetConfig:
    kind: Literal["local"]
    name: str


@dataclass(frozen=True)
class ScheduleConfig:
    spacing_s: float = field(metadata=ranged(0))
    probe_s: float = field(metadata=ranged(0, 60))
    drop_page_cache: bool


@dataclass(frozen=True)
class DesignConfig:
    kind: Literal["four_cell"]
    baseline: str
    candidates: tuple[str, ...] | None


@dataclass(frozen=True)
class VerdictConfig:
    stable_pct: float = field(metadata=ranged(above=0, high=100))
    temp_tolerance_c: float = field(metadata=ranged(0))
    probe_tolerance_pct: float = field(metadata=ranged(0, 100))
    read_probe_tolerance_pct: float = field(metadata=ranged(0, 100))


@dataclass(frozen=True)
class TrackingConfig:
    enabled: bool
    uri: str | None


@dataclass(frozen=True)
class Config:
    """The whole configuration of one campaign."""

    name: str
    runs_dir: str
    resume: str | None
    plan_only: bool
    cell: CellConfig
    cells: dict[str, CellConfig]
    memory: MemoryConfig
    engine: EngineConfig
    model: dict[str, Any]  # checked by the room that knows models
    target: TargetConfig
    schedule: ScheduleConfig
    design: DesignConfig
    verdict: VerdictConfig
    tracking: TrackingConfig


# --- checking ------------------------------------------------------------------------------------


def check_config(data: Mapping[str, Any]) -> Config:
    """Check a composed configuration and return it typed; UsageError names the first fault."""
    config = from_mapping(Config, merge_cells(data))
    for key in ("name", "runs_dir", "target.name"):
        value = getattr(config.target if "." in key else config, key.rpartition(".")[2])
        if not value.strip():
            raise UsageError(f"{key}: empty; add {key}=VALUE")
    if config.tracking.uri == "":
        raise UsageError("tracking.uri: empty; use null for the store in runs_dir, or an address")
    if config.tracking.enabled and config.tracking.uri is None and "?" in config.runs_dir:
        # SQLAlchemy would take the rest for options
        raise UsageError(f"runs_dir: {config.runs_dir}: MLflow's store cannot lie below a '?'")
    if not CELL_NAME.fullmatch(config.name):
        raise UsageError(f"name: found {config.name!r}; needs {_NAME_RULE}")
    for key, value in config.model.items():
        if value == MISSING:
            raise UsageError(f"model.{key}: needs a value; add model.{key}=VALUE")
    _check_cells(config)
    _check_design(config)
    return config


def merge_cells(data: Mapping[str, Any]) -> dict[str, Any]:
    """A copy in which each of `cells` is the shared `cell` with the cell's own settings on top."""
    merged = dict(data)
    shared, cells = data.get("cell"), data.get("cells")
    if isinstance(shared, Mapping) and isinstance(cells, Mapping):
        for name, own in cells.items():
            if not isinstance(own, Mapping | None):
                raise UsageError(
                    f"cells.{name}: found {_say(own)}; needs settings like those of `cell`, "
                    "or the name of a file in conf/cell"
                )
        merged["cells"] = {name: _overlay(shared, own or {}) for name, own in cells.items()}
    return merged


def _overlay(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[key] = _overlay(old, value) if both else value  # type: ignore[arg-type]
    return result


def _check_cells(config: Config) -> None:
    if not config.cells:
        raise UsageError("cells: empty; give at least a baseline and a candidate, cells.NAME=...")
    for name, cell in config.cells.items():
        key = f"cells.{name}"
        if not CELL_NAME.fullmatch(name):
            raise UsageError(f"{key}: a cell's name needs {_NAME_RULE}")
        if name == SENTINEL:
            raise UsageError(f"{key}: the design adds the cell {SENTINEL!r}; choose another name")
        if not cell.prompt:
            raise UsageError(f"{key}.prompt: empty; the engine needs a prompt")
        if not _encodable(cell.prompt):
            raise UsageError(f"{key}.prompt: is not valid UTF-8; the engine needs valid text")
        if cell.n_predict >= cell.n_ctx:
            raise UsageError(
                f"{key}.n_predict: {cell.n_predict} tokens and a prompt do not fit in n_ctx="
                f"{cell.n_ctx}; raise cell.n_ctx or lower cell.n_predict"
            )
        if cell.seed != 0:
            raise UsageError(
                f"{key}.seed: {cell.seed} cannot act, the engine decodes greedily; use cell.seed=0"
            )
        _check_flags(key, cell.engine)


def _encodable(text: str) -> bool:
    """False for bytes of the command line that Python could only keep as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_flags(key: str, flags: EngineFlags) -> None:
    if flags.moe_stream:
        given = [k for k in ("cache_mb", "cache_fraction") if getattr(flags, k) is not None]
        if not given:
            raise UsageError(
                f"{key}.engine: moe_stream needs a cache size; set one of "
                f"{key}.engine.cache_mb (MiB) and {key}.engine.cache_fraction (0 to 1)"
            )
        if len(given) == 2:
            raise UsageError(
                f"{key}.engine: cache_mb={flags.cache_mb} and cache_fraction="
                f"{flags.cache_fraction} exclude each other; set one of them to null"
            )
        if flags.repack:
            raise UsageError(
                f"{key}.engine.repack: cannot act with moe_stream; set one of the two to false"
            )
        return
    for name in ("cache_mb", "cache_fraction", "io_threads", "direct_io"):
        if getattr(flags, name) is not None:
            raise UsageError(
                f"{key}.engine.{name}: cannot act without moe_stream; set it to null, "
                f"or {key}.engine.moe_stream=true"
            )
    if flags.dense_weights == "anon":
        raise UsageError(
            f"{key}.engine.dense_weights: anon cannot act without moe_stream; use null or mmap"
        )


def _check_design(config: Config) -> None:
    design, cells = config.design, config.cells
    if design.baseline not in cells:
        raise UsageError(
            f"design.baseline: no cell is called {design.baseline!r}"
            f"{nearest(design.baseline, cells)}"
        )
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


def candidates_of(config: Config) -> tuple[str, ...]:
    """The candidates in order: those named, or every cell but the baseline."""
    named = config.design.candidates
    if named is not None:
        return named
    return tuple(name for name in config.cells if name != config.design.baseline)


def nearest(word: str, known: Iterable[str], label: str = "known") -> str:
    """`; did you mean 'a' or 'b'?`, or `; known: a, b, c` when nothing is near."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=3, cutoff=0.6)
    if close:
        return "; did you mean " + " or ".join(repr(c) for c in close) + "?"
    return f"; {label}: {', '.join(names)}" if names else ""


# --- plain mapping to dataclass ------------------------------------------------------------------


def from_mapping(cls: type[T], data: Any, key: str = "") -> T:
    """Plain mapping to the dataclass `cls`, strictly: every key known, present and of its type."""
    return typing.cast(T, _dataclass(cls, data, key))


def _dataclass(cls: type, data: Any, key: str) -> Any:
    if not isinstance(data, Mapping):
        raise UsageError(f"{key}: found {_say(data)}; needs keys and values")
    fields = {f.name: f for f in dataclasses.fields(cls)}
    dot = f"{key}." if key else ""
    for name in data:
        if name not in fields:
            raise UsageError(f"{dot}{name}: unknown key{nearest(str(name), fields, 'keys here')}")
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for name, f in fields.items():
        if name not in data or data[name] == MISSING:
            raise UsageError(f"{dot}{name}: needs a value; add {dot}{name}=VALUE")
        values[name] = _value(hints[name], data[name], dot + name)
        _in_range(values[name], f.metadata, dot + name)
    return cls(**values)


def _value(hint: Any, data: Any, key: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        (hint,) = [a for a in args if a is not type(None)]
        return None if data is None else _value(hint, data, key)
    if dataclasses.is_dataclass(hint):
        return _dataclass(typing.cast(type, hint), data, key)
    if origin is dict:
        return _mapping(args[1], data, key)
    if origin is tuple:
        if not isinstance(data, list | tuple):
            raise UsageError(f"{key}: found {_say(data)}; needs a list, [a,b]")
        return tuple(_value(args[0], v, f"{key}[{i}]") for i, v in enumerate(data))
    return _scalar(hint, data, key)


def _mapping(inner: Any, data: Any, key: str) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise UsageError(f"{key}: found {_say(data)}; needs keys and values")
    if inner is Any:
        return {str(k): v for k, v in data.items()}
    return {str(k): _value(inner, v, f"{key}.{k}") for k, v in data.items()}


def _scalar(hint: Any, data: Any, key: str) -> Any:
    if typing.get_origin(hint) is Literal:
        args = typing.get_args(hint)
        if data not in args:
            raise UsageError(f"{key}: found {_say(data)}; needs one of {', '.join(map(str, args))}")
        return data
    if type(data) is int and abs(data) >= 2**63:
        raise UsageError(f"{key}: a number of {len(str(abs(data)))} digits is out of range")
    if hint is float and type(data) is int:
        return float(data)
    if type(data) is not hint:
        raise UsageError(f"{key}: found {_say(data)}; needs {_NEEDS[hint]}")
    return data


_NEEDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def _in_range(value: Any, limits: Mapping[str, float | None], key: str) -> None:
    if not limits or value is None:
        return
    low, high, above = limits["low"], limits["high"], limits["above"]
    bounds = []
    if above is not None:
        bounds.append(f"more than {above:g}")
    if low is not None:
        bounds.append(f"{low:g} or more")
    if high is not None:
        bounds.append(f"at most {high:g}")
    bad = (
        not math.isfinite(value)
        or (low is not None and value < low)
        or (high is not None and value > high)
        or (above is not None and value <= above)
    )
    if bad:
        raise UsageError(f"{key}: {value:g} is out of range; needs {' and '.join(bounds)}")


def _say(value: Any) -> str:
    """A value as the user would write it, cut to fit a line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "keys and values"
    if isinstance(value, list | tuple):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def known_keys(cls: type = Config, prefix: str = "") -> list[str]:
    """Every key of the configuration with dots, for suggestions; open mappings end in `.`."""
    keys: list[str] = []
    hints = typing.get_type_hints(cls)
    for f in dataclasses.fields(cls):
        hint, name = hints[f.name], prefix + f.name
        if dataclasses.is_dataclass(hint):
            keys += [name, *known_keys(typing.cast(type, hint), name + ".")]
        else:
            keys.append(name)
    return keys
