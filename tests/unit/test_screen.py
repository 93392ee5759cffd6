"""Lines that stay, and the block below them, as a terminal emulator shows them."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pyte
import pytest
from rich.text import Text

from harness.progress import Progress, Step
from harness.screen import REFRESH_S, Screen, bar, flow

ROOT = Path(__file__).resolve().parents[2]


class Window(io.StringIO):
    """Standard output of a terminal of 60 columns."""

    def __init__(self, rows: int = 12) -> None:
        super().__init__()
        self._screen = pyte.Screen(60, rows)
        self._stream = pyte.Stream(self._screen)

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._stream.feed(text.replace("\n", "\r\n"))
        return super().write(text)

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self._screen.display if line.strip()]

    @property
    def cursor(self) -> tuple[int, bool]:
        return self._screen.cursor.x, not self._screen.cursor.hidden


@pytest.fixture
def window(monkeypatch: pytest.MonkeyPatch) -> Window:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("LINES", "12")
    monkeypatch.setenv("XTERM_VERSION", "1")
    return Window()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_block_stays_below_whatever_is_said_and_goes_without_a_trace(
    window: Window, monkeypatch: pytest.MonkeyPatch
) -> None:
    # not in the fixture: pytest puts its own in their place when the test begins
    monkeypatch.setattr(sys, "stdout", window)
    monkeypatch.setattr(sys, "stderr", window)
    screen = Screen(window)
    screen.say("first")
    screen.show(lambda _width: [Text("one"), Text("two")])
    assert window.lines == ["first", "one", "two"]
    assert window.cursor[1]
    screen.say("second, " + "long " * 15)
    print("a print from elsewhere")
    print("an error from elsewhere", file=sys.stderr)
    sys.stderr.write(warnings.formatwarning("careful", UserWarning, "x.py", 1))
    assert window.lines[0] == "first"
    assert "".join(window.lines[1:3]) == ("second, " + "long " * 15).rstrip()
    assert window.lines[3:6] == [
        *("a print from elsewhere", "an error from elsewhere", "x.py:1: UserWarning: careful")
    ]
    assert window.lines[-2:] == ["one", "two"]
    screen.close()
    assert window.lines[-1] == "x.py:1: UserWarning: careful"
    assert window.cursor == (0, True)
    assert sys.stdout is window
    print("after")
    assert window.lines[-1] == "after"


def test_the_block_is_asked_again_without_anything_being_said(window: Window) -> None:
    screen, asked = Screen(window), [0]

    def block(_width: int) -> list[Text]:
        asked[0] += 1
        return [Text(f"asked {asked[0]} times")]

    screen.show(block)
    until(lambda: asked[0] > 3)
    screen.close()
    was = asked[0]
    time.sleep(3 * REFRESH_S)
    assert asked[0] == was


def test_nothing_is_written_where_nothing_has_changed(window: Window) -> None:
    screen, asked = Screen(window), [0]

    def block(_width: int) -> list[Text]:
        asked[0] += 1
        return [Text("the same")]

    screen.show(block)
    length = len(window.getvalue())
    until(lambda: asked[0] > 2)
    assert len(window.getvalue()) == length
    screen.close()


def test_lines_are_cut_and_what_is_higher_than_the_window_does_not_scroll(window: Window) -> None:
    screen = Screen(window)
    screen.show(lambda _width: [Text("x" * 200)] * 40)
    assert set(window.lines) == {"x" * 59 + "…"}
    assert len(window.lines) <= 12
    screen.show(lambda _width: [Text("small")])
    assert window.lines == ["small"]
    screen.close()
    assert window.lines == []


def test_a_block_that_fails_leaves_the_terminal_in_order(window: Window) -> None:
    screen = Screen(window)
    screen.show(lambda _width: [Text("fine")])
    with pytest.raises(ZeroDivisionError):
        screen.show(lambda _width: [Text(str(1 // 0))])
    screen.close()
    assert window.cursor == (0, True)


@pytest.mark.parametrize("term", ["dumb", "unknown", ""])
def test_a_terminal_that_cannot_move_its_cursor_gets_lines(
    window: Window, monkeypatch: pytest.MonkeyPatch, term: str
) -> None:
    monkeypatch.setenv("TERM", term)
    screen = Screen(window)
    assert not screen.rewrites
    screen.show(lambda _width: [Text("block")])
    screen.say("line", "bold red")
    screen.close()
    assert window.getvalue() == "line\n"


def test_control_characters_of_others_do_not_reach_the_stream() -> None:
    out = io.StringIO()
    Screen(out).say("engine says \x1b[31mred\x07\x9b1m\rover")
    assert out.getvalue() == "engine says ?[31mred??1m?over\n"


def test_two_streams_are_not_mixed(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    """The block on a terminal's stderr, results into a pipe."""
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stdout", pipe)
    progress = Progress(Screen(window))
    progress(Step("making", 1, 2, "files"))
    print('{"result": 1}')
    progress.close()
    assert pipe.getvalue() == '{"result": 1}\n'
    assert "result" not in window.getvalue()


def test_fields_flow_and_none_is_taken_apart() -> None:
    fields = ["a" * 20, "b" * 20, "", "c" * 20, Text("d" * 50)]
    assert [line.plain for line in flow(fields, 50)] == [
        *("a" * 20 + "   " + "b" * 20, "c" * 20, "d" * 50)
    ]
    assert [line.plain for line in flow(fields, 10)] == ["a" * 20, "b" * 20, "c" * 20, "d" * 50]
    assert flow([], 10) == []


def test_a_bar_is_as_long_as_it_is_whatever_is_done() -> None:
    assert [bar(s, 4).plain for s in (-1, 0, 0.5, 1, 7)] == ["────", "────", "━━──", "━━━━", "━━━━"]
    assert bar(0.5, 4, draws=False).plain == "##.."


# steps on when a file is there: a key would be echoed
RESIZED = """
import pathlib, sys, time
from rich.text import Text
from harness.screen import Screen

def wait_for(name):
    while not pathlib.Path(name).exists():
        time.sleep(0.05)

screen = Screen(sys.stdout)
for i in range(5):
    screen.say(f"line {i} that stays")
screen.show(lambda _: [Text(f"{name} of the block, " + "filled " * 9) for name in ("one", "two")])
wait_for("say")
screen.say("narrow now")
wait_for("close")
screen.close()
print("over")
wait_for("end")
"""


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed (apt: tmux)")
def test_a_window_that_becomes_narrow_keeps_its_lines_and_one_block(tmp_path: Path) -> None:
    """In tmux, which wraps what stands on the screen anew, as most terminals do."""
    script = tmp_path / "resized.py"
    script.write_text(RESIZED)

    def tmux(*args: str) -> str:
        argv = ["tmux", "-S", str(tmp_path / "tmux"), "-f", "/dev/null", *args]
        return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout

    def shown() -> list[str]:
        pane = tmux("capture-pane", "-p", "-S", "-100")
        return [x.rstrip() for x in pane.splitlines() if x.strip()]

    unset = ["env", *(f"-u{name}" for name in ("XTERM_VERSION", "STY", "COLUMNS", "LINES"))]
    where = ["-x", "80", "-y", "20", "-c", str(tmp_path), "-e", f"PYTHONPATH={ROOT}"]
    tmux("new-session", "-d", *where, *unset, sys.executable, str(script))
    try:
        stays = [f"line {i} that stays" for i in range(5)]
        until(lambda: [x[:3] for x in shown()] == ["lin"] * 5 + ["one", "two"])
        tmux("resize-window", "-x", "30", "-y", "20")
        block = ["one of the block, filled fill…", "two of the block, filled fill…"]
        until(lambda: shown() == [*stays, *block])
        (tmp_path / "say").touch()
        until(lambda: shown() == [*stays, "narrow now", *block])
        tmux("resize-window", "-x", "60", "-y", "20")
        until(lambda: len(shown()[-1]) == 60)
        (tmp_path / "close").touch()
        until(lambda: shown() == [*stays, "narrow now", "over"])
    finally:
        tmux("kill-server")


def test_where_nothing_is_wrapped_anew_no_line_is_lost() -> None:
    """xterm cuts what stands on the screen."""
    for name, value in (("XTERM_VERSION", "1"), ("STY", "1")):
        code = f"import os; os.environ[{name!r}] = {value!r}; "
        code += "from harness.screen import _rewraps; raise SystemExit(_rewraps())"
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        assert subprocess.run([sys.executable, "-c", code], env=env, check=False).returncode == 0
