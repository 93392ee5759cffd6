"""The text that cells decode is looked at before anything runs."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.models.text import given_text


def refusal(text: Path) -> str:
    with pytest.raises(UsageError) as refused:
        given_text(str(text), "cells.spec2.text")
    line = str(refused.value)
    assert line.startswith(f"cells.spec2.text: {text}: ")
    assert "\n" not in line
    return line


def test_heldout_is_the_text_that_the_reference_model_never_saw() -> None:
    text = given_text("heldout", "cell.text")
    content = Path(text.path).read_bytes()
    assert content.startswith(b"Ruth 1")
    assert text.sha256 == hashlib.sha256(content).hexdigest()


def test_a_file_is_named_so_that_the_cells_directory_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.txt").write_text("Es war einmal.")
    monkeypatch.chdir(tmp_path)
    found = given_text("mine.txt", "cell.text")
    assert found.path == str(tmp_path / "mine.txt")
    assert found.sha256 == hashlib.sha256(b"Es war einmal.").hexdigest()


def test_what_is_no_text_is_refused_in_one_line(tmp_path: Path) -> None:
    assert "there is no such file" in refusal(tmp_path / "none.txt")
    assert "is not a file" in refusal(tmp_path)
    (tmp_path / "empty.txt").touch()
    assert "is empty" in refusal(tmp_path / "empty.txt")
    (tmp_path / "model.gguf").write_bytes(b"GGUF\xff\xfe")
    assert "is not valid UTF-8" in refusal(tmp_path / "model.gguf")
