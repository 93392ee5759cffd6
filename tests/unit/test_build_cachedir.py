"""The cache directory: place, locks, replacement as a whole, space."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from harness.cachedir import cache_root, locked, publish_dir, read_json, require_space, write_json
from harness.errors import UsageError


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache_root() == tmp_path / "x" / "moe-harness"
    assert cache_root(tmp_path / "y") == tmp_path / "y"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "h"))
    assert cache_root() == tmp_path / "h" / ".cache" / "moe-harness"
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"engine\.cache_dir"):
        cache_root(tmp_path / "file" / "below")


def test_json_and_directories_are_replaced_whole(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"a": 1})
    assert read_json(tmp_path / "a.json") == {"a": 1}
    (tmp_path / "a.json").write_text("[1]")
    assert read_json(tmp_path / "a.json") is None
    for text in ("old", "new"):
        (tmp_path / "t").mkdir()
        (tmp_path / "t" / "f").write_text(text)
        publish_dir(tmp_path / "t", tmp_path / "final")
    assert (tmp_path / "final" / "f").read_text() == "new"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "final"]


def test_too_little_space_names_both_numbers(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"disk full.*\d+ MiB.*\d+ MiB"):
        require_space(tmp_path, 2**60, "this")


def _hold(path: str, held: object, seconds: float) -> None:
    with locked(Path(path)):
        held.set()  # type: ignore[attr-defined]
        time.sleep(seconds)


def test_a_lock_is_waited_for_and_freed_by_death(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    context = multiprocessing.get_context("spawn")
    held = context.Event()
    holder = context.Process(target=_hold, args=(str(path), held, 600))
    holder.start()
    assert held.wait(120)
    waited: list[str] = []

    def waiting(line: str) -> None:
        waited.append(line)
        holder.kill()

    with locked(path, waiting):
        assert path.read_text().strip() == str(os.getpid())
    assert len(waited) == 1 and str(holder.pid) in waited[0]
    holder.join()


def _hold_with_a_child(path: str, held: object, child: Any) -> None:
    with locked(Path(path)) as lock:
        child.value = subprocess.Popen(["sleep", "600"], pass_fds=(lock,)).pid
        held.set()  # type: ignore[attr-defined]
        time.sleep(600)


def test_a_child_that_inherits_the_lock_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    context = multiprocessing.get_context("spawn")
    held, child = context.Event(), context.Value("i", 0)
    holder = context.Process(target=_hold_with_a_child, args=(str(path), held, child))
    holder.start()
    assert held.wait(120)
    holder.kill()
    holder.join()
    waited: list[str] = []

    def waiting(line: str) -> None:
        waited.append(line)
        os.kill(child.value, signal.SIGKILL)

    with locked(path, waiting):
        assert len(waited) == 1, "it was not held any more"
