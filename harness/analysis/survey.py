"""The verdict of a survey: none about speed. Pure.

A survey runs every cell once to see what the engine did in it. Without a cell that repeats another
nothing tells a change of the device from a change of the settings.
"""

from __future__ import annotations

from harness.records import CampaignVerdict, Drift


def survey_verdict(campaign: str) -> CampaignVerdict:
    """No drift known, nothing compared."""
    reason = "a survey has no sentinel: its counters can be read, its speeds not compared"
    return CampaignVerdict(campaign, Drift("unknown", None, (reason,)), ())
