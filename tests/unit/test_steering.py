"""Which cells a campaign of pairs still needs, from the records alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from harness.analysis.simulate import simulate
from harness.analysis.standing import Standing
from harness.configure import conf_dir, load_yaml
from harness.judgement import Measured
from harness.records import CellRecord
from harness.schema import VerdictConfig
from harness.steering import Steering
from harness.typed import from_mapping

# simulations, drawings, fuzzing: seconds each; CI runs them all
pytestmark = pytest.mark.slow


class Bench:
    """A simulated campaign, run cell by cell as long as the steering wants cells."""

    def __init__(self, effect_pct: float | tuple[float, ...], **how: object) -> None:
        self.plan, self.records, self.series = simulate(
            "none",
            seed=3,
            effect_pct=effect_pct,
            **how,  # type: ignore[arg-type]
        )
        self.shown: list[tuple[Standing, ...]] = []
        self.ran: dict[int, CellRecord] = {}

    def steering(self, stop_when_decided: bool = True) -> Steering:
        settings = from_mapping(VerdictConfig, load_yaml(conf_dir() / "verdict" / "default.yaml"))
        measured = Measured(Path("/nowhere"), self.plan, settings, _series=dict(self.series))
        return Steering(measured, stop_when_decided, self.shown.append)

    def run(self, steering: Steering, most: int | None = None) -> None:
        for cell in self.plan.cells[:most]:
            if cell.index not in self.ran and steering.wants(cell, self.ran):
                self.ran[cell.index] = self.records[cell.index]


def test_a_large_effect_ends_it_at_the_first_look() -> None:
    bench = Bench(-20.0)
    bench.run(bench.steering())
    assert sorted(bench.ran) == list(range(14))
    assert len(bench.shown) == 7
    assert bench.shown[-1][0].outcome == "loss"


def test_all_pairs_run_when_it_shall_not_stop() -> None:
    bench = Bench(-20.0)
    bench.run(bench.steering(stop_when_decided=False))
    assert len(bench.ran) == len(bench.plan.cells)


@pytest.mark.parametrize("cut", range(15))
def test_wherever_it_was_interrupted_it_goes_on_alike(cut: int) -> None:
    bench = Bench(-20.0)
    bench.run(bench.steering(), most=cut)
    bench.run(bench.steering())
    assert sorted(bench.ran) == list(range(14))


def test_what_an_earlier_process_has_shown_is_not_shown_again() -> None:
    bench = Bench(-20.0)
    bench.run(bench.steering(), most=8)  # four pairs; the fourth is shown when the fifth begins
    assert len(bench.shown) == 3
    bench.run(bench.steering())
    assert len(bench.shown) == 3 + 3


def failing(record: CellRecord) -> CellRecord:
    return dataclasses.replace(record, status="failed", exit_code=1, status_detail="no")


def test_a_candidate_that_cannot_run_is_given_up_and_the_baseline_with_the_last_one() -> None:
    bench = Bench(0.0)
    bench.records = [failing(r) if r.arm == "C" else r for r in bench.records]
    bench.run(bench.steering())
    assert sorted(bench.ran) == [0, 1, 2, 3]


def test_a_baseline_that_cannot_run_ends_the_campaign() -> None:
    bench = Bench(0.0)
    bench.records = [failing(r) if r.arm == "B" else r for r in bench.records]
    bench.run(bench.steering())
    assert sorted(bench.ran) == [0, 1, 2, 3]


def test_one_failure_among_cells_that_ran_gives_nothing_up() -> None:
    bench = Bench(-20.0)
    first = next(r for r in bench.records if r.arm == "C" and r.index > 3)
    bench.records = [failing(r) if r is first else r for r in bench.records]
    bench.run(bench.steering())
    assert sorted(bench.ran) == list(range(16))  # its pair is replaced


def test_designs_without_blocks_run_every_cell() -> None:
    bench = Bench((0.0, -21.0), design="four_cell", candidates=("retention", "spec-2"))
    bench.run(bench.steering())
    assert len(bench.ran) == len(bench.plan.cells) == 4
    assert bench.shown == []


def test_a_decided_candidate_leaves_the_others_their_cells() -> None:
    bench = Bench((-30.0, -2.0), candidates=("slow", "alike"))
    bench.run(bench.steering())
    arms = [bench.records[i].arm for i in bench.ran]
    assert arms.count("slow") == 8
    assert arms.count("alike") == arms.count("B") >= 8
