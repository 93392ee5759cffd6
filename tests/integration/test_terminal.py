"""Campaigns and builds as a person sees them: real terminals, a real launcher, a scripted engine.

What a block looks like in every width and state: tests/unit/test_running.py.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cell_parts import FAKE_ENGINE
from terminal_parts import Terminal

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

REPO = Path(__file__).resolve().parents[2]
CONTROL = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]")
COLOUR = re.compile(rb"\x1b\[(?:\d+;)*(?:3[0-7]|4[0-7]|9[0-7]|38;5;\d+)(?:;\d+)*m")
Command = Callable[..., list[str]]


@pytest.fixture
def command(launcher: Path, model: Path, tmp_path: Path) -> Command:
    """Three cells of the fake engine, a second apart; `behaviour` is of its prompt."""

    def words(*overrides: str, **behaviour: object) -> list[str]:
        prompt = json.dumps({"wall_ms": 200} | behaviour).replace('"', '\\"')
        return [
            *(sys.executable, "-m", "harness", "+experiment=matched_pair"),
            *("model=path", f"model.path={model}", f"runs_dir={tmp_path / 'runs'}"),
            *(f"engine.binary={FAKE_ENGINE}", f"engine.launcher={launcher}"),
            *("schedule.spacing_s=1", "schedule.probe_s=0", "cell.n_predict=60", "tracking=off"),
            *(f'cell.prompt="{prompt}"', f"engine.cache_dir={tmp_path / 'cache'}"),
            *("memory.limit_mb=200", "~cells.spec2"),
            *overrides,
        ]

    return words


def has(words: str) -> Callable[[list[str]], bool]:
    return lambda lines: any(words in line for line in lines)


def block(lines: list[str]) -> list[str]:
    """From the bar on."""
    (at,) = [i for i, line in enumerate(lines) if line.startswith(("━", "─"))]
    return lines[at:]


def test_a_campaign_shows_where_it_is_and_leaves_its_lines(command: Command) -> None:
    # what stands there for a second only, a busy machine may not show us
    argv = command("schedule.spacing_s=5", token_ms=200)
    with Terminal(argv, REPO, env={}) as terminal:
        campaign, cell, device = block(terminal.until(has("tok/s")))
        assert re.fullmatch(r"[━─]{16}   cell 1 of 3   .* so far   at least .* left", campaign)
        assert re.fullmatch(r"baseline   token \d+ of 60   \d+\.\d tok/s   \d+ s left", cell)
        assert re.fullmatch(r"(CPU [\d.]+ °C   )?anon \d+ of 200 MiB(, peak \d+)?.*", device)
        waiting = terminal.until(has(" s (spacing)"))
        assert waiting[-3].startswith("cell 1 of 3 baseline: ")
        assert block(waiting)[0].startswith("━━━━━───────────   cell 2 of 3   ")
        # what a cell of the sentinel's arm takes is known by now, and this one from its tokens
        under_way = has("retention   token")
        terminal.until(lambda x: under_way(x) and has("about")(x) and has("tok/s")(x))
        terminal.resize(40)
        terminal.until(lambda x: under_way(x) and not has("so far   ")(x))
        narrow = terminal.until(has("sentinel   token"))
        assert all(len(line) <= 40 for line in block(narrow))
        assert 3 <= len(block(narrow)) <= 6
        assert terminal.ended() == 0
        lines = terminal.all_lines
        assert terminal.cursor == (0, True)
        assert not has("so far")(lines)
        for place in ("1 of 3 baseline", "2 of 3 retention", "3 of 3 sentinel"):
            assert len([line for line in lines if line.startswith(f"cell {place}: ")]) == 1
        assert COLOUR.search(terminal.raw)


def test_a_window_that_is_closed_ends_nothing_that_is_to_outlive_it(
    command: Command, tmp_path: Path
) -> None:
    argv = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *command(token_ms=150)]
    with Terminal(argv, REPO, env={}) as terminal:
        terminal.until(has("baseline   token"))
        assert terminal.hang_up() == 0
    (verdict,) = (tmp_path / "runs").glob("*/verdict.json")
    assert json.loads(verdict.read_text())["verdicts"][0]["candidate"] == "retention"


@pytest.mark.parametrize("how", ["ctrl-c", "SIGTERM"])
def test_an_interrupted_campaign_leaves_the_terminal_in_order(command: Command, how: str) -> None:
    with Terminal(command(token_ms=300), REPO, env={"NO_COLOR": "1"}, columns=40) as terminal:
        terminal.until(has("baseline   token"))
        if how == "ctrl-c":
            terminal.type(b"\x03")
        else:
            terminal.signal(signal.Signals[how])
        assert terminal.ended() == 130
        assert terminal.cursor == (0, True)
        lines = terminal.lines
        assert has("harness: interrupted (")(lines)
        assert not [line for line in lines if line.startswith(("━", "─"))]
        assert not COLOUR.search(terminal.raw)


def test_a_campaign_that_fails_says_so_below_its_lines(command: Command) -> None:
    with Terminal(command(token_ms=300, die_after=25, exit=1), REPO, env={}) as terminal:
        terminal.until(has("baseline   token"))
        assert terminal.ended() == 1
        assert terminal.cursor == (0, True)
        assert has("harness: error: ")(terminal.lines)
        assert not [line for line in terminal.lines if line.startswith(("━", "─"))]


def test_a_terminal_that_can_nothing_gets_lines(command: Command) -> None:
    with Terminal(command(token_ms=30), REPO, env={"TERM": "dumb"}) as terminal:
        assert terminal.ended() == 0
        assert not CONTROL.search(terminal.raw.replace(b"\r\n", b"\n"))
        assert events(terminal.all_lines) == EVENTS


EVENTS = [
    "cell 1 of 3 baseline: running; campaign: at least N s left",
    "cell 1 of 3 baseline: N tok/s, 60 tokens",
    "cell 2 of 3 retention: waiting N s (spacing)",
    "cell 2 of 3 retention: running; campaign: at least N s left",
    "cell 2 of 3 retention: N tok/s, 60 tokens",
    "cell 3 of 3 sentinel: waiting N s (spacing)",
    "cell 3 of 3 sentinel: running; campaign: about N s left",
    "cell 3 of 3 sentinel: N tok/s, 60 tokens",
]


def events(lines: list[str]) -> list[str]:
    """Without their numbers."""
    told = [line for line in lines if re.match(r"cell \d of", line)]
    return [re.sub(r"\d+(\.\d+)?(?= s | tok/s)", "N", line) for line in told]


def test_a_log_gets_a_line_for_every_event_and_no_control_characters(command: Command) -> None:
    env = os.environ | {"PYTHONIOENCODING": "ascii", "FORCE_COLOR": "1", "TERM": "xterm"}
    done = subprocess.run(
        command(token_ms=30), cwd=REPO, capture_output=True, timeout=1200, check=False, env=env
    )
    assert done.returncode == 0, done.stderr
    assert not CONTROL.search(done.stdout)
    assert events(done.stdout.decode("ascii").splitlines()) == EVENTS
