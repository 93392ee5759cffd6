"""The plots of a campaign, as files beside its records (docs/attribution.md). Writes those alone.

matplotlib is imported here and in `plot_*`, inside functions: no other command waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from harness.analysis.device_course import DeviceCourse
from harness.analysis.series import Series
from harness.errors import DeviceError
from harness.planned import Plan
from harness.records import CellRecord
from harness.rundir import PLOTS
from harness.verdicts import CampaignVerdict

Format = Literal["svg", "png"]


def write_plots(  # noqa: PLR0917 - a campaign as it is read from disk
    directory: Path,
    verdict: CampaignVerdict,
    plan: Plan,
    records: Sequence[CellRecord],
    series: Mapping[int, Series],
    device: Mapping[int, DeviceCourse],
    *,
    margin_pct: float = 3.0,
    file_format: Format = "svg",
) -> list[Path]:
    """Write what there is something to draw for; the paths written.

    `directory`: of the campaign; the plots go into `plots` in it. `series`, `device`: by index of
    the cell. `margin_pct`: what the verdict counts as equivalent. Raises DeviceError when a file
    cannot be written.
    """
    from harness.report.plot_estimates import draw_estimates
    from harness.report.plot_style import save, styled
    from harness.report.plot_timeline import draw_timeline
    from harness.report.plot_traces import draw_traces

    written = []
    with styled():
        drawn = {
            "estimates": draw_estimates(verdict, plan, margin_pct),
            "traces": draw_traces(verdict, plan, records, series),
            "timeline": draw_timeline(verdict, plan, records, device),
        }
        for name, figure in drawn.items():
            if figure is None:
                continue
            path = directory / PLOTS / f"{name}.{file_format}"
            try:
                path.parent.mkdir(exist_ok=True)
                written.append(save(figure, path))
            except OSError as e:
                raise DeviceError(f"{e.filename or path}: {e.strerror}") from e
    return written
