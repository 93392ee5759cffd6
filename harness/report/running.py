"""A campaign while it runs: lines for what has happened, a block for what is under way.

Events in, fields of text out; `Screen` decides what becomes of them. Without a terminal there are
lines alone: one for each event, and one now and then about what goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rich.text import Text

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
from harness.planned import Arm, Plan
from harness.progress import PLAIN_S
from harness.report.cell_words import all_tokens, done, spent, tokens_so_far
from harness.report.device_words import excursion_in_words, readings_in_words, waited_for
from harness.report.tables import BAD, UNSURE
from harness.report.time_left import CellTimes, TimeLeft
from harness.screen import Screen, bar, flow
from harness.words import duration

BAR = 16

# what takes the campaign on, or holds it up: the rest is shown beside them
_Phase = Waiting | AtGate | GatePassed | CellStarted | CellProgress | CellRepeated | CellFinished


@dataclass
class _Moment:
    """What is shown: exchanged as a whole, since another thread draws it."""

    event: _Phase
    at_s: float
    cell_began_s: float | None = None
    first: tuple[float, int] | None = None  # when tokens were first seen, and how many


class Running:
    """Told of every event of a session; `begin` first, else nothing is known of times."""

    def __init__(self, screen: Screen, clock: Callable[[], float] = time.monotonic) -> None:
        """Shows on `screen`."""
        self._screen, self._clock = screen, clock
        self._began_s = clock()
        self._times: CellTimes | None = None
        self._arms: Mapping[str, Arm] = {}
        self._now: _Moment | None = None
        self._ended_s: float | None = None  # the cell before
        self._said_s = self._began_s
        self._said_of: object = None

    def begin(self, plan: Plan, earlier_s: Mapping[str, float]) -> None:
        """`earlier_s`: seconds of a cell of an arm in earlier campaigns, where it ran."""
        self._began_s, self._ended_s, self._said_of = self._clock(), None, None
        self._times, self._arms = CellTimes(plan, earlier_s), plan.arms

    def event(self, event: SessionEvent) -> None:
        """Show what the session tells."""
        if isinstance(event, CellExcursion):
            self._screen.say(f"{_place(event)}: {excursion_in_words(event.excursion)}", UNSURE)
            return
        self._note_times(event)
        self._now = self._moment(event)
        self._say(event)
        if self._screen.rewrites:
            self._screen.show(self._lines)

    # --- what is known ---

    def _moment(self, event: _Phase) -> _Moment:
        now, before = self._clock(), self._now
        moment = _Moment(event, now)
        if isinstance(event, CellStarted):
            moment.cell_began_s = now
        elif isinstance(event, CellProgress) and before is not None:
            moment.cell_began_s, moment.first = before.cell_began_s, before.first
            if moment.first is None and event.tokens is not None:
                moment.first = (now, event.tokens)
        return moment

    def _note_times(self, event: _Phase) -> None:
        if isinstance(event, CellStarted):
            if self._ended_s is not None and self._times is not None:
                self._times.paused(self._clock() - self._ended_s)
        elif isinstance(event, CellFinished):
            self._ended_s = self._clock()
            took_s = spent(event.record)
            if self._times is not None and event.record.status == "ok" and took_s is not None:
                self._times.took(event.record.arm, took_s)
        elif isinstance(event, CellRepeated):
            self._ended_s = None

    def _cell_left_s(self, moment: _Moment) -> float | None:
        """By its tokens where they come, else by what such cells took."""
        event, now = moment.event, self._clock()
        if isinstance(event, CellProgress) and moment.first is not None:
            (then_s, before), tokens = moment.first, event.tokens or 0
            if tokens > before:
                pace = (moment.at_s - then_s) / (tokens - before)
                return max(0.0, pace * (event.n_predict - tokens) - (now - moment.at_s))
        expected = None if self._times is None else self._times.expected_s(event.cell.arm)
        if expected is None:
            return None
        began = now if moment.cell_began_s is None else moment.cell_began_s
        return max(0.0, expected - (now - began))

    def _left(self, moment: _Moment) -> TimeLeft | None:
        if self._times is None:
            return None
        event, own_s = moment.event, self._cell_left_s(moment)
        if isinstance(event, CellFinished):
            own_s = 0.0
        elif own_s is not None and isinstance(event, Waiting | AtGate):
            own_s += max(0.0, event.seconds_left - (self._clock() - moment.at_s))
        return self._times.left(event.cell, own_s, bounded=isinstance(event, AtGate))

    # --- lines that stay ---

    def _say(self, event: _Phase) -> None:
        if isinstance(event, CellRepeated):
            words = f"does not count ({event.reason}); it is run again"
            self._screen.say(f"{_place(event)}: {words}", UNSURE)
        elif isinstance(event, GatePassed):
            # What took time, or did not come; what was so at once, or never is, is no news.
            for outcome in event.outcomes:
                if outcome.outcome != "unreadable" and outcome.waited_s > 0:
                    style = "" if outcome.outcome == "met" else UNSURE
                    self._screen.say(f"{_place(event)}: {outcome_in_words(outcome)}", style)
        elif isinstance(event, CellFinished):
            record = event.record
            good = record.status == "ok"
            words = done(record) if good else f"{record.status}: {record.status_detail or _MUTE}"
            self._screen.say(f"{_place(event)}: {words}", "" if good else BAD)
        elif not self._screen.rewrites:
            self._say_now_and_then(event)

    def _say_now_and_then(self, event: Waiting | AtGate | CellStarted | CellProgress) -> None:
        """The beginning of each, and what lasts."""
        # a running cell is told of when it starts
        what = CellStarted if isinstance(event, CellProgress) else type(event)
        of = (what, event.cell.index)
        now, fresh = self._clock(), of != self._said_of
        if not fresh and (isinstance(event, Waiting) or now - self._said_s < PLAIN_S):
            return
        self._said_s, self._said_of = now, of
        moment = self._now
        assert moment is not None  # noqa: S101 - of this event
        first, *rest = self._fields(moment)
        if isinstance(event, CellProgress):
            rest += self._readings(event)
        between = ("; ", ": ") if isinstance(event, AtGate) else (", ", ", ")
        words = first + (between[1] + between[0].join(rest) if rest else "")
        left = self._left(moment)
        if left is not None and left.known and not isinstance(event, Waiting):
            words += f"; campaign: {left.in_words()}"
        self._screen.say(f"{_place(event)}: {words}")

    # --- the block ---

    def _lines(self, width: int) -> list[Text]:
        moment = self._now
        if moment is None:
            return []
        event = moment.event
        left = self._left(moment)
        passed = self._clock() - self._began_s
        campaign: list[str | Text] = [
            bar(self._share(moment), min(BAR, width), self._screen.draws),
            f"cell {event.cell.index + 1} of {event.total}",
            f"{duration(round(passed))} so far",
            "" if left is None else left.in_words(),
        ]
        lines = flow(campaign, width)
        if not isinstance(event, CellFinished):
            lines += flow([event.cell.name, *self._fields(moment)], width)
        if isinstance(event, CellProgress):
            lines += flow(self._readings(event), width)
        return lines

    def _share(self, moment: _Moment) -> float:
        event = moment.event
        within = 0.0
        if isinstance(event, CellFinished):
            within = 1.0
        elif isinstance(event, CellProgress):
            within = (event.tokens or 0) / max(1, event.n_predict)
        return (event.cell.index + min(1.0, within)) / max(1, event.total)

    def _fields(self, moment: _Moment) -> list[str]:
        """What is under way, as it is now."""
        event, since = moment.event, self._clock() - moment.at_s
        if isinstance(event, Waiting):
            left = event.seconds_left - since
            return ["getting ready"] if left <= 0 else [f"waiting {left:.0f} s ({event.reason})"]
        if isinstance(event, AtGate):
            most = max(0.0, event.seconds_left - since)
            return [f"waiting at most {most:.0f} s for", *waited_for(event.readings)]
        if isinstance(event, CellProgress):
            return self._progress(event, moment)
        if isinstance(event, CellStarted):
            return ["running"]
        return ["getting ready"]

    def _readings(self, event: CellProgress) -> list[str]:
        return readings_in_words(event.readings, _limit_of(self._arms.get(event.cell.arm)))

    def _progress(self, event: CellProgress, moment: _Moment) -> list[str]:
        if event.scored is not None:
            return [f"{event.scored} tokens scored"]
        if event.tokens is None:
            return ["starting"]
        if event.tokens >= event.n_predict:
            return [f"{all_tokens(event.n_predict)} out, last probe"]
        left_s = self._cell_left_s(moment) if moment.first is not None else None
        return [
            *tokens_so_far(event.tokens, event.n_predict, event.tok_s),
            *([] if left_s is None else [f"{duration(round(left_s))} left"]),
        ]


_MUTE = "no reason given"


def _limit_of(arm: Arm | None) -> int | None:
    if arm is None:
        return None
    limits = [b for b in (arm.data_limit_bytes, arm.cgroup_limit_bytes) if b is not None]
    return min(limits, default=None)


def _place(event: SessionEvent) -> str:
    return f"cell {event.cell.index + 1} of {event.total} {event.cell.name}"
