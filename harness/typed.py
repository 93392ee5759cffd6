"""A plain mapping to dataclasses, strictly: every key known, present, of its type and in its range.

Touches nothing and knows no key. What is wrong is one line of UsageError: the key, what was found,
what it needs.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar

from harness.errors import UsageError

T = TypeVar("T")

# written in a configuration where the user must give the value
MISSING = "???"


def ranged(
    low: float | None = None, high: float | None = None, above: float | None = None
) -> dict[str, float | None]:
    """Field metadata: the value must lie in [low, high], or be more than `above`."""
    return {"low": low, "high": high, "above": above}


def from_mapping(cls: type[T], data: Any, key: str = "") -> T:
    """Plain mapping to the dataclass `cls`, strictly: every key known and of its type.

    Every key is present, but for those with a default: of a later version, or of one option.
    """
    return typing.cast(T, _dataclass(cls, data, key))


def _dataclass(cls: type, data: Any, key: str) -> Any:
    if not isinstance(data, Mapping):
        raise UsageError(f"{key}: found {say(data)}; needs keys and values")
    fields = {f.name: f for f in dataclasses.fields(cls)}
    dot = f"{key}." if key else ""
    for name in data:
        if name not in fields:
            raise UsageError(f"{dot}{name}: unknown key{nearest(str(name), fields, 'keys here')}")
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for name, f in fields.items():
        if name not in data and f.default is not dataclasses.MISSING:
            values[name] = f.default
            continue
        if name not in data or data[name] == MISSING:
            raise UsageError(f"{dot}{name}: needs a value; add {dot}{name}=VALUE")
        values[name] = _value(hints[name], data[name], dot + name)
        in_range(values[name], f.metadata, dot + name)
    return cls(**values)


def _value(hint: Any, data: Any, key: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return None if data is None else _one_of(args, data, key)
    if dataclasses.is_dataclass(hint):
        return _dataclass(typing.cast(type, hint), data, key)
    if origin is dict:
        return _mapping(args[1], data, key)
    if origin is tuple:
        if not isinstance(data, list | tuple):
            raise UsageError(f"{key}: found {say(data)}; needs a list, [a,b]")
        return tuple(_value(args[0], v, f"{key}[{i}]") for i, v in enumerate(data))
    return _scalar(hint, data, key)


def _one_of(hints: tuple[Any, ...], data: Any, key: str) -> Any:
    """A value of the one type among `hints`, or one of the words that may stand instead of it."""
    words = [h for h in hints if typing.get_origin(h) is Literal]
    kinds = [h for h in hints if h not in words and h is not type(None)]
    if not kinds:
        return _scalar(words[0], data, key)
    known = [word for h in words for word in typing.get_args(h)]
    if isinstance(data, str) and data in known:
        return data
    if known and type(data) is not kinds[0]:
        needs = " or ".join([_NEEDS[kinds[0]], *known])
        raise UsageError(f"{key}: found {say(data)}; needs {needs}")
    return _value(kinds[0], data, key)


def _mapping(inner: Any, data: Any, key: str) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise UsageError(f"{key}: found {say(data)}; needs keys and values")
    if inner is Any:
        return {str(k): v for k, v in data.items()}
    return {str(k): _value(inner, v, f"{key}.{k}") for k, v in data.items()}


def _scalar(hint: Any, data: Any, key: str) -> Any:
    if typing.get_origin(hint) is Literal:
        args = typing.get_args(hint)
        if data not in args:
            raise UsageError(f"{key}: found {say(data)}; needs one of {', '.join(map(str, args))}")
        return data
    if type(data) is int and abs(data) >= 2**63:
        raise UsageError(f"{key}: a number of {len(str(abs(data)))} digits is out of range")
    if hint is float and type(data) is int:
        return float(data)
    if type(data) is not hint:
        raise UsageError(f"{key}: found {say(data)}; needs {_NEEDS[hint]}")
    return data


_NEEDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def in_range(value: Any, limits: Mapping[str, float | None], key: str) -> None:
    """UsageError with all bounds when a number is not within those of `ranged`."""
    if not limits or value is None or isinstance(value, str):
        return
    low, high, above = limits["low"], limits["high"], limits["above"]
    bounds = []
    if above is not None:
        bounds.append(f"more than {above:.12g}")
    if low is not None:
        bounds.append(f"{low:.12g} or more")
    if high is not None:
        bounds.append(f"at most {high:.12g}")
    bad = (
        not math.isfinite(value)
        or (low is not None and value < low)
        or (high is not None and value > high)
        or (above is not None and value <= above)
    )
    if bad:
        raise UsageError(f"{key}: {value:.12g} is out of range; needs {' and '.join(bounds)}")


def say(value: Any) -> str:
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


def nearest(word: str, known: Iterable[str], label: str = "known") -> str:
    """`; did you mean 'a' or 'b'?`, or `; known: a, b, c` when nothing is near."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=3, cutoff=0.6)
    if close:
        return "; did you mean " + " or ".join(repr(c) for c in close) + "?"
    return f"; {label}: {', '.join(names)}" if names else ""
