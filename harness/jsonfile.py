"""A JSON file as the object, or the dataclass, that it holds. A damaged one is one line.

Reads the file it is given, and knows none. Files of the cache, which are made anew where they are
damaged, are read by `cachedir`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from harness.errors import DeviceError
from harness.jsonable import from_json

T = TypeVar("T")


def read_json(path: Path, advice: str = "") -> dict[str, Any] | None:
    """The object in a file; None where there is no such file.

    Raises DeviceError naming the file that is damaged, and what is wrong with it; `advice`: what
    to do about it.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as e:
        raise DeviceError(f"{path}: {e.strerror}") from e
    try:
        if not content:
            raise ValueError("empty")
        data = json.loads(content)
        if not isinstance(data, dict):
            raise ValueError(f"expected an object, found {type(data).__name__}")
    except (ValueError, RecursionError) as e:
        raise _damaged(path, e, advice) from e
    return data


def read_as(cls: type[T], path: Path, advice: str = "") -> T | None:
    """The same as the dataclass `cls`, written by `to_json`."""
    data = read_json(path, advice)
    try:
        return None if data is None else from_json(cls, data, path.name)
    except ValueError as e:
        raise _damaged(path, e, advice) from e


def _damaged(path: Path, wrong: Exception, advice: str) -> DeviceError:
    return DeviceError(f"{path}: is damaged ({wrong})" + (f"; {advice}" if advice else ""))
