"""How MLflow's pages show an experiment: its saved views, and what kind of experiment it is. Pure.

MLflow keeps a saved view (menu "Views", top right) as a tag of the experiment: which runs, in which
order, with which columns and charts. Without one its table shows none of what was measured.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_PREFIX = "mlflow.sharedViewState."
# MLflow wants a time for each; one that never changes keeps the tags what they are
_SAVED_MS = 1_790_000_000_000
_PLAIN = "Model metrics"  # MLflow's section for metrics without a group
_SECTIONS = (_PLAIN, "token", "use", "vitals", "work")

# the first in each section, in this order; MLflow adds charts for all others
_FIRST_CHARTS = {
    _PLAIN: ("tok_s", "hit_rate", "bytes_per_token"),
    "token": ("wall_ms", "read_bytes", "stall_ms", "stall_ms_per_token"),
}
# of cells: what speed was bought with, side by side; then whether to believe it
_CELL_METRICS = (
    *("tok_s", "hit_rate", "bytes_per_token", "spec_useful_share", "given_perplexity"),
    "anon_peak_bytes",
)
_WIDE, _NARROW = 190, 80


@dataclass(frozen=True)
class View:
    """A saved view: `key` is in its address, `name` stands in the menu, `state` is MLflow's."""

    key: str
    name: str
    mode: str = ""
    state: Mapping[str, Any] = field(default_factory=dict)


def experiment_tags() -> dict[str, str]:
    """What an experiment of campaigns is tagged with."""
    return {
        # else MLflow shows its pages for chat models first
        "mlflow.experimentKind": "custom_model_development",
        "mlflow.experiment.primaryMetric.name": "tok_s",
        **{_PREFIX + view.key: _saved(view) for view in VIEWS},
    }


def _saved(view: View) -> str:
    """As MLflow stores a view; packed, as a tag holds 5000 characters."""
    packed = base64.b64encode(zlib.compress(json.dumps(view.state).encode(), 9)).decode()
    return json.dumps(
        {
            "name": view.name,
            "createdAt": _SAVED_MS,
            "updatedAt": _SAVED_MS,
            "state": f"deflate;{packed}",
        }
    )


def _table(
    kind: str, order_by: str, columns: Sequence[str], widths: Mapping[str, int] | None = None
) -> dict[str, Any]:
    order = [_run_name(), *columns]
    return {
        "searchFilter": f"tags.`harness.kind` = '{kind}'",
        "orderByKey": order_by,
        "orderByAsc": False,
        "lifecycleFilter": "Active",
        "selectedColumns": list(columns),
        "columnOrder": order,
        "columnWidths": {
            **{name: max(_NARROW, 20 + 7 * len(name.partition("`")[2])) for name in order},
            _run_name(): _WIDE,
            **(widths or {}),
        },
        "runListHidden": False,
        "runsHiddenMode": "FIRST_20_RUNS",  # how many its charts show
    }


def _charts() -> dict[str, Any]:
    """All cells' metrics: lines by token on top, then a group a section."""
    return {
        "compareRunCharts": [
            {
                "uuid": f"harness-{section}-{metric}",
                "type": "LINE",
                "metricSectionId": f"harness-{section}",
                "metricKey": metric if section == _PLAIN else f"{section}/{metric}",
                "displayName": metric,
                "runsCountToCompare": 20,
                "deleted": False,
                "isGenerated": True,
                "lineSmoothness": 0,
                "xAxisScaleType": "linear",
                "scaleType": "linear",
                "range": {},
                "xAxisKey": "step",
                "selectedXAxisMetricKey": "",
                "yAxisKey": "metric",
                "yAxisExpressions": [],
                "ignoreOutliers": False,
                "useGlobalXaxisKey": True,
                "useGlobalLineSmoothing": True,
            }
            for section, metrics in _FIRST_CHARTS.items()
            for metric in metrics
        ],
        "compareRunSections": [
            {
                "uuid": f"harness-{name}",
                "name": name,
                "display": name != "work",
                "isReordered": name in _FIRST_CHARTS,
                "deleted": False,
                "isGenerated": True,
            }
            for name in _SECTIONS
        ],
        "isAccordionReordered": True,
    }


def _metric(name: str) -> str:
    return f"metrics.`{name}`"


def _param(name: str) -> str:
    return f"params.`{name}`"


def _tag(name: str) -> str:
    return f"tags.`{name}`"


def _run_name() -> str:
    return "attributes.`Run Name`"


_CELLS = _table(
    "cell",
    _tag("harness.order"),  # any order but the default one lists cells without their campaigns
    [
        _tag("harness.timing"),
        *map(_metric, _CELL_METRICS),
        *map(
            _param,
            ("data_limit_bytes", "arm", "level", "cache_mb", "io_threads", "engine_build_id"),
        ),
    ],
)

VIEWS = (
    View(
        "harness-campaigns",
        "campaigns and verdicts",
        state=_table(
            "campaign",
            _tag("harness.order"),  # by time MLflow folds the campaigns of a sweep into it
            [
                *(_tag("harness.sweep_overrides"), _tag("verdict.drift")),
                *(_tag("harness.outcomes"), _tag("harness.verdict")),
            ],
            {_run_name(): 290, _tag("harness.outcomes"): 330, _tag("harness.verdict"): 900},
        ),
    ),
    View("harness-cells", "cells side by side", state=_CELLS),
    View("harness-tokens", "cells by token", "&compareRunsMode=CHART", {**_CELLS, **_charts()}),
)
