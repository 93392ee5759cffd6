"""Where a campaign goes besides its records: plots, page, MLflow. Nothing there can end it."""

from __future__ import annotations

import contextlib
import shlex
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
        view.say(f"warning: plots were not drawn: {_first_line(e)}", "yellow")


def write_page(
    campaign: Campaign, records: Sequence[CellRecord], verdict: CampaignVerdict, view: Terminal
) -> None:
    """report.html beside the records. What goes wrong there costs one line, never the campaign."""
    from harness.judgement import Measured
    from harness.verbs.report import write_html

    try:
        path = write_html(Measured.read(campaign.directory), records, verdict)
    except Exception as e:  # whatever a template or a drawing meets in what was measured
        view.say(f"warning: report.html was not written: {_first_line(e)}", "yellow")
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
            view.say(f"warning: report.html was not written: {_first_line(e)}", "yellow")
            return
        view.say(f"report: {path}")


def track_what_there_is(campaign: Campaign, view: Terminal) -> None:
    """Log a campaign that ended early. The user is waiting: a second Ctrl-C ends this too."""
    if not campaign.config.tracking.enabled:
        return
    view.say("logging what was measured to MLflow (Ctrl-C skips it)")
    with contextlib.suppress(KeyboardInterrupt):
        track(campaign, view)


def track(campaign: Campaign, view: Terminal) -> None:
    """Log to MLflow. Whatever goes wrong there costs one line, never the campaign."""
    tracking = campaign.config.tracking
    if not tracking.enabled:
        return
    from harness.tracking import default_uri, log_campaign
    from harness.tracking_text import without_credentials

    runs_dir = campaign.directory.parent
    try:
        log_campaign(
            campaign.directory,
            uri=tracking.uri,
            runs_dir=runs_dir,
            experiment=campaign.config.name,
        )
    except Exception as e:  # the campaign is on disk; whatever a store does must not undo that
        view.say(f"warning: not logged to MLflow: {_first_line(e)}", "yellow")
        return
    if tracking.uri is None:
        view.say(
            f"compare runs: mlflow ui --backend-store-uri {shlex.quote(default_uri(runs_dir))}"
        )
    else:
        view.say(f"logged to {without_credentials(tracking.uri)}")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
