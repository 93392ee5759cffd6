"""The configuration is explained where it is defined, and experiments only override it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness import configure, schema
from harness.configure import compose

CONF = configure.conf_dir()
# what they change is defined, and explained, elsewhere
OVERRIDING = ("experiment", "cell", configure.LOCAL)
DEFINING = [CONF / "config.yaml"] + [
    path
    for group in configure.groups(CONF)
    if group not in OVERRIDING
    for path in sorted((CONF / group).glob("*.yaml"))
]
KEY = re.compile(r"^(?P<indent> *)(?P<key>[a-z_]+):(?P<rest>.*)$")


def keys_of(path: Path) -> Iterator[tuple[str, bool]]:
    """Every key of a file with dots, and whether a comment on its line, or above, explains it."""
    above: list[tuple[int, str]] = []
    explained = False
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.strip()
        found = KEY.match(line)
        if text.startswith("#"):
            explained = True
        elif not text:
            explained = False
        elif found is not None and not text.startswith("- "):
            indent = len(found["indent"])
            above = [(i, key) for i, key in above if i < indent]
            dotted = ".".join([*(key for _, key in above), found["key"]])
            above.append((indent, found["key"]))
            if dotted.split(".")[0] != "defaults":
                yield dotted, explained or " #" in found["rest"]
            explained = False


def test_every_key_is_explained_where_it_is_defined() -> None:
    """Of a group: in the file of one of its options at least."""
    explained: dict[str, bool] = {}
    for path in DEFINING:
        group = "" if path.parent == CONF else f"{path.parent.name}."
        for key, is_explained in keys_of(path):
            explained[group + key] = explained.get(group + key, False) or is_explained
    assert len(explained) > 100
    assert not [key for key, is_explained in explained.items() if not is_explained]


def test_every_key_that_may_be_given_is_defined_in_conf() -> None:
    """What the schema knows and no file shows, nobody would find."""
    defined = {key for key, _ in keys_of(CONF / "config.yaml")}
    for path in DEFINING[1:]:
        defined |= {path.parent.name} | {f"{path.parent.name}.{key}" for key, _ in keys_of(path)}
    known = {key for key in schema.known_keys() if not key.startswith(("model.", "target."))}
    assert not known - defined


def leaves(data: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in data.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


@pytest.mark.parametrize("name", configure.options(CONF, "experiment"))
def test_an_experiment_brings_no_key_of_its_own(name: str) -> None:
    """Down to every setting of every cell: it changes what is defined, and defines nothing."""
    text = yaml.safe_load((CONF / "experiment" / f"{name}.yaml").read_text())
    known = set(schema.known_keys())
    for cell in (text.pop("cells", None) or {}).values():
        own = cell if isinstance(cell, dict) else {}
        assert {f"cell.{key}" for key in leaves(own)} <= known
    assert all(key.startswith("override /") for e in text.pop("defaults", []) for key in e)
    assert set(leaves(text)) <= known


@pytest.mark.parametrize("name", configure.options(CONF, "experiment"))
def test_an_experiment_begins_with_its_question_in_one_line(name: str) -> None:
    first, second, *_ = (CONF / "experiment" / f"{name}.yaml").read_text().splitlines()
    assert first == "# @package _global_"
    assert second.startswith("# ") and second.endswith("?") and len(second) <= 100
    assert configure.comment_of(CONF, "experiment", name)[0] == second.removeprefix("# ")


def test_the_defaults_compose_to_exactly_what_the_files_define() -> None:
    data = compose([])
    defined = {key.split(".")[0] for key, _ in keys_of(CONF / "config.yaml")}
    groups = set(configure.groups(CONF)) - set(OVERRIDING)
    assert set(data) == defined | groups
