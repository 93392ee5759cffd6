"""All that was found of a device, the one sentence it comes to, and the exit code. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from harness.doctor.device_signs import Heat
from harness.doctor.noise import Noise
from harness.doctor.noise_signs import budget_in_words, figure, smallest_in_words, too_noisy
from harness.doctor.resolution import Resolution
from harness.doctor.signs import Sign, worst_first
from harness.errors import DeviceError, Interrupted
from harness.records import TargetId


@dataclass(frozen=True)
class Diagnosis:
    """`noise` None: not measured, for the reason in `unmeasured`. `campaign_dir`: of the A/A."""

    target: TargetId | None
    signs: tuple[Sign, ...]
    heat: Heat | None
    noise: Noise | None = None
    resolution: Resolution | None = None
    unmeasured: str | None = None
    interrupted: bool = False
    campaign_dir: str | None = None

    @property
    def failures(self) -> list[Sign]:
        """What stands against measuring."""
        return [sign for sign in self.signs if sign.level == "failure"]

    @property
    def exit_code(self) -> int:
        """0 nothing stands against measuring, 1 something does, 130 the A/A was interrupted."""
        if self.interrupted:
            return Interrupted.exit_code
        return DeviceError.exit_code if self.failures else 0

    @property
    def ordered(self) -> list[Sign]:
        """Worst first."""
        return worst_first(self.signs)


def conclusion(d: Diagnosis) -> str:
    """In one sentence: what this device can tell, and how it would show that it throttles."""
    if d.failures:
        first = d.failures[0]
        more = len(d.failures) - 1
        others = f" (and {more} more)" if more else ""
        return f"This device cannot be measured on as it is: {first.about}: {first.seen}{others}."
    return f"{_differences(d)}; {_throttling(d.heat)}."


def _differences(d: Diagnosis) -> str:
    r = d.resolution
    if r is None:
        why = d.unmeasured or "too few cells were measured"
        return f"How small a difference this device can tell is not known ({why})"
    few = ", as far as the cells before the interruption show" if d.interrupted else ""
    if too_noisy(r):
        least = figure((r.above_pct if r.smallest_pct is None else r.smallest_pct) or 0.0)
        return (
            f"This device is noisy now: only differences beyond about {least} % can be told within "
            f"{budget_in_words(r)}{few}"
        )
    if r.smallest_pct is None:
        return (
            f"This device can tell differences of {smallest_in_words(r)} within "
            f"{budget_in_words(r)}{few}"
        )
    about = "roughly" if r.method == "rough" else "about"
    return (
        f"This device can tell differences of {about} {figure(r.smallest_pct)} % within "
        f"{budget_in_words(r)}{few}"
    )


def _throttling(heat: Heat | None) -> str:
    if heat is None:
        return "whether it would show throttling was not looked at"
    shown = [
        words
        for there, words in ((heat.caps, "frequency caps"), (heat.temperatures, "temperatures"))
        if there
    ]
    if len(shown) == 2:
        return "throttling is seen by frequency caps and temperatures"
    missing = [
        words
        for there, words in ((heat.caps, "caps"), (heat.temperatures, "temperatures"))
        if not there
    ]
    rest = "only by probes" if heat.probes else "nor are there probes (schedule.probe_s=1)"
    if shown:
        return f"throttling is seen by {shown[0]}, not by {missing[0]}"
    return f"throttling cannot be seen by caps or temperatures, {rest}"
