"""Dataclasses to plain JSON types and back. Touches nothing; knows no record."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from typing import Any, Literal, TypeVar

T = TypeVar("T")


def to_json(value: Any) -> Any:
    """Dataclasses, tuples and dicts to plain JSON types."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(v) for v in value]
    return value


def from_json(cls: type[T], data: Any, where: str = "") -> T:
    """Plain JSON to the dataclass `cls`; unknown keys are ignored, so old readers read new records.

    Raises ValueError naming the key that is missing or of the wrong type.
    """
    return typing.cast(T, _decode(cls, data, where or cls.__name__))


def _decode(hint: Any, data: Any, where: str) -> Any:
    origin = typing.get_origin(hint)
    args = typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if data is None:
            return None
        value = _decode_union(args, data, where)
    elif origin is Literal:
        if data not in args:
            raise ValueError(f"{where}: {data!r} is none of {', '.join(map(str, args))}")
        value = data
    elif origin is tuple:
        value = _decode_tuple(args, data, where)
    elif origin is dict:
        if not isinstance(data, dict):
            raise ValueError(f"{where}: expected an object, found {type(data).__name__}")
        value = {k: _decode(args[1], v, f"{where}.{k}") for k, v in data.items()}
    elif dataclasses.is_dataclass(hint):
        value = _decode_dataclass(typing.cast(type, hint), data, where)
    else:
        value = _decode_scalar(hint, data, where)
    return value


def _decode_union(args: tuple[Any, ...], data: Any, where: str) -> Any:
    """The one type among `args`, or one of the words that may stand instead of it."""
    kinds = [a for a in args if a is not type(None)]
    words = [a for a in kinds if typing.get_origin(a) is Literal]
    fits = [a for a in words if isinstance(data, str) and data in typing.get_args(a)]
    (inner,) = fits or [a for a in kinds if a not in words] or words
    return _decode(inner, data, where)


def _decode_tuple(args: tuple[Any, ...], data: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(data, (list, tuple)):
        raise ValueError(f"{where}: expected a list, found {type(data).__name__}")
    if len(args) == 2 and args[1] is Ellipsis:
        args = (args[0],) * len(data)
    if len(args) != len(data):
        raise ValueError(f"{where}: expected {len(args)} items, found {len(data)}")
    return tuple(
        _decode(a, v, f"{where}[{i}]") for i, (a, v) in enumerate(zip(args, data, strict=True))
    )


def _decode_scalar(hint: Any, data: Any, where: str) -> Any:
    if hint is float and type(data) is int:
        return float(data)
    if type(data) is not hint:
        raise ValueError(f"{where}: expected {hint.__name__}, found {data!r}")
    return data


def _decode_dataclass(cls: type, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise ValueError(f"{where}: expected an object, found {type(data).__name__}")
    hints = _hints(cls)
    values: dict[str, Any] = {}
    for f in dataclasses.fields(cls):
        if f.name in data:
            values[f.name] = _decode(hints[f.name], data[f.name], f"{where}.{f.name}")
        elif f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise ValueError(f"{where}.{f.name}: missing")
    return cls(**values)


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    """Resolving them took most of the time of reading a record."""
    return typing.get_type_hints(cls)
