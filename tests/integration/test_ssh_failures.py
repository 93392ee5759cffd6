"""Campaigns over ssh through everything that may fail between here and the device."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cell_parts import FAKE_ENGINE
from ssh_campaigns import ENDING_S, Bench, bench_on_loopback, wait_for
from together import Body, Outcomes, Together

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

together = Together()
SLOW = {"baseline": {}, "half": {"token_ms": 1000}, "off": {}}


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, launcher: Path) -> Iterator[Outcomes]:
    def run(body: Body, root: Path, stack: contextlib.ExitStack) -> None:
        body(bench_on_loopback(root, launcher, stack))

    with together.running(request, run) as outcomes:
        yield outcomes


# --- the way to the device breaks ---


@together
def test_sshd_is_killed_in_a_cell_and_comes_back(bench: Bench) -> None:
    model = bench.model()
    campaign = bench.start(model, arms=SLOW, n_predict=8, lease_s=60.0)
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


@together
def test_sshd_is_away_for_longer_than_the_lease(bench: Bench) -> None:
    campaign = bench.start(bench.model(), arms=SLOW, n_predict=25, lease_s=10.0)
    bench.until("cell_started", 1)
    wait_for(lambda: any("fake_engine" in line for line in bench.processes()))
    bench.sshd.stop()
    away = bench.until_clean(10.0 + ENDING_S)
    bench.sshd.start()
    campaign.ends(0)
    bench.check_whole(n_predict=25)
    assert bench.starts() == {0: 1, 1: 2, 2: 1, 3: 1}
    (repeated,) = bench.events("cell_repeated")
    assert repeated["index"] == 1
    assert "127.0.0.1" in repeated["reason"]
    print(f"our processes were gone {away:.1f} s after sshd, with a lease of 10 s; {repeated}")
    bench.check_left_clean()


# --- the harness is killed ---


@together
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
        *("target.lease_s=20", f"target.dir={bench.device}", f"target.device_lock={bench.lock}"),
    )
    name = wait_for(lambda: [p.parent.name for p in runs.glob("*/journal.jsonl")])[0]
    bench.until("cell_started", 1, name)
    first.kill()
    bench.until_clean(20.0 + ENDING_S)
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
