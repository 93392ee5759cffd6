"""`gate.json`: what the gate found, beside the campaign that it was found of. Reads and writes it.

All that later nights need of this one is in it: whether it is green, and the level of every arm,
from which the spread between days is known. Directories alone carry it, so that it survives being
put into an artifact store and taken out again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from harness import rundir
from harness.errors import DeviceError
from harness.gate.between import OF_ALL_LOG_SD
from harness.gate.comparable import settings_of
from harness.gate.metrics import METRICS, Metric
from harness.gate.nights import Night
from harness.gate.reading import level
from harness.journal import write_json
from harness.jsonfile import read_as

GATE = "gate.json"
# in it, what a campaign's own verdict said, beside the entries of metrics
OWN = "verdict"
# `unmeasured`: the arm has no such metric (the speed of one that scores a text)
State = Literal["pass", "regression", "none", "first", "accepted", "unmeasured"]
GREEN: tuple[State, ...] = ("pass", "first", "accepted")
_JUDGED: tuple[State, ...] = ("pass", "accepted", "regression")
# by metric and arm
States = Mapping[str, Mapping[str, State]]
# older ones were measured on another state of the device; `between` knows as many differences
CAMPAIGNS = max(OF_ALL_LOG_SD) + 1
# what passed by any margin at all
WIDEST_PCT = 100.0


@dataclass(frozen=True)
class Entry:
    """Of one metric; `state`: of all its cases and those of the output; `arms`: of each arm.

    `margin_pct`: what `pass` was said for. `levels`: ln of the metric by arm, more is better; None
    where the campaign could not be read.
    """

    state: State
    baseline: str | None
    margin_pct: float
    gated_unix_s: float
    levels: dict[str, float | None] = field(default_factory=dict)
    arms: dict[str, State] = field(default_factory=dict)

    def of(self, arm: str, margin_pct: float) -> State:
        """What is known of an arm for a margin; one that was never judged is `none`."""
        state = self.arms.get(arm, "none")
        return "none" if state == "pass" and self.margin_pct > margin_pct else state


@dataclass(frozen=True)
class Wish:
    """What must be green to be compared with. `arms` None: whatever arms were judged."""

    metrics: Sequence[Metric]
    margin_pct: float
    arms: Sequence[str] | None = None


@dataclass(frozen=True)
class Ledger:
    """`gate.json` is exactly this; `configuration`: a hash of all that must be equal to compare."""

    campaign: str
    experiment: str
    device: str | None
    configuration: str
    started_unix_s: float | None
    builds: tuple[str, ...]
    gates: dict[str, Entry] = field(default_factory=dict)

    def is_green(self, wish: Wish) -> bool:
        """For each of these metrics and arms, by a margin no wider than is asked for now.

        A regression in any other is not green. A campaign's own verdict compares two arms of it,
        and does not say how it stands to earlier ones.
        """
        if any("regression" in (e.state, *e.arms.values()) for e in self.gates.values()):
            return False
        for metric in wish.metrics:
            entry = self.gates.get(metric.name)
            if entry is None:
                return False
            arms = tuple(entry.arms) if wish.arms is None else wish.arms
            states = [entry.of(arm, wish.margin_pct) for arm in arms]
            judged = [s for s in states if s != "unmeasured"]
            if not judged or any(s not in GREEN for s in judged):
                return False
        return True


def configuration_of(night: Night) -> str:
    """A hash of arms, model and page cache; builds of the engine are not in it."""
    models = sorted({m for r in night.records if (m := r.identity.model_sha256) is not None})
    arms = {name: settings_of(arm) for name, arm in night.plan.arms.items()}
    about = {
        "arms": arms or sorted(night.arms),
        "design": night.plan.design,
        "model": models,
        "page_cache": night.page_cache,
    }
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]


def read_ledger(directory: Path) -> Ledger | None:
    """None where the campaign was never gated. Raises DeviceError naming a damaged file."""
    return read_as(Ledger, directory / GATE, "remove it, and gate the campaign again")


@dataclass(frozen=True)
class Kin:
    """Earlier campaigns of the same experiment, configuration and device, oldest first.

    `passed_over`: what could not be read, in words. `later`: how many others of its kind began
    after it.
    """

    nights: tuple[tuple[Path, Ledger], ...]
    passed_over: tuple[str, ...]
    later: int = 0

    def last_green(self, wish: Wish) -> Path | None:
        """The newest that is green and still there."""
        for directory, ledger in reversed(self.nights):
            if ledger.is_green(wish) and (directory / rundir.PLAN).is_file():
                return directory
        return None

    def regressed(self, metrics: Sequence[Metric]) -> str | None:
        """The newest that was judged, where it regressed in one of these."""
        for _, ledger in reversed(self.nights):
            if ledger.is_green(Wish(metrics, WIDEST_PCT)):
                return None
            entries = [ledger.gates[m.name] for m in metrics if m.name in ledger.gates]
            if any("regression" in (e.state, *e.arms.values()) for e in entries):
                return ledger.campaign
        return None

    def differences(self, metrics: Iterable[Metric]) -> Mapping[tuple[str, str], list[float]]:
        """Between successive campaigns that could be read, by metric and arm.

        Whatever they were held for: to leave out what counted as a change of the engine would leave
        out the days that differed most.
        """
        found: dict[tuple[str, str], list[float]] = {}
        for metric in metrics:
            before: dict[str, float] = {}
            for _, ledger in self.nights[-CAMPAIGNS:]:
                entry = ledger.gates.get(metric.name)
                for arm, own in ({} if entry is None else entry.levels).items():
                    if own is None:
                        continue
                    if arm in before:
                        found.setdefault((metric.name, arm), []).append(own - before[arm])
                    before[arm] = own
        return found


def newest_green(runs_dir: Path, wish: Wish) -> Path | None:
    """Of any experiment and device."""
    found = []
    for path in runs_dir.glob(f"*/{GATE}"):
        try:
            ledger = read_ledger(path.parent)
        except DeviceError:
            continue
        if ledger is not None and ledger.is_green(wish) and (path.parent / rundir.PLAN).is_file():
            found.append((ledger.started_unix_s or 0.0, path.parent))
    return max(found, default=(0.0, None))[1]


def kin_of(night: Night, runs_dir: Path) -> Kin:
    """What lies in `runs_dir` and began before `night`; each once, however many copies are there.

    No two campaigns of a device begin at one moment. Of copies the name that sorts first counts,
    which is that of the original where they are called after it.
    """
    found: dict[float, tuple[Path, Ledger]] = {}
    passed_over: list[str] = []
    own = configuration_of(night)
    for path in sorted(runs_dir.glob(f"*/{GATE}")):
        try:
            ledger = read_ledger(path.parent)
        except DeviceError as e:
            passed_over.append(f"passed over: {e}")
            continue
        if ledger is None or ledger.campaign == night.id or ledger.started_unix_s is None:
            continue
        same = (ledger.experiment, ledger.device, ledger.configuration)
        if same == (night.experiment, night.device, own):
            found.setdefault(ledger.started_unix_s, (path.parent, ledger))
    began = night.started_unix_s
    before = [found[t] for t in sorted(found) if began is not None and t < began]
    later = sum(began is not None and t > began for t in found)
    return Kin(tuple(before), tuple(passed_over), later)


def record(
    night: Night,
    states: States,
    *,
    baseline: str | None,
    margin_pct: float,
    compared: bool = True,
) -> list[str]:
    """Write what was found, by metric and arm, beside the campaign; what stands of others stays.

    So does what was judged before, where nothing was compared now: of these, those that regressed.
    Raises DeviceError when that cannot be written.
    """
    with _alone(night):
        gates = _standing(night)
        for name, arms in states.items():
            entry = _entry(night, name, arms, baseline, margin_pct)
            old = gates.get(name)
            judged = {} if old is None else {a: s for a, s in old.arms.items() if s in _JUDGED}
            if old is not None and judged and not compared:
                both = {**entry.arms, **judged}
                entry = replace(old, state=_together(both), arms=both, levels=entry.levels)
            gates[name] = entry
        _write(night, gates)
    return [n for n in states if not compared and gates[n].state == "regression"]


def accept(
    night: Night,
    metrics: Sequence[Metric],
    arms: Sequence[str],
    baseline: str | None,
    margin: float,
) -> list[str]:
    """Make these metrics and arms green by hand; the names of those that still regress.

    Raises DeviceError when that cannot be written.
    """
    with _alone(night):
        gates = _accepted(night, metrics, arms, baseline, margin)
        _write(night, gates)
    return [name for name, e in gates.items() if "regression" in (e.state, *e.arms.values())]


def _accepted(
    night: Night,
    metrics: Sequence[Metric],
    arms: Sequence[str],
    baseline: str | None,
    margin: float,
) -> dict[str, Entry]:
    gates = _standing(night)
    for metric in metrics:
        own: dict[str, State] = dict.fromkeys(arms, "accepted")
        old = gates.get(metric.name)
        if old is None:
            gates[metric.name] = _entry(night, metric.name, own, baseline, margin)
        else:  # of the others it still says what was found, by which margin
            both = {**old.arms, **own}
            gates[metric.name] = replace(
                old, state=_together(both), arms=both, levels=_levels(night, metric.name)
            )
    if (own_verdict := gates.get(OWN)) is not None:  # it is of all arms, and overruled as well
        left = {a: s for a, s in own_verdict.arms.items() if a not in arms}
        gates[OWN] = replace(own_verdict, arms=left, state=_together(left) if left else "accepted")
    return gates


@contextlib.contextmanager
def _alone(night: Night) -> Iterator[None]:
    """Two gates of one campaign at once, of two metrics say: neither's regression is lost.

    The directory's own lock says that the campaign runs, that of its configuration that it is
    logged; this one is its plan's.
    """
    if night.directory is None:
        yield
        return
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # a file system without locks
            plan = held.enter_context((night.directory / rundir.PLAN).open("rb"))
            fcntl.flock(plan, fcntl.LOCK_EX)
        yield


def _standing(night: Night) -> dict[str, Entry]:
    try:
        old = None if night.directory is None else read_ledger(night.directory)
    except DeviceError:  # what is damaged is made anew
        old = None
    return {} if old is None else dict(old.gates)


def _entry(
    night: Night, name: str, arms: Mapping[str, State], baseline: str | None, margin_pct: float
) -> Entry:
    return Entry(
        state=_together(arms),
        baseline=baseline,
        margin_pct=margin_pct,
        gated_unix_s=time.time(),
        levels=_levels(night, name),
        arms=dict(arms),
    )


def _together(arms: Mapping[str, State]) -> State:
    """Of all arms: the worst."""
    order: tuple[State, ...] = ("regression", "none", "accepted", "first", "pass", "unmeasured")
    return next((s for s in order if s in arms.values()), "none")


def _write(night: Night, gates: dict[str, Entry]) -> None:
    if night.directory is None:
        return
    ledger = Ledger(
        campaign=night.id,
        experiment=night.experiment,
        device=night.device,
        configuration=configuration_of(night),
        started_unix_s=night.started_unix_s,
        builds=night.builds,
        gates=gates,
    )
    write_json(night.directory / GATE, ledger)


def _levels(night: Night, name: str) -> dict[str, float | None]:
    metric = METRICS.get(name)
    if metric is None:  # a campaign's own verdict is no level
        return {}
    return {arm: level(night, arm, metric) for arm in night.arms}
