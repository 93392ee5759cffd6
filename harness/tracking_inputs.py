"""What cells were given, as the store's datasets: the model and texts, by hash. Touches nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from harness.planned import Arm, GivenText

Context = Literal["model", "prompt", "text", "perplexity"]


@dataclass(frozen=True)
class Input:
    """Something a cell was given; the store names it, and knows it by its hash.

    `context`: what for. `path`: where it was, as nothing is copied. `profile`: more about it.
    """

    name: str
    sha256: str
    context: Context
    path: str | None = None
    profile: dict[str, Any] = field(default_factory=dict)


def inputs(environment: Mapping[str, Any], arms: Iterable[Arm]) -> tuple[Input, ...]:
    """The model, and what the arms decoded or scored, each once."""
    found = {(i.context, i.sha256): i for arm in arms for i in _of_arm(arm)}
    path, sha256 = environment.get("model_path"), environment.get("model_sha256")
    if not (isinstance(path, str) and isinstance(sha256, str)):  # imported: not known
        return tuple(found.values())
    profile = {"bytes": environment.get("model_bytes")}
    return (Input(Path(path).name, sha256, "model", path, profile), *found.values())


def _of_arm(arm: Arm) -> list[Input]:
    if arm.perplexity is not None:  # a prompt does not precede it
        return [_text(arm.perplexity, "perplexity")]
    prompt = arm.prompt.encode()
    given = Input(
        "prompt", hashlib.sha256(prompt).hexdigest(), "prompt", profile={"bytes": len(prompt)}
    )
    return [given, *([] if arm.text is None else [_text(arm.text, "text")])]


def _text(text: GivenText, context: Context) -> Input:
    return Input(Path(text.path).name, text.sha256, context, text.path)
