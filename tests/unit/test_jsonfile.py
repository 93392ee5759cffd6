"""A file that holds a dataclass: read as it was written, or one line that names what is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.errors import DeviceError
from harness.journal import write_json
from harness.jsonfile import read_as, read_json


@dataclass(frozen=True)
class Thing:
    name: str
    parts: tuple[int, ...] = ()


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_json(tmp_path / "thing.json", Thing("a", (1, 2)))
    assert read_as(Thing, tmp_path / "thing.json") == Thing("a", (1, 2))


def test_none_is_not_a_damaged_one(tmp_path: Path) -> None:
    assert read_as(Thing, tmp_path / "thing.json") is None
    assert read_json(tmp_path / "thing.json") is None


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (b"", "empty"),
        (b'{"name": "a"', "Expecting"),
        (b'{"name": "\xff"}', "codec can't decode"),
        (b"null", "expected an object, found NoneType"),
        (b"[]", "expected an object, found list"),
        (b"[" * 100_000, ""),
        (b"{}", "thing.json.name: missing"),
        (b'{"name": "a", "parts": [1, "x"]}', "thing.json.parts[1]: expected int, found 'x'"),
    ],
)
def test_a_damaged_one_is_named_in_a_line(tmp_path: Path, content: bytes, wrong: str) -> None:
    path = tmp_path / "thing.json"
    path.write_bytes(content)
    with pytest.raises(DeviceError) as caught:
        read_as(Thing, path, "remove it")
    said = str(caught.value)
    assert said.startswith(f"{path}: is damaged (")
    assert said.endswith("); remove it")
    assert wrong in said
    assert "\n" not in said


def test_what_cannot_be_opened_is_not_absent(tmp_path: Path) -> None:
    (tmp_path / "thing.json").mkdir()
    with pytest.raises(DeviceError, match=r"thing\.json: Is a directory"):
        read_as(Thing, tmp_path / "thing.json")
