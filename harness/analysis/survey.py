"""The verdict of a survey, and of a ladder of memory limits: none about speed. Pure.

Both run every cell once to see what the engine did in it. Without a cell that repeats another
nothing tells a change of the device from a change of the settings.
"""

from __future__ import annotations

from harness.verdicts import CampaignVerdict, Drift


def survey_verdict(campaign: str, design: str = "a survey") -> CampaignVerdict:
    """No drift known, nothing compared."""
    reason = f"{design} has no sentinel: its counters can be read, its speeds not compared"
    return CampaignVerdict(campaign, Drift("unknown", None, (reason,)), ())
