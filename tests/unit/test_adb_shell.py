"""What the device's shell is given, and what is read out of its answer; with a real mksh."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import DeviceError
from harness.targets import adb_shell
from harness.targets.adb_storage import check_destination
from harness.targets.link import Call, Finished

MARK = "moe-0123456789abcdef01234567"
ODD = ["", " ", "a b", "'", '"', "''", "\\", "\n", "a\n", "$(touch x)", "`id`", "$HOME", "~", "*",
       "-n", "--", "é ü 漢 \U0001f600", "\udcff\udc80", "\t", "\r\n", "!", "a'b\"c\\d$e`f",
       ";exit 3", "&", "|", ">x", "#", "{a,b}", "\x01\x7f"]  # fmt: skip

needs_mksh = pytest.mark.skipif(
    not shutil.which("mksh"), reason="needs mksh (apt-get install mksh)"
)


def run(argv: list[str], stdin: bytes = b"") -> Finished:
    command = adb_shell.framed(argv, MARK)
    done = subprocess.run(  # noqa: PLW1510 - its code is told by the marks
        [b"mksh", b"-c", command.text],
        input=command.prefix + stdin,
        capture_output=True,
        timeout=20,
    )
    assert adb_shell.is_whole(done.stdout, done.stderr, MARK)
    assert adb_shell.shell_pid(done.stderr, MARK) is not None
    assert adb_shell.outside(done.stderr, MARK).strip() == ""
    finished = adb_shell.finished(done.stdout, done.stderr, MARK)
    assert finished is not None
    return finished


def said(argv: list[str]) -> list[str]:
    """The arguments as a program sees them."""
    out = run([shutil.which("python3") or "", "-c", _REPEAT, *argv]).stdout
    return [word.decode("utf-8", "surrogateescape") for word in out.split(b"\0")[:-1]]


_REPEAT = "import os, sys\nfor a in sys.argv[1:]: sys.stdout.buffer.write(os.fsencode(a) + b'\\0')"


@needs_mksh
def test_every_argument_arrives_as_it_is() -> None:
    assert said(ODD) == ODD
    long = ["x" * 20_000, *ODD, "'" * 5000]  # by way of standard input
    assert said(long) == long


BYTES = st.binary(max_size=20).map(
    lambda b: b.replace(b"\0", b"'").decode("utf-8", "surrogateescape")
)
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


@pytest.mark.slow
@needs_mksh
@settings(max_examples=40, deadline=None)
@given(st.lists(TEXT | BYTES, max_size=5))
def test_any_arguments_arrive_as_they_are(argv: list[str]) -> None:
    assert said(argv) == argv


@needs_mksh
@pytest.mark.parametrize("padding", [0, 10_000])
def test_input_and_both_outputs_are_the_programs(padding: int) -> None:
    data = bytes(range(256)) * 500
    script = "cat; printf '\\000err\\377' >&2; exit 3"
    assert run(["sh", "-c", script, "x" * padding], data) == Finished(3, data, b"\0err\xff")


@needs_mksh
def test_a_signal_is_told_from_an_exit_code_where_the_shell_can() -> None:
    # whoever is started by `nohup` ignores the first, and what he starts does, too
    before = {n: signal.signal(n, signal.SIG_DFL) for n in (signal.SIGHUP, signal.SIGQUIT)}
    try:
        for number in (1, 3, 6, 9, 11, 14, 15):
            assert run(["sh", "-c", f"kill -{number} $$"]) == Finished(-number, b"", b"")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        assert run(["sh", "-c", f"exit {128 + number}"]).code == 128 + number
    # of these mksh says nothing
    assert run(["sh", "-c", "kill -INT $$"]).code == 130
    assert run(["sh", "-c", "kill -PIPE $$"]).code == 141


@needs_mksh
def test_what_cannot_be_started_has_the_shells_codes() -> None:
    assert run(["exit", "3"]).code == 3  # one of the shell's own ends no more than it may
    absent = run(["/no/such program"])
    assert absent.code == 127
    assert b"/no/such program" in absent.stderr
    assert run(["/etc/passwd"]).code == 126


@needs_mksh
def test_a_program_gets_no_files_of_the_shell() -> None:
    listing = run(["sh", "-c", "cd /proc/self/fd && echo *"])
    bare = subprocess.run(
        ["sh", "-c", "cd /proc/self/fd && echo *"],
        capture_output=True,
        check=True,
        stdin=subprocess.PIPE,
    )
    assert listing.stdout == bare.stdout


@needs_mksh
def test_a_program_whose_words_look_like_the_clients_is_no_lost_link() -> None:
    text = f"error: closed\nadb: device offline\n{MARK[:-1]}x]\n"
    assert run(["sh", "-c", 'printf %s "$1" >&2; exit 1', "sh", text]) == Finished(
        1, b"", text.encode()
    )


def test_streams_that_broke_off_are_no_result() -> None:
    out = f"{MARK}[\nwords{MARK}:0:{MARK}]\n".encode()
    err = f"{MARK}[77\n{MARK}:0:{MARK}]\n".encode()
    assert adb_shell.finished(out, err, MARK) == Finished(0, b"words", b"")
    for cut in range(len(out)):
        assert adb_shell.finished(out[:cut], err, MARK) is None
        assert not adb_shell.is_whole(out[:cut], err, MARK)
    for cut in range(len(err)):
        assert adb_shell.finished(out, err[:cut], MARK) is None
        assert not adb_shell.is_whole(out, err[:cut], MARK)


def test_a_shell_that_can_start_nothing_is_no_result() -> None:
    said = "E: sh: can't fork - try again"
    out = f"{MARK}[\n{MARK}:{said}:{MARK}]\n".encode()
    err = f"{MARK}[77\n{MARK}:{said}:{MARK}]\n".encode()
    with pytest.raises(DeviceError, match="starts no program: E: sh: can't fork"):
        adb_shell.finished(out, err, MARK)


def test_the_clients_words_stay_outside() -> None:
    news = b"* daemon not running; starting now at tcp:5037\n* daemon started successfully\n"
    out = f"{MARK}[\n{MARK}:1:{MARK}]\n".encode()
    err = news + f"{MARK}[7\nits own\n{MARK}:1:{MARK}]\n".encode() + b"error: closed\n"
    assert adb_shell.finished(out, err, MARK) == Finished(1, b"", b"its own\n")
    outside = adb_shell.outside(err, MARK)
    assert "daemon not running" in outside
    assert "error: closed" in outside
    assert "its own" not in outside
    broken = news + f"{MARK}[7\nits own".encode()
    assert "its own" not in adb_shell.outside(broken, MARK)
    assert adb_shell.outside(b"error: closed\n", MARK) == "error: closed\n"


def test_a_nul_is_refused() -> None:
    with pytest.raises(DeviceError, match="NUL"):
        adb_shell.quoted(["echo", "a\0b"])


def local_call(path: str) -> Call:
    """`Link.call` on this machine, with programs of ours before its own."""

    def call(argv: Sequence[str], *, timeout_s: float, stdin: bytes = b"") -> Finished:
        done = subprocess.run(
            argv,
            input=stdin,
            capture_output=True,
            timeout=timeout_s,
            env={"PATH": f"{path}:{os.environ['PATH']}"},
            check=False,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    return call


@pytest.mark.parametrize(("magic", "words"), [("65735546", "FUSE"), ("5dca2df5", "sdcardfs")])
def test_storage_that_is_not_real_is_refused_by_its_type(
    tmp_path: Path, magic: str, words: str
) -> None:
    (tmp_path / "stat").write_text(f"#!/bin/sh\necho {magic}\n")
    (tmp_path / "stat").chmod(0o755)
    with pytest.raises(DeviceError, match=rf"it is {words}, .*/data/local/tmp \(target.dir=\)"):
        check_destination(local_call(str(tmp_path)), f"{tmp_path}/model.gguf", 9)


def test_a_real_place_is_accepted_and_others_are_not(tmp_path: Path) -> None:
    call = local_call("")
    odd = tmp_path / "a\n'$(b)"
    odd.mkdir()
    check_destination(call, f"{odd}/file", 9)
    for destination, words in (
        (str(odd), "it is a directory"),
        (f"{odd}/absent/file", "its directory does not exist"),
        ("file", "must begin with /"),
    ):
        with pytest.raises(DeviceError, match=words) as caught:
            check_destination(call, destination, 9)
        assert "\n" not in str(caught.value)
