"""The campaign in the terminal: plan, waits, cells, result table, verdict. Writes to one stream.

A terminal gets a line that is rewritten in place; anything else gets plain lines without control
characters, few enough to keep in a log. Colour only on a terminal, never with NO_COLOR. Sizes are
in MiB (2^20 bytes) throughout, like `cache_mb` and `memory.limit_mb`; `-` means not measured.
"""

from __future__ import annotations

import math
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from harness.analysis import tables
from harness.analysis.found import finding_tables
from harness.analysis.identity import identity_in_words, identity_verdict
from harness.analysis.levels import details_in_words, levels_in_words
from harness.analysis.standing import Standing, standing_in_words
from harness.analysis.verdict_labels import DRIFT_WORDS, FINDING_WORDS, OUTCOME_WORDS
from harness.analysis.verdict_words import numbers_in_words
from harness.device.gates import outcome_in_words
from harness.events import (
    AtGate,
    CellExcursion,
    CellFinished,
    CellProgress,
    CellRepeated,
    CellStarted,
    GatePassed,
    SessionEvent,
    Waiting,
)
from harness.looks import look_schedule
from harness.records import CellRecord, Coins, Plan, Prediction
from harness.report.cell_words import all_tokens, done
from harness.report.device_words import excursion_in_words, waited_for
from harness.report.tables import (
    BAD,
    STYLES,
    UNSURE,
    differing_settings,
    empty_table,
    said_of_all,
    settings_of,
    table_of,
)
from harness.verdicts import CampaignVerdict, CandidateVerdict
from harness.words import counted, duration

# wide enough that no table wraps in a log file
PLAIN_WIDTH = 200
ORDERS_WIDTH = 96
# not a terminal: seconds between lines about one running cell
PLAIN_PROGRESS_S = 15.0

# too long for a column: said elsewhere
_HIDDEN = {
    "levels": ("detail",),
    "cells": ("notes",),
    "pairs": ("reasons",),  # their cells' are
    "attribution": ("note",),
}


class Terminal:
    """Shows one campaign. `close` leaves the cursor on a fresh line, whatever happened."""

    def __init__(self, out: TextIO | None = None) -> None:
        """`out`: where to write, standard output by default."""
        stream = sys.stdout if out is None else out
        self.rewrites = stream.isatty()
        self._console = Console(
            file=stream,
            highlight=False,
            markup=False,
            emoji=False,
            width=None if self.rewrites else PLAIN_WIDTH,
            force_terminal=None if self.rewrites else False,
            no_color=None if self.rewrites else True,
        )
        self._live: Live | None = None
        self._said_s = -math.inf
        self._waiting_for: int | None = None

    # --- lines ---

    def say(self, text: str, style: str = "") -> None:
        """One line that stays."""
        self.close()
        # the terminal wraps, so that a command can be copied whole
        self._console.print(Text(text, style), soft_wrap=True)

    def close(self) -> None:
        """Remove the line that is being rewritten."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def table(self, data: tables.Data) -> None:
        """One that stays."""
        self._print_table(table_of(data))

    def _print_table(self, table: Table) -> None:
        self.close()
        if self.rewrites:
            self._console.print(table)
            return
        with self._console.capture() as captured:
            self._console.print(table)
        for line in captured.get().splitlines():  # rich fills the last column with blanks
            self._console.print(Text(line.rstrip()), soft_wrap=True)

    def _rewrite(self, text: str) -> None:
        line = Text(text, no_wrap=True, overflow="ellipsis")
        if self._live is None:
            self._live = Live(
                line,
                console=self._console,
                auto_refresh=False,
                transient=True,
                redirect_stderr=False,
            )
            self._live.start()
        self._live.update(line, refresh=True)

    # --- the plan ---

    def plan(self, plan: Plan, model_name: str, seconds: Mapping[str, float]) -> None:
        """Cells, order, waits, and the time they are expected to take as far as it is known.

        `seconds`: what a cell of an arm took before. What all arms have in common stands below the
        table, not in every row of it.
        """
        differing = differing_settings(plan.arms.values())
        if plan.coins is not None:
            self._blocks(plan, plan.coins, differing, seconds)
        else:
            self._cells(plan, differing, seconds)
        same = said_of_all(plan.arms.values(), differing)
        self.say(f"model {model_name}; in all cells: {same}")
        self.say(_time_expected(plan, seconds))

    def _cells(self, plan: Plan, differing: Sequence[str], seconds: Mapping[str, float]) -> None:
        settings = {name: settings_of(arm) for name, arm in plan.arms.items()}
        # without a baseline every cell is a candidate, and the only one of its arm
        whose = ("arm", "role") if plan.baseline is not None else ()
        table = empty_table("cell", *whose, "wait s", *differing, "expected s")
        for cell in plan.cells:
            own = settings[cell.arm]
            row = [f"{cell.index} {cell.name}", *(getattr(cell, key) for key in whose)]
            took = f"{seconds[cell.arm]:.0f}" if cell.arm in seconds else "unknown"
            table.add_row(*row, f"{cell.wait_s:g}", *(own[title] for title in differing), took)
        self._print_table(table)

    def _blocks(
        self, plan: Plan, coins: Coins, differing: Sequence[str], seconds: Mapping[str, float]
    ) -> None:
        """The arms, and the orders drawn: they need no line for each of dozens of cells."""
        table = empty_table("arm", *differing, "expected s")
        for name, arm in plan.arms.items():
            own = settings_of(arm)
            took = f"{seconds[name]:.0f}" if name in seconds else "unknown"
            table.add_row(name, *(own[title] for title in differing), took)
        self._print_table(table)
        cells = Counter(cell.block for cell in plan.cells)[0]
        back = ", then back" if plan.design == "abba" else ""
        self.say(
            f"at most {counted(len(coins.orders), 'block')} of {cells} cells, "
            f"{plan.cells[-1].wait_s:g} s between cells"
        )
        first = look_schedule(len(plan.candidates)).looks[0].clean_pairs
        if len(coins.orders) < first:
            self.say(
                f"fewer than the {first} of the first look: they are tested once, at their end"
            )
        self.say(f"the order within each was drawn (seed {coins.seed}){back}:")
        # what belongs together stays on one line
        orders = [f"{i + 1}:\xa0{chr(0xA0).join(o)}" for i, o in enumerate(coins.orders)]
        for line in textwrap.wrap("  ".join(orders), ORDERS_WIDTH, break_long_words=False):
            self.say(f"  {line.replace(chr(0xA0), ' ')}")

    # --- while it runs ---

    def event(self, event: SessionEvent) -> None:
        """Show what the session tells."""
        if isinstance(event, Waiting):
            self._wait(event)
        elif isinstance(event, CellStarted):
            self._started(event)
        elif isinstance(event, CellProgress):
            self._progress(event)
        elif isinstance(event, CellRepeated):
            self.say(f"{_place(event)}: does not count ({event.reason}); it is run again", "yellow")
        elif isinstance(event, AtGate):
            self._now_and_then(f"{_place(event)}: {waited_for(event.readings, event.seconds_left)}")
        elif isinstance(event, GatePassed):
            self._gate_passed(event)
        elif isinstance(event, CellExcursion):
            self.say(f"{_place(event)}: {excursion_in_words(event.excursion)}", UNSURE)
        else:
            self._finished(event)

    def _gate_passed(self, event: GatePassed) -> None:
        """What took time, or did not come; what was so at once, or never is, is no news."""
        for outcome in event.outcomes:
            if outcome.outcome != "unreadable" and outcome.waited_s > 0:
                style = "" if outcome.outcome == "met" else UNSURE
                self.say(f"{_place(event)}: {outcome_in_words(outcome)}", style)

    def _now_and_then(self, text: str) -> None:
        """Rewritten all the time on a terminal; elsewhere a line every now and then."""
        now = time.monotonic()
        if self.rewrites:
            self._rewrite(text)
        elif now - self._said_s >= PLAIN_PROGRESS_S:
            self._said_s = now
            self.say(text)

    def _wait(self, event: Waiting) -> None:
        text = f"{_place(event)}: waiting {{}} s ({event.reason})"
        if self.rewrites:
            self._rewrite(text.format(round(event.seconds_left)))
        elif self._waiting_for != event.cell.index:
            self.say(text.format(round(event.seconds_left)))
        self._waiting_for = event.cell.index

    def _started(self, event: CellStarted) -> None:
        self._said_s = time.monotonic()
        if self.rewrites:
            self._rewrite(f"{_place(event)}: running")
        else:
            self.say(f"{_place(event)}: running")

    def _progress(self, event: CellProgress) -> None:
        speed = "" if event.tok_s is None else f", {event.tok_s:.1f} tok/s"
        text = f"{_place(event)}: token {event.tokens} of {event.n_predict}{speed}"
        if event.tokens >= event.n_predict:
            text = f"{_place(event)}: {all_tokens(event.n_predict)} out, last probe"
        self._now_and_then(text)

    def _finished(self, event: CellFinished) -> None:
        self._said_s = -math.inf  # the next wait is news
        record = event.record
        if record.status == "ok":
            words = done(record)
        else:
            words = f"{record.status}: {record.status_detail or 'no reason given'}"
        self.say(f"{_place(event)}: {words}", "" if record.status == "ok" else BAD)

    def standings(self, standings: Sequence[Standing]) -> None:
        """Where every candidate stands after a block, and what it still needs."""
        for standing in standings:
            style = _style(standing.outcome) if standing.decided else ""
            self.say(standing_in_words(standing), style)

    # --- the result ---

    def results(self, records: Sequence[CellRecord]) -> None:
        """One row for each cell that was measured, then what predictors scored."""
        named = [replace(r, cell=f"{r.index} {r.cell}") for r in records]
        clear = all(r.cell == r.arm or r.role == "sentinel" for r in records)
        self.say("")
        hidden = ("index", "arm") if clear else ("index",)
        self._print_table(table_of(tables.results(named), without=hidden))
        for record in records:
            routes = record.forced_routes
            if routes is not None and not routes.exact:
                self.say(
                    f"{record.cell}: routing of a model with {routes.layers} layers x "
                    f"{routes.experts} experts, mapped onto this one ({routes.path})"
                )
            if record.prediction is not None:
                self._prediction(record.cell, record.prediction)

    def _prediction(self, cell: str, prediction: Prediction) -> None:
        self.say("")
        self.say(f"{cell}: predictors against the router; the speed of a probed run says nothing")
        self._print_table(table_of(tables.predictors(prediction)))
        self.say(f"routings that the stale gate could not rank: {prediction.unscored_routings}")
        control = tables.control_share(prediction)
        if control is None or control < tables.CONTROL_AT_LEAST:
            read = "was not scored" if control is None else f"reads {control:.2%}"
            self.say(
                f"warning: the control {read}, {tables.CONTROL_AT_LEAST:.1%} is the least: "
                "the scores above are not of this model's router",
                UNSURE,
            )
        self.say("")
        self.say("slot overlap by layer")
        self._print_table(table_of(tables.predictors_by_layer(prediction)))

    def verdict(self, verdict: CampaignVerdict) -> None:
        """What the cells found, the drift verdict, and every candidate's with reasons.

        What all candidates share is said once.
        """
        for name, data in finding_tables(verdict, brief=True).items():
            self.say("")
            self.say(FINDING_WORDS[name])
            self._print_table(table_of(data, without=_HIDDEN.get(name, ())))
            if name == "levels":
                for line in details_in_words(verdict.levels):
                    self.say(line)
        for line in levels_in_words(verdict.levels):
            self.say(line)
        if verdict.identity:
            likeness = identity_verdict(verdict.identity)
            self.say(identity_in_words(verdict.identity), _style(likeness))
        self.say("")
        drift = verdict.drift
        self.say(f"drift: {DRIFT_WORDS[drift.verdict]}", _style(drift.verdict))
        self._reasons(drift.reasons)
        shared = _shared(verdict.verdicts)
        for v in verdict.verdicts:
            words = f"{v.candidate} against {v.baseline}: {OUTCOME_WORDS[v.outcome]}"
            self.say(f"{words}{numbers_in_words(v)}", _style(v.outcome))
            if v.effect_carried_by:
                self._reasons([v.effect_carried_by])
            self._reasons(r for r in v.reasons if r not in shared)
        if shared:
            self.say("for all candidates:")
            self._reasons(shared)

    def _reasons(self, reasons: Iterable[str]) -> None:
        for reason in reasons:
            self._console.print(Text(f"  - {reason}"), soft_wrap=True)


def _shared(verdicts: Sequence[CandidateVerdict]) -> tuple[str, ...]:
    """The reasons that every one of several candidates has."""
    if len(verdicts) < 2:
        return ()
    rest = [set(v.reasons) for v in verdicts[1:]]
    return tuple(r for r in verdicts[0].reasons if all(r in other for other in rest))


def _place(event: SessionEvent) -> str:
    return f"cell {event.cell.index + 1} of {event.total} {event.cell.name}"


def _style(verdict: str) -> str:
    return f"bold {STYLES.get(verdict, UNSURE)}"


def _time_expected(plan: Plan, seconds: Mapping[str, float]) -> str:
    waits = sum(cell.wait_s for cell in plan.cells)
    unknown = [cell.arm for cell in plan.cells if cell.arm not in seconds]
    total = waits + sum(seconds.get(cell.arm, 0.0) for cell in plan.cells)
    most = "at most " if plan.coins is not None else ""  # it ends when it is decided
    if not unknown:
        return f"time expected: {most}{duration(round(total))}, by earlier campaigns"
    limits = sum(plan.arms[name].time_limit_s for name in unknown)
    known = f"{duration(waits)} of waits"
    if len(unknown) < len(plan.cells):
        known = f"{duration(round(total))} of waits and cells that ran before"
    return (
        f"time expected: {most}{known}; {counted(len(unknown), 'cell')} unknown, "
        f"at most {duration(limits)} by their time limits"
    )
