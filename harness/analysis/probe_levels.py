"""What the probes say of the device's speed while a cell decoded, and how far to trust that. Pure.

Between the probe before a cell and its first token stands the loading of the model; between its
last token and the probe after it, nothing. Where both disagree and the tokens did not move, it is
the later one that was taken at the speed of the tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.analysis.series import Array
from harness.records import CellRecord

# readings on both sides of one that may say the same as it
_WINDOW = 4
# readings further apart than this many of their own errors say something else
_SAME_SDS = 2.0
_LEAST_SD_LOG = 0.004
# a disagreement of less than so many of its usual size is none
_AGREE_SDS = 2.0
_LEAST_DISAGREEMENT_LOG = 0.01


@dataclass(frozen=True)
class ProbeLevels:
    """One value for each cell: `log`, ln of the probe's time at the end of the cell, smoothed.

    `move`: by how much the probe's time after it was longer (ln); None unless every cell was
    probed twice.
    """

    log: Array
    move: Array | None


def probe_levels(records: Sequence[CellRecord]) -> ProbeLevels | None:
    """Of cells in run order; None unless every cell has a compute probe."""
    before = _logs(records, "before")
    after = _logs(records, "after")
    if np.all(np.isfinite(after)):
        if np.all(np.isfinite(before)):
            readings = np.column_stack([before, after]).ravel()
            error = _error(before[1:] - after[:-1])
            return ProbeLevels(_smoothed(readings, error)[1::2], after - before)
        return ProbeLevels(_smoothed(after, _error(np.diff(after))), None)
    if np.all(np.isfinite(before)) and len(records):
        return ProbeLevels(_smoothed(before, _error(np.diff(before))), None)
    return None


def _logs(records: Sequence[CellRecord], when: str) -> Array:
    found = []
    for record in records:
        probe = getattr(record.probe, when)
        ms = None if probe is None else probe.compute_ms
        found.append(np.log(ms) if ms is not None and ms > 0 else np.nan)
    return np.array(found, float)


def _error(between_neighbours: Array) -> float:
    """The probe's own error (ln), from readings between which little happened."""
    if not len(between_neighbours):
        return _LEAST_SD_LOG
    usual = 1.4826 * float(np.median(np.abs(between_neighbours))) / 2**0.5
    return max(usual, _LEAST_SD_LOG)


def _smoothed(readings: Array, error: float) -> Array:
    """Every reading with the mean of those near it in time that agree with it.

    Steps stay sharp, the probe's own error shrinks.
    """
    apart = np.abs(np.subtract.outer(np.arange(len(readings)), np.arange(len(readings))))
    unlike = np.subtract.outer(readings, readings) / (_SAME_SDS * error)
    weights = np.where(apart <= _WINDOW, np.exp(-(unlike**2) / 2), 0.0)
    smoothed: Array = weights @ readings / weights.sum(axis=1)
    return smoothed


def noise_of(token_move: Array, probe_move: Array) -> Array:
    """White variance of each cell, that of a cell whose probes and tokens agree being 1.

    Where its tokens moved otherwise than its probes did, the device changed at a moment that
    neither shows, and what the probe says of the cell is off by a part of the difference.
    """
    apart = token_move - probe_move
    usual = _middle(apart)
    size = max(float(np.quantile(np.abs(apart - usual), 0.3)) / 0.385, _LEAST_DISAGREEMENT_LOG)
    beyond = np.maximum(np.abs(apart - usual) / size - _AGREE_SDS, 0.0)
    noise: Array = 1 + (beyond / 2) ** 2
    return noise


def _middle(values: Array) -> float:
    """Mean of the densest 40 % of the values: what most agree in, though many do not."""
    ordered = np.sort(values)
    held = max(2, math.ceil(0.4 * len(ordered)))
    if held >= len(ordered):
        return float(np.mean(ordered))
    first = int(np.argmin(ordered[held - 1 :] - ordered[: len(ordered) - held + 1]))
    return float(np.mean(ordered[first : first + held]))
