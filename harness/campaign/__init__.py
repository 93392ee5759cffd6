"""The composition root: from a command line's overrides to a measured, judged, recorded campaign.

The only room that knows all parts: `course` has the order of things, `inputs` what a campaign is
made from, `device` what it runs on, `sinks` where it goes besides its directory.
"""

from __future__ import annotations

from harness.campaign.course import run

__all__ = ["run"]
