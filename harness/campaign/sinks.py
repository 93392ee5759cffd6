"""What a campaign draws beside its records: plots, page. Nothing of it can end a campaign."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.campaign.parts import Campaign

if TYPE_CHECKING:
    from harness.records import CellRecord
    from harness.report.terminal import Terminal
    from harness.verdicts import CampaignVerdict


def draw_plots(
    campaign: Campaign, records: Sequence[CellRecord], verdict: CampaignVerdict, view: Terminal
) -> None:
    """Plots beside the records. What goes wrong there costs one line, never the campaign."""
    from harness.judgement import Measured
    from harness.verbs.report import draw

    try:
        draw(Measured.read(campaign.directory), records, verdict)
    except Exception as e:  # whatever a plotting library raises
        view.say(f"warning: plots were not drawn: {first_line(e)}", "yellow")


def write_page(
    campaign: Campaign, records: Sequence[CellRecord], verdict: CampaignVerdict, view: Terminal
) -> None:
    """report.html beside the records. What goes wrong there costs one line, never the campaign."""
    from harness.judgement import Measured
    from harness.verbs.report import write_html

    try:
        path = write_html(Measured.read(campaign.directory), records, verdict)
    except Exception as e:  # whatever a template or a drawing meets in what was measured
        view.say(f"warning: report.html was not written: {first_line(e)}", "yellow")
        return
    view.say(f"report: {path}")


def write_page_of_what_there_is(campaign: Campaign, view: Terminal) -> None:
    """The same of a campaign that ended early, if a cell did end; a second Ctrl-C skips it."""
    from harness.judgement import Measured, judge
    from harness.verbs.report import write_html

    with contextlib.suppress(KeyboardInterrupt):
        try:
            measured = Measured.read(campaign.directory)
            records = measured.records()
            if not records and not measured.damaged:
                return
            path = write_html(measured, records, judge(measured, records))
        except Exception as e:  # what ended the campaign is the news
            view.say(f"warning: report.html was not written: {first_line(e)}", "yellow")
            return
        view.say(f"report: {path}")


def first_line(error: Exception) -> str:
    """What went wrong, for one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
