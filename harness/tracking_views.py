"""How MLflow's pages show an experiment: its saved views, and what kind of experiment it is. Pure.

MLflow keeps a saved view (menu "Views", top right) as a tag of the experiment: which runs, in which
order, with which columns and charts. Without one its table shows none of what was measured.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

_PREFIX = "mlflow.sharedViewState."
# of views of campaigns that were named: which, and of what
_NARROWED = re.compile(re.escape(_PREFIX) + r"harness-(?P<of>[0-9a-f]{8})-\w+")
# of so many sets of campaigns an experiment keeps its views
MOST_NARROWED = 5
TAG_CHARS = 5000
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
        **{_PREFIX + view.key: _saved(view, _SAVED_MS) for view in VIEWS},
    }


def narrowed(campaigns: Mapping[str, str], cells: Sequence[str]) -> tuple[View, ...]:
    """Our views of these campaigns alone. `campaigns`: their ids, by run; `cells`: runs.

    Of several by the ids of runs, which MLflow can look for in a list; tags it cannot, nor does it
    know `or`. So a cell that is logged later is not among them.
    """
    of = hashlib.sha256(json.dumps([*campaigns, *cells]).encode()).hexdigest()[:8]
    ends = [campaign[-4:] for campaign in campaigns.values()]
    names = " ".join(ends[:3]) + (f" and {len(ends) - 3} more" if len(ends) > 3 else "")
    found = []
    for view in VIEWS:
        if len(campaigns) == 1:
            (campaign,) = campaigns.values()
            only = f"{view.state['searchFilter']} and {tag_is('harness.campaign', campaign)}"
        else:
            kept = campaigns if view is VIEWS[0] else cells
            only = f"attributes.run_id IN ({','.join(map(_quoted, kept))})"
        found.append(
            replace(
                view,
                key=view.key.replace("harness-", f"harness-{of}-"),
                name=f"{names}: {view.name}",  # the menu cuts the end
                state={**view.state, "searchFilter": only},
            )
        )
    return tuple(found)


def tag_is(tag: str, value: str) -> str:
    """In MLflow's query language."""
    return f"tags.`{tag}` = {_quoted(value)}"


def _quoted(text: str) -> str:
    mark = '"' if "'" in text else "'"  # the language has both, and no escapes
    return f"{mark}{text}{mark}"


def narrowed_tags(
    views: Sequence[View], there: Mapping[str, str], now_ms: int
) -> tuple[dict[str, str], list[str]]:
    """What to tag an experiment with for `views`, and which of the tags `there` are to go.

    Nothing where a tag cannot hold them: they are too many campaigns then.
    """
    tags = {_PREFIX + view.key: _saved(view, now_ms) for view in views}
    if any(len(value) > TAG_CHARS for value in tags.values()):
        return {}, []
    last: dict[str, int] = {}
    old = {key: found["of"] for key in there if (found := _NARROWED.fullmatch(key))}
    for key, of in old.items():
        last[of] = max(last.get(of, 0), _saved_ms(there[key]))
    last |= {found["of"]: now_ms for key in tags if (found := _NARROWED.fullmatch(key))}
    kept = sorted(last, key=lambda of: last[of])[-MOST_NARROWED:]
    return tags, [key for key, of in old.items() if of not in kept]


def _saved_ms(tag: str) -> int:
    """When a view was saved; 0 of what nobody can read."""
    try:
        return int(json.loads(tag)["updatedAt"])
    except (ValueError, KeyError, TypeError):
        return 0


def _saved(view: View, saved_ms: int) -> str:
    """As MLflow stores a view; packed, as a tag holds 5000 characters."""
    packed = base64.b64encode(zlib.compress(json.dumps(view.state).encode(), 9)).decode()
    return json.dumps(
        {
            "name": view.name,
            "createdAt": saved_ms,
            "updatedAt": saved_ms,
            "state": f"deflate;{packed}",
        }
    )


def _table(
    kind: str, order_by: str, columns: Sequence[str], widths: Mapping[str, int] | None = None
) -> dict[str, Any]:
    order = [_run_name(), *columns]
    return {
        "searchFilter": tag_is("harness.kind", kind),
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
