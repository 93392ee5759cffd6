"""Lines that stay, and on a terminal a block below them, rewritten in place. Writes to one stream.

Anything that is no terminal that can move its cursor (a pipe, a file, `TERM=dumb`) gets the lines
alone, without control characters. The cursor is never hidden, so that no way to end leaves it so.
"""

from __future__ import annotations

import math
import os
import re
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TextIO

from rich.console import Console, Group
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType
from rich.table import Table
from rich.text import Text

# wide enough that no table wraps in a log file
PLAIN_WIDTH = 200
# The block is drawn so often, whatever happens in between; what it costs: docs/terminal.md.
REFRESH_S = 0.5
GAP = "   "

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_NO_TERMINAL = ("", "dumb", "unknown")

# what stands below the lines, for a width; asked for at every refresh, from a thread of its own
Block = Callable[[int], Sequence[Text]]


class Screen:
    """One stream. `close` takes the block away; what comes after that starts on a fresh line."""

    def __init__(self, out: TextIO) -> None:
        """`rewrites`: there is a block at all; else `show` shows nothing."""
        self.rewrites = out.isatty() and os.environ.get("TERM", "") not in _NO_TERMINAL
        self.draws = _draws(out)  # characters beyond ASCII
        self._console = Console(
            file=out,
            highlight=False,
            markup=False,
            emoji=False,
            width=None if self.rewrites else PLAIN_WIDTH,
            force_terminal=None if self.rewrites else False,
            force_interactive=self.rewrites,
            no_color=None if self.rewrites else True,
        )
        self._lock = threading.RLock()
        self._block: Block | None = None
        self._live: Live | None = None
        self._stop = threading.Event()
        self._drawn: tuple[int, list[Text]] = (0, [])

    # --- lines ---

    def say(self, text: str, style: str = "") -> None:
        """One line that stays."""
        clean = _CONTROL.sub("?", text)
        with self._lock:
            # the terminal wraps, so that a command can be copied whole
            self._console.print(Text(clean, style), soft_wrap=True)

    def table(self, table: Table) -> None:
        """Rows that stay."""
        if self.rewrites:
            with self._lock:
                self._console.print(table)
            return
        with self._console.capture() as captured:
            self._console.print(table)
        for line in captured.get().splitlines():  # rich fills the last column with blanks
            self.say(line.rstrip())

    def room_beside(self, table: Table) -> int | None:
        """Columns that are left beside it; None where this is no terminal, and lines are long."""
        if not self.rewrites:
            return None
        width = self._console.width
        wide = self._console.options.update(width=10 * PLAIN_WIDTH)
        return width - self._console.measure(table, options=wide).maximum

    # --- the block ---

    def show(self, block: Block | None) -> None:
        """What stands below the lines from now on; None: nothing."""
        if not self.rewrites:
            return
        with self._lock:
            self._block = block
            if block is None:
                self._end_live()
                return
            if self._live is None:
                self._start_live()
            self._refresh()

    def close(self) -> None:
        """Take the block away."""
        self.show(None)

    def _start_live(self) -> None:
        # A print from elsewhere, a warning say, goes above the block where it would go through it;
        # what is redirected to a file stays there.
        self._live = Live(
            Text(),
            console=self._console,
            auto_refresh=False,
            transient=True,
            vertical_overflow="crop",
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=sys.stderr.isatty(),
        )
        self._live.start()
        self._console.show_cursor(True)
        self._stop = threading.Event()
        threading.Thread(
            target=self._keep_drawing, args=(self._stop,), name="screen", daemon=True
        ).start()

    def _end_live(self) -> None:
        if self._live is None:
            return
        self._stop.set()
        with self._console:
            self._go_to_the_top()
            self._live.stop()
        self._live, self._drawn = None, (0, [])

    def _keep_drawing(self, stop: threading.Event) -> None:
        while not stop.wait(REFRESH_S):
            with self._lock:
                if not stop.is_set():
                    self._refresh()

    def _refresh(self) -> None:
        if self._live is None or self._block is None:
            return
        width = self._console.width
        lines = [self._cut(line, width) for line in self._block(width)]
        if self._drawn == (width, lines):
            return
        with self._console:  # one write, so that nothing is seen half drawn
            self._go_to_the_top()
            self._live.update(Group(*lines), refresh=True)
        self._drawn = (width, lines)

    def _cut(self, line: Text, width: int) -> Text:
        cut = line.copy()
        cut.no_wrap = True
        cut.truncate(width, overflow="ellipsis" if self.draws else "crop")
        return cut

    def _go_to_the_top(self) -> None:
        """Where the window became narrower: erase the rows by which the block has grown.

        Most terminals wrap then what stands on the screen; rich goes up by the lines that it drew.
        """
        width, lines = self._drawn
        now = self._console.width
        if now >= width or not _rewraps():
            return
        grown = sum(max(1, math.ceil(line.cell_len / now)) - 1 for line in lines)
        erase = (ControlType.ERASE_IN_LINE, 2)
        up = ((ControlType.CURSOR_UP, 1), erase)
        if grown:
            self._console.control(Control(ControlType.CARRIAGE_RETURN, erase, *(up * grown)))


def flow(fields: Sequence[str | Text], width: int) -> list[Text]:
    """Fields beside each other, on as many lines as that takes; none is taken apart."""
    lines: list[Text] = []
    for field in fields:
        text = field if isinstance(field, Text) else Text(_CONTROL.sub("?", field))
        if not text.plain:
            continue
        if lines and lines[-1].cell_len + len(GAP) + text.cell_len <= width:
            lines[-1] = Text.assemble(lines[-1], GAP, text)
        else:
            lines.append(text)
    return lines


def bar(share: float, width: int, draws: bool = True) -> Text:
    """`share` of a bar, 0 to 1."""
    full = round(min(max(share, 0.0), 1.0) * width)
    done, rest = ("━", "─") if draws else ("#", ".")
    return Text.assemble((done * full, "green"), (rest * (width - full), "dim"))


def _rewraps() -> bool:
    """All terminals of today but xterm, GNU screen and the console wrap anew when resized."""
    env = os.environ
    return not ("XTERM_VERSION" in env or "STY" in env or env.get("TERM", "").startswith("linux"))


def _draws(out: TextIO) -> bool:
    try:
        "━─…".encode(getattr(out, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
