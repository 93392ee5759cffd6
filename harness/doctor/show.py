"""A diagnosis for people and for programs. Writes to the terminal it is given."""

from __future__ import annotations

import textwrap
from typing import Any

from harness.analysis.device_noise import MIN_CELLS
from harness.doctor.diagnosis import Diagnosis, conclusion
from harness.doctor.signs import Level, Sign
from harness.jsonable import to_json
from harness.report.terminal import Terminal

_STYLES: dict[Level, str] = {
    "failure": "bold red",
    "warning": "yellow",
    "note": "",
    "ok": "green",
}
_WIDTH = 100
_LEVEL, _ABOUT = 9, 20


def show(diagnosis: Diagnosis, view: Terminal) -> None:
    """The sentence first, then everything, worst first."""
    view.say("")
    view.say(conclusion(diagnosis), "bold")
    view.say("")
    for sign in diagnosis.ordered:
        for line in lines_of(sign):
            view.say(line, _STYLES[sign.level])
    if diagnosis.campaign_dir is not None:
        view.say("")
        view.say(f"its A/A: {diagnosis.campaign_dir}/")
        noise = diagnosis.noise
        if noise is not None and noise.cells >= MIN_CELLS:
            view.say(f"more of it: python -m harness power --from {diagnosis.campaign_dir}")


def lines_of(sign: Sign) -> list[str]:
    """What was seen beside its level and name; below it what it means, and what to do."""
    head = f"{sign.level:<{_LEVEL}}{sign.about:<{_ABOUT}}"
    margin = " " * (_LEVEL + _ABOUT)
    if sign.level == "ok" and sign.means and sign.do is None:  # in passing
        return _wrapped(f"{sign.seen}; {sign.means}", head, margin)
    lines = _wrapped(sign.seen, head, margin)
    if sign.means:
        lines += _wrapped(sign.means, f"{margin}= ", f"{margin}  ")
    if sign.do is not None:
        lines += _wrapped(sign.do, f"{margin}> ", f"{margin}  ")
    return lines


def _wrapped(text: str, first: str, others: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )


def as_data(diagnosis: Diagnosis) -> dict[str, Any]:
    """Everything, worst first."""
    return {
        "conclusion": conclusion(diagnosis),
        "exit_code": diagnosis.exit_code,
        "target": to_json(diagnosis.target),
        "findings": to_json(diagnosis.ordered),
        "throttling_seen_by": to_json(diagnosis.heat),
        "noise": to_json(diagnosis.noise),
        "pairs": to_json(diagnosis.resolution),
        "not_measured_because": diagnosis.unmeasured,
        "interrupted": diagnosis.interrupted,
        "campaign_dir": diagnosis.campaign_dir,
    }
