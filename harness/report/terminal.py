"""The campaign in the terminal: plan, what runs, result table, verdict. Writes to one stream.

A terminal gets a block of lines that is rewritten in place (`running`, `screen`); anything else
gets plain lines without control characters, few enough to keep in a log. Colour only on a terminal,
never with NO_COLOR. Sizes are in MiB (2^20 bytes) throughout, like `cache_mb` and
`memory.limit_mb`; `-` means not measured.
"""

from __future__ import annotations

import contextlib
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TextIO

from harness.analysis import tables
from harness.analysis.found import finding_tables
from harness.analysis.identity import identity_in_words, identity_verdict
from harness.analysis.levels import details_in_words, levels_in_words
from harness.analysis.standing import Standing, standing_in_words
from harness.analysis.verdict_labels import DRIFT_WORDS, FINDING_WORDS, OUTCOME_WORDS
from harness.analysis.verdict_words import numbers_in_words
from harness.events import SessionEvent
from harness.looks import look_schedule
from harness.planned import Coins, Plan
from harness.progress import Progress, Step
from harness.records import CellRecord, Prediction
from harness.report.running import Running
from harness.report.tables import (
    LONG,
    SENTENCE_WIDTH,
    STYLES,
    UNSURE,
    differing_settings,
    empty_table,
    rows_of,
    said_of_all,
    sentences_of,
    settings_of,
    table_of,
)
from harness.screen import Screen
from harness.verdicts import CampaignVerdict, CandidateVerdict
from harness.words import counted, duration

ORDERS_WIDTH = 96

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
        self._screen = Screen(sys.stdout if out is None else out)
        self.progress = Progress(self._screen)
        self._running = Running(self._screen)

    def say(self, text: str, style: str = "") -> None:
        """One line that stays."""
        self._screen.say(text, style)

    def close(self) -> None:
        """Remove what is being rewritten."""
        self.progress.close()
        self._screen.close()

    def table(self, data: tables.Data, without: tuple[str, ...] = ()) -> None:
        """One that stays. Where a terminal is too narrow for its sentences they come below it;
        where it is too narrow for its numbers, which would be cut, every row is a line."""
        sentences = tuple(c.key for c in data.columns if c.title in LONG and c.key not in without)
        short = table_of(data, without + sentences)
        room = self._screen.room_beside(short)
        if room is None or room >= SENTENCE_WIDTH * len(sentences):
            self._screen.table(table_of(data, without))
            return
        if room >= 0:
            self._screen.table(short)
        else:
            for line in rows_of(data, without + sentences):
                self.say(line)
        for line in sentences_of(data, sentences):
            self.say(line)

    @contextlib.contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Something without steps, shown for as long as it takes."""
        self.progress(Step(what))
        try:
            yield
        finally:
            self.progress.close()

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
        self._screen.table(table)

    def _blocks(
        self, plan: Plan, coins: Coins, differing: Sequence[str], seconds: Mapping[str, float]
    ) -> None:
        """The arms, and the orders drawn: they need no line for each of dozens of cells."""
        table = empty_table("arm", *differing, "expected s")
        for name, arm in plan.arms.items():
            own = settings_of(arm)
            took = f"{seconds[name]:.0f}" if name in seconds else "unknown"
            table.add_row(name, *(own[title] for title in differing), took)
        self._screen.table(table)
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

    def begin(self, plan: Plan, seconds: Mapping[str, float]) -> None:
        """The cells of `plan` come now; `seconds` as for `plan`."""
        self._running.begin(plan, seconds)

    def event(self, event: SessionEvent) -> None:
        """Show what the session tells."""
        self._running.event(event)

    def standings(self, standings: Sequence[Standing]) -> None:
        """Where every candidate stands after a block, and what it still needs."""
        for standing in standings:
            style = _style(standing.outcome) if standing.decided else ""
            self.say(standing_in_words(standing), style)

    # --- the result ---

    def results(self, records: Sequence[CellRecord]) -> None:
        """One row for each cell that was measured, then what predictors scored."""
        self.close()
        named = [replace(r, cell=f"{r.index} {r.cell}") for r in records]
        clear = all(r.cell == r.arm or r.role == "sentinel" for r in records)
        self.say("")
        hidden = ("index", "arm") if clear else ("index",)
        self.table(tables.results(named), hidden)
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
        self.table(tables.predictors(prediction))
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
        self.table(tables.predictors_by_layer(prediction))

    def verdict(self, verdict: CampaignVerdict) -> None:
        """What the cells found, the drift verdict, and every candidate's with reasons.

        What all candidates share is said once.
        """
        for name, data in finding_tables(verdict, brief=True).items():
            self.say("")
            self.say(FINDING_WORDS[name])
            self.table(data, _HIDDEN.get(name, ()))
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
            self.say(f"  - {reason}")


def _shared(verdicts: Sequence[CandidateVerdict]) -> tuple[str, ...]:
    """The reasons that every one of several candidates has."""
    if len(verdicts) < 2:
        return ()
    rest = [set(v.reasons) for v in verdicts[1:]]
    return tuple(r for r in verdicts[0].reasons if all(r in other for other in rest))


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
