"""One candidate's pairs, read in order of their blocks until a look decides. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis.blocks import (
    JudgedPair,
    Pair,
    broken_order,
    judge_pair,
    order_not_as_drawn,
    pair_row,
    pairs_of,
    unequal_work,
)
from harness.analysis.counters import work_in_words
from harness.analysis.pair_session import PairSession
from harness.analysis.pair_test import PairTest, Reading
from harness.looks import Look, Schedule
from harness.verdicts import CandidateVerdict, LookRow, Outcome, PairRow
from harness.words import counted


@dataclass(frozen=True)
class Read:
    """What came of one candidate; `read_until`: the last block that was looked at, -1: none."""

    verdict: CandidateVerdict
    pairs: tuple[PairRow, ...]
    looks: tuple[LookRow, ...]
    read_until: int


@dataclass(frozen=True)
class _Ending:
    """How the reading of a candidate ended: with a verdict or for want of pairs."""

    outcome: Outcome
    reading: Reading | None
    used: tuple[JudgedPair, ...]
    reasons: tuple[str, ...]


class CandidatePairs:
    """One candidate against the baseline."""

    def __init__(self, name: str, session: PairSession) -> None:
        self.name = name
        self.session = session
        self.settings = session.settings
        self.schedule: Schedule = session.schedule
        self.pairs = pairs_of(session.plan, name, session.by_index)[: self.schedule.blocks]
        self.looks: list[LookRow] = []
        self.spent = 0.0
        self.unequal: str | None = None
        self.last_test: tuple[Reading, tuple[JudgedPair, ...]]

    # --- in order of the blocks ------------------------------------------------------------------

    def read(self) -> Read:
        read: list[JudgedPair] = []
        until = -1
        ending: _Ending | None = None
        for number, pair in enumerate(self.pairs):
            # a look needs so many clean pairs; none can have them before so many have run
            if not pair.whole:
                continue
            ended = number == len(self.pairs) - 1
            whole = sum(p.whole for p in self.pairs[: number + 1])
            following = self._next_look()
            if not ended and (following is None or whole < following.clean_pairs):
                continue
            until = pair.block
            read = self._judged(until)
            ending = self._broken(read) or self._look(read)
            if ending is None and self._next_look() is None:
                ending = self._at_end(read)
            if ending is not None:
                break
        else:
            # the last that ran, whether or not a look was due
            whole_blocks = [p.block for p in self.pairs if p.whole]
            if whole_blocks and until != whole_blocks[-1]:
                until = whole_blocks[-1]
                read = self._judged(until)
                ending = self._broken(read)
        if ending is None:
            ending = self._at_end(read) if self._ended() else self._so_far(read)
        return self._report(ending, read, until)

    def _judged(self, block: int) -> list[JudgedPair]:
        """Every pair up to the block as it stood when that had run."""
        session = self.session
        verdicts = session.examined(block)
        cells = session.until(block)
        work: dict[int, str] = {}
        self.unequal = None
        for arm in (session.plan.baseline, self.name):
            found, nothing = unequal_work(
                [c for c in cells if c.arm == arm], self.settings.drift.read_bytes_tolerance_pct
            )
            work |= found
            self.unequal = self.unequal or nothing
        return [
            judge_pair(p, verdicts, work, self.settings.max_gap_s)
            for p in self.pairs
            if p.block <= block
        ]

    def _ended(self) -> bool:
        """All that was planned, within the budget, has run."""
        return bool(self.pairs) and all(p.whole for p in self.pairs)

    def _next_look(self) -> Look | None:
        done = sum(row.alpha is not None for row in self.looks)
        return self.schedule.looks[done] if done < len(self.schedule.looks) else None

    # --- what ends it ----------------------------------------------------------------------------

    def _broken(self, read: Sequence[JudgedPair]) -> _Ending | None:
        """Counters, identity or order that no number of pairs can mend."""
        whole = [j.pair for j in read if j.pair.whole]
        confounded = [j for j in read if j.status == "confounded"]
        clean = [j for j in read if j.clean]
        if len(confounded) > max(len(clean), 1):
            reasons = [r for j in confounded for r in j.reasons]
            return _Ending("confounded", None, (), tuple(dict.fromkeys(reasons)))
        if self.unequal is not None and len(whole) >= 2:
            return _Ending("contaminated", None, (), (self.unequal,))
        order = order_not_as_drawn(self.session.plan, whole)
        if order is None and self.session.plan.coins is None:
            # of pairs that were not needed, the order is on record as well
            order = broken_order([p for p in self.pairs if p.whole])
            if order is not None:
                order = (
                    f"{order} and no coins are recorded: a drift of the device cannot be told from "
                    "the candidate; draw the order of every pair (design=pairs)"
                )
        return None if order is None else _Ending("contaminated", None, (), (order,))

    def _look(self, read: Sequence[JudgedPair]) -> _Ending | None:
        """A look that is due, and what it decides."""
        clean = tuple(j for j in read if j.clean)
        due = self._next_look()
        if due is None or len(clean) < due.clean_pairs:
            return None
        self._interim(clean[:-1], read)
        return self._decide(clean, read, due.alpha)

    def _decide(
        self, used: tuple[JudgedPair, ...], read: Sequence[JudgedPair], alpha: float
    ) -> _Ending | None:
        reading = self._test(used).read(alpha)
        self.last_test = (reading, used)
        self.spent += alpha
        outcome: Outcome | None = None
        if reading.told_from_none:
            outcome = "loss" if (reading.effect or 0.0) > 0 else "win"
        elif reading.within_margin and (reading.p > self.settings.hold_p or not self._more(read)):
            outcome = "equivalent"
        self._add_look(used, read, reading, alpha, outcome)
        if outcome is None:
            return None
        return _Ending(outcome, reading, used, (self._decided_in_words(outcome, reading),))

    def _more(self, read: Sequence[JudgedPair]) -> bool:
        """Whether another look may come after this one."""
        last = len(self._looked()) + 1 >= len(self.schedule.looks)
        return not last and len(read) < len(self.pairs)

    def _at_end(self, read: Sequence[JudgedPair]) -> _Ending:
        """The budget, or all that was planned, is spent, and no look has decided."""
        clean = tuple(j for j in read if j.clean)
        looked = self._looked()
        if not looked:
            return self._unfiltered(read, clean)
        alpha = self.schedule.alpha_at_end(self.spent)
        if alpha > 0:
            # the same pairs as at the last look are tested once, with what both may spend
            if looked[-1].clean_pairs == len(clean):
                alpha += looked[-1].alpha or 0.0
            ending = self._decide(clean, read, alpha)
            if ending is not None:
                return ending
        reading, used = self.last_test
        return _Ending("inconclusive", reading, used, (self._what_it_takes(reading, used),))

    def _unfiltered(self, read: Sequence[JudgedPair], clean: tuple[JudgedPair, ...]) -> _Ending:
        """Too few clean pairs for a look: the first pairs as they are, at the whole error."""
        same = [j for j in read if j.same_task]
        used = tuple(same[: self.schedule.fallback_pairs])
        replaced = len(read) - len(clean)
        first = self.schedule.looks[0].clean_pairs
        why = f"{len(clean)} of {len(read)} pairs are clean, the first look needs {first}"
        unlike = [j for j in read if j.pair.whole and not j.same_task]
        if len(unlike) > len(same):
            return _Ending("contaminated", None, (), (why, unlike[0].reasons[-1]))
        if used:
            why += f": the first {counted(len(used), 'pair')} of equal work are tested as they are"
        reading = self._test(used).read(self.schedule.alpha)
        if reading.told_from_none:
            outcome: Outcome = "loss" if (reading.effect or 0.0) > 0 else "win"
            self._add_look(used, read, reading, self.schedule.alpha, outcome)
            words = self._decided_in_words(outcome, reading)
            return _Ending(outcome, reading, used, (why, words))
        if replaced > len(clean):
            self._add_look(used, read, reading, self.schedule.alpha, "contaminated")
            return _Ending("contaminated", reading, used, (why, "and they show nothing"))
        provisional = self._provisional(clean, reading)
        if provisional is not None:
            return _Ending(provisional[0], reading, used, (provisional[1], why))
        return _Ending("inconclusive", reading, used, (why, self._what_it_takes(reading, used)))

    def _so_far(self, read: Sequence[JudgedPair]) -> _Ending:
        """The campaign is running, or was stopped before its end."""
        clean = tuple(j for j in read if j.clean)
        ran = sum(p.whole for p in self.pairs)
        if not self.pairs:
            return _Ending(
                "unreadable", None, (), (f"no block holds {self.name} and a baseline cell",)
            )
        self._interim(clean, read)
        reading = self._test(clean).read(self.schedule.alpha)
        due = self._next_look()
        where = f"{ran} of {counted(len(self.pairs), 'pair')} have run, {len(clean)} are clean"
        if due is not None:
            where += f"; the next look needs {due.clean_pairs} clean ones"
        if not clean:
            return _Ending("inconclusive", None, (), (where,))
        provisional = self._provisional(clean, reading)
        if provisional is not None:
            return _Ending(provisional[0], reading, clean, (provisional[1], where))
        return _Ending("inconclusive", reading, clean, (where,))

    def _provisional(
        self, clean: tuple[JudgedPair, ...], reading: Reading
    ) -> tuple[Outcome, str] | None:
        """Both cells of the candidate beyond both of the baseline, in the first two pairs."""
        first_two = clean[:2]
        if len(first_two) < 2 or reading.effect is None or any(self._looked()):
            return None
        if self.session.plan.coins is None:
            return None
        gap = self._test(first_two).gap_log()
        if gap is None or abs(gap) <= self.settings.provisional_min_log or gap * reading.effect < 0:
            return None
        words = (
            f"provisional: in the first two pairs every cell of {self.name} is more than "
            f"{math.expm1(self.settings.provisional_min_log) * 100:.0f} % "
            f"{'slower' if gap > 0 else 'faster'} than every baseline cell; never final"
        )
        return ("provisional_loss" if gap > 0 else "provisional_win"), words

    # --- tests -----------------------------------------------------------------------------------

    def _looked(self) -> list[LookRow]:
        return [row for row in self.looks if row.alpha is not None]

    def _test(self, used: Sequence[JudgedPair]) -> PairTest:
        return PairTest(
            [j.pair for j in used],
            self.session.series,
            warmup_tokens=self.settings.warmup_tokens,
            margin_log=math.log1p(self.settings.margin_pct / 100),
            equivalence_alpha=self.settings.equivalence_alpha,
        )

    def _interim(self, clean: Sequence[JudgedPair], read: Sequence[JudgedPair]) -> None:
        """Rows for the numbers of clean pairs at which nothing is decided, up to all of these."""
        if not self.settings.interim:
            return
        shown = self.looks[-1].clean_pairs if self.looks else 0
        for n in range(max(shown, 1) + 1, len(clean) + 1):
            used = tuple(clean[:n])
            self._add_look(used, read, self._test(used).read(self.schedule.alpha), None, None)

    def _add_look(
        self,
        used: Sequence[JudgedPair],
        read: Sequence[JudgedPair],
        reading: Reading,
        alpha: float | None,
        decided: Outcome | None,
    ) -> None:
        last = used[-1].pair.block if used and alpha is None else None
        self.looks.append(
            LookRow(
                candidate=self.name,
                clean_pairs=sum(j.clean for j in used),
                pairs=sum(j.pair.whole and (last is None or j.pair.block <= last) for j in read),
                effect_pct=reading.effect_pct,
                ci_pct=reading.ci_pct,
                p=reading.p if reading.effect is not None else None,
                alpha=alpha,
                decided=decided,
            )
        )

    # --- words -----------------------------------------------------------------------------------

    def _decided_in_words(self, outcome: Outcome, reading: Reading) -> str:
        if outcome == "equivalent":
            return (
                f"the effect is within +-{self.settings.margin_pct:g} %: both one-sided tests are "
                f"at {max(reading.p_margins):.4f}, {self.settings.equivalence_alpha:g} allowed"
            )
        return (
            f"p = {reading.p:.4f} from {counted(reading.coins, 'coin')}, at most "
            f"{reading.alpha:.4f} allowed at this look"
        )

    def _what_it_takes(self, reading: Reading, used: Sequence[JudgedPair]) -> str:
        least = reading.least_effect_pct(self.schedule.looks[-1])
        if least is None:
            return f"{counted(len(used), 'pair')} cannot bound the effect; run more of them"
        return (
            f"at this spread {self.schedule.looks[-1].clean_pairs} clean pairs would show an "
            f"effect beyond {least:.1f} %; a smaller one takes more pairs, longer cells or a "
            "calmer device"
        )

    def _report(self, ending: _Ending, read: Sequence[JudgedPair], until: int) -> Read:
        reading, reasons = ending.reading, list(ending.reasons)
        clean = [j for j in read if j.clean]
        replaced = [j for j in read if j.status == "replaced"]
        if replaced:
            reasons.append(
                f"{counted(len(replaced), 'pair')} of {len(read)} left out, blind to the arm "
                f"(first: {replaced[0].reasons[0]})"
            )
        confounded = [j for j in read if j.status == "confounded"]
        if confounded and ending.outcome != "confounded":
            reasons.append(
                f"{counted(len(confounded), 'pair')} confounded and left out: "
                f"{confounded[0].reasons[0]}"
            )
        beyond = [p for p in self.pairs if p.whole and p.block > until]
        if beyond and until >= 0:
            reasons.append(f"{counted(len(beyond), 'later pair')} not needed and not read")
        if reading is not None and reading.ci_pct is not None:
            reasons.append(f"the interval is one of {1 - reading.alpha:.1%}, the error of its look")
        if reading is not None:
            reasons += reading.notes(self.settings.stall_note_pct)
            if self.session.plan.coins is None:
                reasons.append(
                    "no coins are recorded: the p-value assumes that the order was drawn"
                )
        if ending.used:
            pair = ending.used[0].pair
            reasons += work_in_words(pair.candidate[0], pair.baseline[0])
        return Read(
            verdict=CandidateVerdict(
                candidate=self.name,
                baseline=self.session.plan.baseline or "",
                outcome=ending.outcome,
                effect_pct=None if reading is None else reading.effect_pct,
                ci_pct=None if reading is None else reading.ci_pct,
                typical_token_effect_pct=None if reading is None else reading.typical_effect_pct,
                p=None if reading is None or reading.effect is None else reading.p,
                clean_pairs=len(clean),
                disturbed_pairs=sum(not j.clean for j in ending.used),
                cells_used=tuple(sorted(c.index for j in ending.used for c in j.pair.cells)),
                reasons=tuple(dict.fromkeys(reasons)),
            ),
            pairs=tuple(pair_row(j, self.name, self._own_effect_pct(j.pair)) for j in read),
            looks=tuple(self.looks),
            read_until=until,
        )

    def _own_effect_pct(self, pair: Pair) -> float | None:
        return (
            self._test([JudgedPair(pair, "clean")]).plain_effect_pct() if pair.has_speeds else None
        )
