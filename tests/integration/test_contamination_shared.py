"""Contamination against the verdicts of those who measured, and against a simulator's truth.

The archives are shared data of the project, not part of the product: skipped where they are absent.
"""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path

import pytest
from shared_data import DATA

from harness.analysis.contamination import ContaminationSettings, examine
from harness.analysis.series import Series, series_of
from harness.importers.bmoe import read_sessions
from harness.importers.plain_csv import read_csv_campaign
from harness.importers.write import Imported, write_campaign
from harness.judgement import judge_directory
from harness.verdicts import CellVerdict

SHARED = DATA
SETTINGS = ContaminationSettings()
QUIET = ("none-1", "none-2", "mild-1", "mild-2")
DISTURBED_LOG = 0.04  # change of a cell's speed inside it, by the simulator's truth

pytestmark = pytest.mark.skipif(
    not (SHARED / "MANIFEST.csv").is_file(), reason="the shared archives are not on this machine"
)


def verdicts(campaign: Imported, settings: ContaminationSettings) -> tuple[CellVerdict, ...]:
    series: dict[int, Series] = {
        c.record.index: s for c in campaign.cells if (s := series_of(c.rows)) is not None
    }
    return examine([c.record for c in campaign.cells], series, settings)


@pytest.fixture(scope="module")
def sessions() -> Sequence[Imported]:
    return read_sessions(SHARED / "campaigns", name=None, baseline=None, design=None)


@pytest.fixture(scope="module")
def known() -> dict[tuple[str, str], str]:
    with (SHARED / "MANIFEST.csv").open(encoding="utf-8") as f:
        return {
            (r["session"], r["cell"]): r["known_verdict"]
            for r in csv.DictReader(f)
            if r["kind"] == "per_token_csv"
        }


def counted(
    sessions: Sequence[Imported],
    known: dict[tuple[str, str], str],
    settings: ContaminationSettings,
) -> tuple[int, int, int, int]:
    """Contaminated cells found, of how many, clean cells accused, of how many."""
    found = contaminated = accused = clean = 0
    for session in sessions:
        for v in verdicts(session, settings):
            label = known.get((session.name, v.cell), "")
            contaminated += label == "contaminated"
            found += label == "contaminated" and v.status == "contaminated"
            clean += label in ("clean", "clean_with_caveat")
            accused += label in ("clean", "clean_with_caveat") and v.status == "contaminated"
    return found, contaminated, accused, clean


def test_real_cells_known_contaminated_are_found_and_clean_ones_left_alone(
    sessions: Sequence[Imported], known: dict[tuple[str, str], str], tmp_path: Path
) -> None:
    """As `import bmoe` and `report` judge them: through a campaign's directory."""
    labelled = [
        (known.get((session.name, v.cell), ""), v.status)
        for session in sessions
        for v in judge_directory(write_campaign(session, tmp_path)).cells
    ]
    contaminated = [status for label, status in labelled if label == "contaminated"]
    clean = [status for label, status in labelled if label.startswith("clean")]
    found, accused = contaminated.count("contaminated"), clean.count("contaminated")
    print(f"{found} of {len(contaminated)} found, {accused} of {len(clean)} clean accused")
    assert (len(contaminated), len(clean)) == (7, 34)
    assert found >= 6
    assert accused * 10 <= len(clean)


THRESHOLDS = [f.name for f in fields(ContaminationSettings) if f.type == "float"]


@pytest.mark.slow
@pytest.mark.parametrize("name", THRESHOLDS)
@pytest.mark.parametrize("factor", [0.7, 1.3])
def test_no_threshold_hangs_on_a_single_real_cell(
    sessions: Sequence[Imported], known: dict[tuple[str, str], str], name: str, factor: float
) -> None:
    """Any one threshold moved by 30 % loses at most one cell more and accuses at most two more."""
    moved = dataclasses.replace(SETTINGS, **{name: getattr(SETTINGS, name) * factor})
    found, _, accused, _ = counted(sessions, known, moved)
    usual = counted(sessions, known, SETTINGS)
    print(f"{name} x {factor}: {found} found, {accused} accused")
    assert found >= usual[0] - 1 and accused <= usual[2] + 2


# --- simulated campaigns -------------------------------------------------------------------------


def simulated() -> Iterator[Path]:
    return (p for p in sorted((SHARED / "simulated").glob("*-?")) if "four" not in p.name)


def truth(directory: Path) -> list[float]:
    """By cell, in order: by how much (log) the device's speed changed inside it."""
    with (directory / "truth.csv").open(encoding="utf-8") as f:
        return [float(r["within_cell_log_change"]) for r in csv.DictReader(f)]


@pytest.fixture(scope="module")
def judged() -> dict[str, tuple[tuple[CellVerdict, ...], list[float]]]:
    return {
        p.name: (
            verdicts(read_csv_campaign(p, name=None, baseline=None, design=None), SETTINGS),
            truth(p),
        )
        for p in simulated()
    }


def test_no_cell_of_a_quiet_simulated_day_is_accused(
    judged: dict[str, tuple[tuple[CellVerdict, ...], list[float]]],
) -> None:
    accused = {n: [v for v in judged[n][0] if v.status != "clean"] for n in QUIET}
    assert not any(accused.values()), accused


def test_most_simulated_cells_that_changed_speed_are_found(
    judged: dict[str, tuple[tuple[CellVerdict, ...], list[float]]],
) -> None:
    hits = missed = 0
    for name, (cells, changes) in judged.items():
        bad = [
            v.status == "contaminated"
            for v, c in zip(cells, changes, strict=True)
            if abs(c) > DISTURBED_LOG
        ]
        others = sum(v.status == "contaminated" for v in cells) - sum(bad)
        print(f"{name}: {sum(bad)} of {len(bad)} disturbed found, {others} others replaced")
        hits, missed = hits + sum(bad), missed + len(bad) - sum(bad)
    assert hits >= 0.75 * (hits + missed)
