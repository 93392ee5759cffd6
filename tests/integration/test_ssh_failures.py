"""Campaigns over ssh through everything that may fail between here and the device."""

from __future__ import annotations

import collections
import json
import random
import statistics
import subprocess
import time
from pathlib import Path

import pytest
from cell_parts import FAKE_ENGINE
from ssh_campaigns import ENDING_S, Bench, bench, local_sshd, wait_for

__all__ = ["bench", "local_sshd"]  # fixtures
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SLOW = {"baseline": {}, "half": {"token_ms": 1000}, "off": {}}


# --- the way to the device breaks ---


def test_sshd_is_killed_in_a_cell_and_comes_back(bench: Bench) -> None:
    model = bench.model()
    campaign = bench.start(model, arms=SLOW, n_predict=8, lease_s=20.0)
    bench.until("cell_started", 1)
    time.sleep(1.0)
    bench.sshd.stop()
    time.sleep(3.0)
    bench.sshd.start()
    campaign.ends(0)
    bench.check_whole(n_predict=8)
    assert bench.starts() == {0: 1, 1: 1, 2: 1, 3: 1}
    assert bench.events("cell_repeated") == []
    assert "connection lost" in campaign.said
    assert "connected again after" in campaign.said
    bench.check_left_clean()


def test_sshd_is_away_for_longer_than_the_lease(bench: Bench) -> None:
    campaign = bench.start(bench.model(), arms=SLOW, n_predict=8, lease_s=4.0)
    bench.until("cell_started", 1)
    wait_for(lambda: any("fake_engine" in line for line in bench.processes()))
    bench.sshd.stop()
    away = bench.until_clean(4.0 + ENDING_S)
    bench.sshd.start()
    campaign.ends(0)
    bench.check_whole(n_predict=8)
    assert bench.starts() == {0: 1, 1: 2, 2: 1, 3: 1}
    (repeated,) = bench.events("cell_repeated")
    assert repeated["index"] == 1
    assert "127.0.0.1" in repeated["reason"]
    print(f"our processes were gone {away:.1f} s after sshd, with a lease of 4 s; {repeated}")
    bench.check_left_clean()


# --- the harness is killed ---

KILLS = 50
WATCHED_KILLS = 8
KILL_LEASE_S = 4.0
ALIKE = {name: {"token_ms": 100} for name in ("baseline", "half", "off")}


@pytest.mark.timeout(1800)
def test_killed_at_random_moments_nothing_is_lost_or_counted_twice(bench: Bench) -> None:
    dice = random.Random(6)  # noqa: S311 - a seed, so that it can be repeated
    watched = set(dice.sample(range(KILLS), WATCHED_KILLS))
    lived: list[float] = []
    moments: collections.Counter[str] = collections.Counter()
    kept: dict[Path, bytes] = {}
    kills = campaigns = 0
    began = time.monotonic()
    bench.start(bench.model(8 << 20), "unharmed", arms=ALIKE, lease_s=KILL_LEASE_S).ends(0)
    whole_s = time.monotonic() - began
    while kills < KILLS:
        name, model = f"campaign-{campaigns}", bench.model(8 << 20)
        while True:
            running = bench.start(model, name, arms=ALIKE, lease_s=KILL_LEASE_S)
            patience = dice.uniform(0.05, 0.9) * whole_s if kills < KILLS else 300.0
            try:
                running.ends(0, patience)
                break
            except subprocess.TimeoutExpired:
                running.kill()
            moments[moment(bench, running.said, name)] += 1
            if kills in watched:
                lived.append(bench.until_clean(KILL_LEASE_S + ENDING_S))
            kills += 1
            assert "Traceback" not in running.said
            for event in bench.events("cell_finished", name):
                record = bench.campaign(name) / event["record"]
                assert kept.setdefault(record, record.read_bytes()) == record.read_bytes()
        bench.check_whole(name)
        bench.check_left_clean()
        campaigns += 1
    print(
        f"{kills} kills in {time.monotonic() - began:.0f} s, in {campaigns} campaigns, which take "
        f"{whole_s:.1f} s: "
        f"{dict(moments)}; our processes lived on for {statistics.median(lived):.1f} s (median), "
        f"{max(lived):.1f} s at most, with a lease of {KILL_LEASE_S:g} s"
    )
    assert len(moments) >= 4


def moment(bench: Bench, said: str, name: str) -> str:
    """What a campaign was at when it was killed, as far as one can see."""
    events = bench.journal(name)
    mine = [e for e in events if e.event in ("campaign_started", "campaign_resumed")]
    if said.count("sent model") and not mine:
        return "sending"
    return f"after {events[-1].event}" if events else "before the session"


def test_the_harness_itself_killed_and_interrupted(bench: Bench) -> None:
    """By its command line, with all that a campaign does before its session."""
    from harness.models.resolve import write_model

    model = bench.root / "tiny.gguf"
    write_model({"kind": "synthetic", "geometry": "tiny"}, model, cache_dir=bench.root)
    prompt = json.dumps({"wall_ms": 200, "token_ms": 400}).replace('"', '\\"')
    runs = bench.root / "runs"
    first = bench.start_harness(
        "+experiment=matched_pair",
        *("model=path", f"model.path={model}", f"runs_dir={runs}", "tracking=off"),
        *(f"engine.binary={FAKE_ENGINE}", f"engine.launcher={bench.launcher}"),
        *("schedule.spacing_s=0.2", "schedule.probe_s=0", "cell.n_predict=8"),
        *(f'cell.prompt="{prompt}"', f"engine.cache_dir={bench.root / 'cache'}"),
        *bench.sshd.overrides(),
        *("target.lease_s=6", f"target.dir={bench.device}", f"target.device_lock={bench.lock}"),
    )
    name = wait_for(lambda: [p.parent.name for p in runs.glob("*/journal.jsonl")])[0]
    bench.until("cell_started", 1, name)
    first.kill()
    bench.until_clean(6.0 + ENDING_S)
    second = bench.start_harness(f"resume={runs / name}")
    bench.until("cell_started", 2, name)
    second.interrupt()
    second.ends(130)
    assert f"resume={name}" in second.said
    bench.check_left_clean()
    bench.start_harness(f"resume={runs / name}").ends(0)
    assert bench.starts(name) == {0: 1, 1: 2, 2: 2, 3: 1}
    assert [e["index"] for e in bench.events("cell_finished", name)] == [0, 1, 2, 3]
    bench.check_left_clean()
