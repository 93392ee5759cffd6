"""Where in MLflow's pages a campaign is to be looked at: addresses, and the runs behind them.

Reads a tracking store through its client; writes the views of an experiment into its tags.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from harness.tracking_views import (
    VIEWS,
    View,
    experiment_tags,
    narrowed,
    narrowed_tags,
    tag_is,
)

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

# MLflow has two sides, and shows the one for chat models unless told otherwise
_SIDE = "workflowType=machine_learning"
_CAMPAIGNS = tag_is("harness.kind", "campaign")
# Runs that MLflow's comparison shows side by side before it is no longer one.
COMPARED_AT_MOST = 100


@dataclass(frozen=True)
class CampaignPages:
    """A campaign in the store: its experiment and runs."""

    campaign: str
    experiment: str
    experiment_id: str
    run_id: str
    cell_run_ids: tuple[str, ...]


def newest(client: MlflowClient) -> CampaignPages | None:
    """The campaign that started last; None where none is logged."""
    experiments = _experiments(client)
    if not experiments:
        return None
    runs = client.search_runs(
        list(experiments),
        _CAMPAIGNS,
        max_results=1,
        order_by=["attributes.start_time DESC"],
    )
    return _pages(client, runs[0], experiments) if runs else None


def find(client: MlflowClient, campaign: str) -> CampaignPages | None:
    """The campaign of that id."""
    experiments = _experiments(client)
    runs = client.search_runs(
        list(experiments),
        f"{tag_is('harness.campaign', campaign)} and {_CAMPAIGNS}",
        max_results=1,
    )
    return _pages(client, runs[0], experiments) if runs else None


def campaigns(client: MlflowClient, most: int = 100) -> list[str]:
    """The ids of the newest campaigns of the store, newest first."""
    experiments = _experiments(client)
    if not experiments:
        return []
    runs = client.search_runs(
        list(experiments),
        _CAMPAIGNS,
        max_results=most,
        order_by=["attributes.start_time DESC"],
    )
    return [str(run.data.tags["harness.campaign"]) for run in runs]


def keep_views(client: MlflowClient) -> None:
    """Every experiment with campaigns has our views; those that a user made stay."""
    for experiment in client.search_experiments():
        missing = {k: v for k, v in experiment_tags().items() if experiment.tags.get(k) != v}
        if missing and client.search_runs([experiment.experiment_id], _CAMPAIGNS, max_results=1):
            for key, value in missing.items():
                client.set_experiment_tag(experiment.experiment_id, key, value)


def keep_narrowed(client: MlflowClient, pages: Sequence[CampaignPages]) -> dict[str, list[View]]:
    """Views of these campaigns alone, by experiment; none where they have too many cells."""
    found: dict[str, list[View]] = {}
    for experiment_id in dict.fromkeys(p.experiment_id for p in pages):
        own = [p for p in pages if p.experiment_id == experiment_id]
        if len(own) > 1 and any(len(p.cell_run_ids) >= COMPARED_AT_MOST for p in own):
            continue  # not all of them are known
        views = narrowed(
            {p.run_id: p.campaign for p in own}, [r for p in own for r in p.cell_run_ids]
        )
        there = client.get_experiment(experiment_id).tags
        tags, outdated = narrowed_tags(views, there, round(time.time() * 1000))
        for key, value in tags.items():
            client.set_experiment_tag(experiment_id, key, value)
        for key in outdated:
            client.delete_experiment_tag(experiment_id, key)
        if tags:
            found[experiment_id] = list(views)
    return found


def _experiments(client: MlflowClient) -> dict[str, str]:
    return {str(e.experiment_id): str(e.name) for e in client.search_experiments()}


def _pages(client: MlflowClient, run: Any, experiments: dict[str, str]) -> CampaignPages:
    experiment_id = str(run.info.experiment_id)
    cells = client.search_runs(
        [experiment_id],
        f"tags.`mlflow.parentRunId` = '{run.info.run_id}'",
        max_results=COMPARED_AT_MOST,
        order_by=["attributes.run_name ASC"],  # they begin with their place in the campaign
    )
    return CampaignPages(
        campaign=str(run.data.tags["harness.campaign"]),
        experiment=experiments[experiment_id],
        experiment_id=experiment_id,
        run_id=str(run.info.run_id),
        cell_run_ids=tuple(str(c.info.run_id) for c in cells),
    )


# --- addresses -----------------------------------------------------------------------------------


def view_url(base: str, experiment_id: str, view: View) -> str:
    """The experiment's runs as `view` arranges them."""
    return (
        f"{base}/#/experiments/{experiment_id}/runs?viewStateShareKey={view.key}{view.mode}&{_SIDE}"
    )


def compare_url(base: str, pages: Iterable[CampaignPages]) -> str:
    """Side by side, all cells of these campaigns."""
    found = list(pages)
    runs = [r for p in found for r in p.cell_run_ids][:COMPARED_AT_MOST]
    experiments = list(dict.fromkeys(p.experiment_id for p in found))
    return f"{base}/#/compare-runs?runs={_json(runs)}&experiments={_json(experiments)}&{_SIDE}"


def run_url(base: str, pages: CampaignPages) -> str:
    """The campaign's own page, with the verdict."""
    return f"{base}/#/experiments/{pages.experiment_id}/runs/{pages.run_id}?{_SIDE}"


def addresses(
    base: str, pages: Sequence[CampaignPages], views: Mapping[str, Sequence[View]]
) -> list[tuple[str, list[tuple[str, str]]]]:
    """What to look at, and where: of these campaigns alone, then of their whole experiments.

    `views`: of these campaigns, by experiment.
    """
    several = len(pages) > 1
    own = [(f"verdict of {p.campaign}" if several else "verdict", run_url(base, p)) for p in pages]
    if sum(len(p.cell_run_ids) for p in pages) > 1:
        own.append(("compare cells", compare_url(base, pages)))
    experiments = {p.experiment_id: p.experiment for p in pages}
    for experiment_id, narrow in views.items():
        of = f" of {experiments[experiment_id]}" if len(experiments) > 1 else ""
        own += [
            (shown.name + of, view_url(base, experiment_id, view))
            for shown, view in zip(VIEWS, narrow, strict=True)
        ]
    found = [(" and ".join(p.campaign for p in pages), own)]
    for experiment_id, name in experiments.items():
        whole = [(view.name, view_url(base, experiment_id, view)) for view in VIEWS]
        found.append((f"all campaigns of {name}, newest first", whole))
    return found


def _json(values: Sequence[str]) -> str:
    return quote(json.dumps(values, separators=(",", ":")), safe="")
