"""What the launcher tells of a device and of the files on it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launcher_parts import MIB
from verb_parts import NOBODY, Board, for_everyone, needs_root, now_ms

pytestmark = pytest.mark.slow  # the first test builds the launcher


# --- files ---------------------------------------------------------------------------------------


def test_digests_are_those_of_others(board: Board, tmp_path: Path) -> None:
    content = os.urandom(3 * MIB + 17)
    place = tmp_path / "d"
    place.mkdir()
    for name, data in (("a b\n'", content), (os.fsdecode(b"\xff"), b""), ("Füße", b"x")):
        (place / name).write_bytes(data)
    answer = board.call("digest", place, tmp_path / "absent")
    found = {file["path"]: file for file in answer["files"]}
    assert len(found) == 4
    for path in place.iterdir():
        info = path.stat()
        assert found[str(path)] == {
            "path": str(path), "bytes": info.st_size, "mtime_ns": info.st_mtime_ns,
            "inode": info.st_ino, "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }  # fmt: skip
    assert found[str(tmp_path / "absent")]["bytes"] is None
    unhashed = board.call("digest", "--no-sha256", place)["files"]
    assert [file["sha256"] for file in unhashed] == [None] * 3


def test_a_digest_ends_when_nobody_waits_for_it(board: Board, tmp_path: Path) -> None:
    with (tmp_path / "endless").open("wb") as file:
        file.truncate(1 << 40)
    process = subprocess.Popen(
        [board.launcher, "digest", tmp_path / "endless"], stdout=subprocess.PIPE
    )
    time.sleep(0.3)
    assert process.poll() is None
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=60) == 1


def test_evicted_files_are_read_from_storage_again(board: Board, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(os.urandom(2 * MIB))
    cache = board.call("evict", tmp_path / "f")
    assert cache["before_bytes"] == 2 * MIB
    assert board.call("evict", tmp_path / "f")["before_bytes"] == cache["after_bytes"]
    assert "No such file" in board.call("evict", tmp_path / "g", code=1)["error"]


@needs_root
def test_of_a_file_that_is_another_s_the_page_cache_is_not_known(
    board: Board, tmp_path: Path
) -> None:
    file = for_everyone(tmp_path) / "f"
    file.write_bytes(bytes(MIB))
    file.chmod(0o644)
    assert board.call("evict", file, user=NOBODY) == {"before_bytes": None, "after_bytes": None}


# --- inspect -------------------------------------------------------------------------------------


def test_a_device_is_told_about(board: Board, tmp_path: Path) -> None:
    seen = board.call("inspect", "--dir", tmp_path)
    system = os.uname()
    assert (seen["machine"], seen["kernel"]) == (system.machine, system.release)
    assert (seen["hostname"], seen["user"]) == (system.nodename, os.geteuid())
    assert seen["page_bytes"] == os.sysconf("SC_PAGESIZE")
    assert abs(seen["unix_s"] - time.time()) < 60
    assert 0 <= now_ms() - seen["monotonic_ms"] < 60_000
    place = os.statvfs(tmp_path)
    assert seen["dir"]["path"] == str(tmp_path.resolve())
    assert seen["dir"]["size_bytes"] == place.f_blocks * place.f_frsize
    assert seen["dir"]["writable"] is True
    assert seen["dir"]["fuse"] is seen["dir"]["filesystem"].startswith("fuse")
    assert (seen["direct_io"]["reason"] is None) is seen["direct_io"]["works"]
    assert seen["state"]["mem_total_bytes"] > 0
    assert list(tmp_path.iterdir()) == []


def test_engines_of_others_are_seen(board: Board, tmp_path: Path) -> None:
    link = tmp_path / "llama-bench"
    link.symlink_to(Path(sys.executable).resolve())
    with subprocess.Popen([link, "-c", "import time; time.sleep(600)"]) as other:
        try:
            engine = {"pid": other.pid, "name": "llama-bench"}
            assert engine in board.call("inspect", "--dir", tmp_path)["other_engines"]
        finally:
            other.kill()


def test_a_directory_that_is_none_is_refused(board: Board, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    assert "not a directory" in board.call("inspect", "--dir", tmp_path / "f", code=1)["error"]
    assert "No such file" in board.call("inspect", "--dir", tmp_path / "g", code=1)["error"]


@needs_root
def test_a_directory_that_is_not_ours_to_write_is_told(board: Board, tmp_path: Path) -> None:
    seen = board.call("inspect", "--dir", for_everyone(tmp_path), user=NOBODY)
    assert (seen["user"], seen["dir"]["writable"]) == (NOBODY, False)
    assert seen["direct_io"]["works"] is None
    assert "Permission denied" in seen["direct_io"]["reason"]


@pytest.mark.parametrize(("kind", "fuse"), [("f2fs", False), ("fuse", True), ("fuse.x", True)])
def test_a_made_up_device_is_told_about(
    launcher: Path, board: Board, tmp_path: Path, kind: str, fuse: bool
) -> None:
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "sys/kernel/random").mkdir(parents=True)
    (proc / "sys/kernel/random/boot_id").write_text("made-up\n")
    (proc / "self/mountinfo").write_text(f"1 0 8:1 / {tmp_path} rw - {kind} /dev/sda1 rw\n")
    roots = ["--proc-root", proc, "--sys-root", tmp_path / "sys"]
    seen = board.call("inspect", "--dir", tmp_path, *roots)
    assert seen["boot_id"] == "made-up"
    assert (seen["dir"]["filesystem"], seen["dir"]["fuse"]) == (kind, fuse)
    assert (seen["other_engines"], seen["sees_all_processes"]) == ([], False)
