"""The device while one cell ran, as arrays. Pure: rows of device.csv in (docs/launcher.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from harness.analysis.series import Array

_CAP, _TEMPERATURE = ".max_khz", ".temp_c"


@dataclass(frozen=True)
class DeviceCourse:
    """All arrays of shape (samples,); NaN where a sample could not be read.

    `t_s`: seconds from the start of the engine. `caps_khz` by cluster, `temps_c` by thermal zone;
    without those that were never read.
    """

    t_s: Array
    mem_available_bytes: Array | None = None
    caps_khz: Mapping[str, Array] = field(default_factory=dict)
    temps_c: Mapping[str, Array] = field(default_factory=dict)


def device_course(rows: Sequence[Mapping[str, float | None]]) -> DeviceCourse | None:
    """The rows by column name; those without a time are left out. None where none is left."""
    timed = [row for row in rows if row.get("t_ms") is not None]
    if not timed:
        return None

    def column(name: str) -> Array | None:
        values = [row.get(name) for row in timed]
        if all(v is None for v in values):
            return None
        return np.array([np.nan if v is None else v for v in values], float)

    known = {name: array for name in timed[0] if (array := column(name)) is not None}
    return DeviceCourse(
        t_s=known["t_ms"] / 1000,
        mem_available_bytes=known.get("mem_available_bytes"),
        caps_khz={n.removesuffix(_CAP): a for n, a in known.items() if n.endswith(_CAP)},
        # a zone's type follows its name, and may hold no dot
        temps_c={
            n.removesuffix(_TEMPERATURE).split(".")[0]: a
            for n, a in known.items()
            if n.endswith(_TEMPERATURE)
        },
    )
