"""The `model` group of the configuration, by kind. Pure.

What a key means is said where it is defined, in `conf/model/`; here is what it may be.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from harness.errors import UsageError
from harness.typed import from_mapping, nearest


@dataclass(frozen=True)
class ReferenceModel:
    """The packaged reference model."""

    kind: ClassVar[str] = "reference"


@dataclass(frozen=True)
class InflatedModel:
    """`base` (a GGUF; None: the reference) with experts `factor` times as wide."""

    kind: ClassVar[str] = "inflated"
    factor: int = 8
    base: str | None = None


@dataclass(frozen=True)
class SyntheticModel:
    """Random weights in a named geometry; experts of type `weights` (None: the architecture's)."""

    kind: ClassVar[str] = "synthetic"
    arch: str = "qwen3moe"
    geometry: str = "small"
    weights: str | None = None
    seed: int = 0
    shards: int = 1


@dataclass(frozen=True)
class PathModel:
    """A GGUF file of the user's; any shard of a split one."""

    kind: ClassVar[str] = "path"
    path: str | None = None


@dataclass(frozen=True)
class HubModel:
    """Files of a repository on Hugging Face; `bytes` is what they take, about."""

    kind: ClassVar[str] = "hub"
    name: str
    repo: str
    files: tuple[str, ...]
    revision: str | None = None
    sha256: str | None = None
    bytes: int | None = None


ModelConfig = ReferenceModel | InflatedModel | SyntheticModel | PathModel | HubModel
KINDS: dict[str, type[ModelConfig]] = {
    c.kind: c for c in (ReferenceModel, InflatedModel, SyntheticModel, PathModel, HubModel)
}


def parse_model(data: Mapping[str, Any] | ModelConfig) -> ModelConfig:
    """The typed configuration of a plain mapping with `kind`. UsageError names the faulty key."""
    if not isinstance(data, Mapping):
        return data
    values = dict(data)
    kind = values.pop("kind", None)
    cls = KINDS.get(str(kind))
    if cls is None:
        raise UsageError(f"model.kind: {kind!r} is no kind of model{nearest(str(kind), KINDS)}")
    defaults = {
        f.name: f.default for f in dataclasses.fields(cls) if f.default is not dataclasses.MISSING
    }
    return from_mapping(cls, {**defaults, **values}, "model")
