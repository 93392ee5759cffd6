"""The models that have a name: the files of `conf/model/`. Reads the installation only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.errors import UsageError
from harness.typed import nearest

PACKAGE = Path(__file__).resolve().parents[1]


def registry_dir() -> Path:
    """`conf/model` beside the package (a checkout), or the copy that an installed wheel carries."""
    candidates = (PACKAGE.parent / "conf" / "model", PACKAGE / "_conf" / "model")
    for directory in candidates:
        if directory.is_dir():
            return directory
    raise UsageError(f"the models' configuration is missing: no {candidates[0]}; reinstall")


def names() -> list[str]:
    """All names, sorted."""
    return sorted(p.stem for p in registry_dir().glob("*.yaml"))


def described(name: str) -> str:
    """The first line of a model's comment."""
    text = (registry_dir() / f"{name}.yaml").read_text(encoding="utf-8")
    first = text.splitlines()[0] if text else ""
    return first.lstrip("# ").strip() if first.startswith("#") else ""


def configuration(name: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The configuration of the model `name` with `key=value` overrides, as a plain mapping.

    UsageError for unknown names and overrides that are none.
    """
    import yaml

    if name not in names():
        raise UsageError(f"model {name}: no such file, and no model of this name{_near(name)}")
    loaded = yaml.safe_load((registry_dir() / f"{name}.yaml").read_text(encoding="utf-8"))
    values: dict[str, Any] = dict(loaded)
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"{text}: not key=value")
        try:
            values[key.removeprefix("model.")] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise UsageError(f"{text}: the value cannot be read") from None
    return values


def _near(name: str) -> str:
    return nearest(name, names())
