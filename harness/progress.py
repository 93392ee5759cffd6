"""What is being done and how far it is: one look for builds, transfers, models, simulations."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from rich.text import Text

from harness.screen import Screen, bar, flow
from harness.words import amount, duration, size

# of what was done lately the rate is made
WINDOW_S = 10.0
# looks closer together are one
GRAIN_S = 0.25
# before that a rate says nothing
SETTLED_S = 1.0
# not a terminal: between lines about one step
PLAIN_S = 60.0
BAR = 16

Clock = Callable[[], float]


@dataclass(frozen=True)
class Step:
    """`what` names it: a step of another name is another one. `detail` may change within it.

    `done` of `total` in `unit`, bytes or things that are counted; None: not known.
    """

    what: str
    done: int | None = None
    total: int | None = None
    unit: str = "bytes"
    detail: str = ""


class Pace:
    """How fast something that is counted grows. Fed by one thread, asked by another."""

    def __init__(self) -> None:
        """Nothing seen yet."""
        self._seen: tuple[tuple[float, int], ...] = ()

    def feed(self, now_s: float, done: int) -> None:
        """Where it stands. What goes back (a transfer that began anew) begins anew here, too."""
        seen = self._seen
        if seen and done < seen[-1][1]:
            seen = ()
        if len(seen) > 1 and now_s - seen[-2][0] < GRAIN_S:
            seen = seen[:-1]
        recent = tuple(s for s in seen[:-1] if now_s - s[0] <= WINDOW_S)
        self._seen = (*recent, *seen[-1:], (now_s, done))

    @property
    def rate(self) -> float | None:
        """Per second; None where too little was seen, or it stands still."""
        seen = self._seen
        if len(seen) < 2:
            return None
        (then_s, before), (now_s, done) = seen[0], seen[-1]
        if now_s - then_s < SETTLED_S or done <= before:
            return None
        return (done - before) / (now_s - then_s)

    def left_s(self, total: int) -> float | None:
        """Until `total`, at this pace."""
        rate, seen = self.rate, self._seen
        return None if rate is None or not seen else max(0.0, (total - seen[-1][1]) / rate)


def step_in_words(step: Step, elapsed_s: float, pace: Pace) -> list[str]:
    """Its fields: what, how far, how fast, how much longer; or for how long already."""
    fields = [step.what]
    if step.done is not None and step.total:
        fields.append(amount(step.done, step.total, step.unit))
    elif step.done and step.unit == "bytes":
        fields.append(size(step.done))
    left_s = None
    if step.unit == "bytes":
        if pace.rate is not None:
            fields.append(f"{size(pace.rate)}/s")
        left_s = pace.left_s(step.total) if step.total else None
    if step.detail:
        fields.append(step.detail)
    if left_s is not None:
        fields.append(f"{duration(round(left_s))} left")
    elif elapsed_s >= SETTLED_S:
        fields.append(f"{duration(round(elapsed_s))} so far")
    return fields


class Progress:
    """Shows one step after the other; on a terminal in place, elsewhere a line now and then."""

    def __init__(self, screen: Screen, clock: Clock = time.monotonic) -> None:
        """On `screen`, which somebody else may use once `close` was called."""
        self._screen, self._clock = screen, clock
        self._step: Step | None = None
        self._began_s = 0.0
        self._said_s = 0.0
        self._pace = Pace()

    def __call__(self, step: Step, *, worth_a_line: bool = False) -> None:
        """It is there now. `worth_a_line`: its beginning is told also where nothing is rewritten;
        of others that is told what takes long."""
        now, before = self._clock(), self._step
        fresh = before is None or step.what != before.what
        if fresh:
            self._began_s, self._said_s, self._pace = now, now, Pace()
        if step.done is not None:
            self._pace.feed(now, step.done)
        self._step = step
        if self._screen.rewrites:
            if before is None:
                self._screen.show(self._lines)
        elif (fresh and worth_a_line) or now - self._said_s >= PLAIN_S:
            self._said_s = now
            self._screen.say(", ".join(self._words()))

    def note(self, text: str, style: str = "") -> None:
        """A line that stays."""
        self._screen.say(text, style)

    def close(self) -> None:
        """There is nothing to show any more."""
        if self._step is not None:
            self._step = None
            self._screen.close()

    def _words(self) -> list[str]:
        step = self._step
        return (
            [] if step is None else step_in_words(step, self._clock() - self._began_s, self._pace)
        )

    def _lines(self, width: int) -> list[Text]:
        step = self._step
        fields: list[str | Text] = [*self._words()]
        if step is not None and step.done is not None and step.total:
            drawn = bar(step.done / step.total, min(BAR, width), self._screen.draws)
            fields.insert(0, drawn)
        return flow(fields, width)
