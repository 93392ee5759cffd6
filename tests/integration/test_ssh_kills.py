"""Campaigns over ssh that are killed at random moments and go on, until fifty kills are survived.

Each lane has a device of its own, behind the one sshd; a lane's kills follow each other.
"""

from __future__ import annotations

import collections
import random
import statistics
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from ssh_campaigns import ENDING_S, Bench
from ssh_parts import Sshd

LANES = 5
KILLS = 10  # in each
WATCHED_KILLS = 8  # of all: how long what ran there lives on
LEASE_S = 8.0
ALIKE = {name: {"token_ms": 100} for name in ("baseline", "half", "off")}


@dataclass
class Told:
    whole_s: float
    kills: int = 0
    campaigns: int = 0
    lived_s: list[float] = field(default_factory=list)
    moments: collections.Counter[str] = field(default_factory=collections.Counter)


@pytest.fixture
def benches(tmp_path: Path, launcher: Path) -> Iterator[list[Bench]]:
    with ExitStack() as stack:
        sshd = Sshd(tmp_path / "sshd")
        stack.callback(sshd.stop)
        sshd.start()
        benches = [Bench(tmp_path / f"lane-{lane}", sshd, launcher) for lane in range(LANES)]
        for bench in benches:
            stack.callback(bench.close)
        yield benches


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_killed_at_random_moments_nothing_is_lost_or_counted_twice(benches: list[Bench]) -> None:
    dice = random.Random(6)  # noqa: S311 - a seed, so that it can be repeated
    watched = set(dice.sample(range(LANES * KILLS), WATCHED_KILLS))
    began = time.monotonic()
    with ThreadPoolExecutor(LANES) as pool:
        futures = [
            pool.submit(
                survive,
                bench,
                random.Random(dice.random()),  # noqa: S311
                {kill - lane * KILLS for kill in watched},
            )
            for lane, bench in enumerate(benches)
        ]
        try:
            lanes = [future.result() for future in futures]
        except BaseException:
            for bench in benches:  # the other lanes end with their campaigns
                bench.close()
            raise
    took_s = time.monotonic() - began
    kills = sum(lane.kills for lane in lanes)
    moments = sum((lane.moments for lane in lanes), collections.Counter())
    lived_s = [s for lane in lanes for s in lane.lived_s]
    print(
        f"{kills} kills in {took_s:.0f} s, in {sum(lane.campaigns for lane in lanes)} campaigns, "
        f"which take {statistics.median(lane.whole_s for lane in lanes):.1f} s: {dict(moments)}; "
        f"our processes lived on for {statistics.median(lived_s):.1f} s (median), "
        f"{max(lived_s):.1f} s at most, with a lease of {LEASE_S:g} s"
    )
    assert (kills, len(lived_s)) == (LANES * KILLS, WATCHED_KILLS)
    # in a cell and outside one; what else a kill meets depends on how busy the machine is
    assert {"after cell_started"} < moments.keys()


def survive(bench: Bench, dice: random.Random, watched: set[int]) -> Told:
    """One lane."""
    kept: dict[Path, bytes] = {}
    began = time.monotonic()
    bench.start(bench.model(8 << 20), "unharmed", arms=ALIKE, lease_s=LEASE_S).ends(0)
    told = Told(time.monotonic() - began)
    while told.kills < KILLS:
        name, model = f"campaign-{told.campaigns}", bench.model(8 << 20)
        again = False
        while True:
            began = time.monotonic()
            running = bench.start(model, name, arms=ALIKE, lease_s=LEASE_S)
            patience = dice.uniform(0.05, 0.9) * told.whole_s if told.kills < KILLS else 1200.0
            try:
                running.ends(0, patience)
                if not again:  # the machine may have been busier before
                    told.whole_s = min(told.whole_s, time.monotonic() - began)
                break
            except subprocess.TimeoutExpired:
                running.kill()
                again = True
            told.moments[moment(bench, running.said, name)] += 1
            if told.kills in watched:
                told.lived_s.append(bench.until_clean(LEASE_S + ENDING_S))
            told.kills += 1
            assert "Traceback" not in running.said
            for event in bench.events("cell_finished", name):
                record = bench.campaign(name) / event["record"]
                assert kept.setdefault(record, record.read_bytes()) == record.read_bytes()
        bench.check_whole(name)
        bench.check_left_clean()
        told.campaigns += 1
    return told


def moment(bench: Bench, said: str, name: str) -> str:
    """What a campaign was at when it was killed, as far as one can see."""
    events = bench.journal(name)
    mine = [e for e in events if e.event in ("campaign_started", "campaign_resumed")]
    if said.count("sent model") and not mine:
        return "sending"
    return f"after {events[-1].event}" if events else "before the session"
