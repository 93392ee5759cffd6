"""`--info`: what experiments there are, and all about one of them. Makes and runs nothing."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harness.configure import comment_of, compose, conf_dir, described, options
from harness.errors import UsageError
from harness.typed import nearest
from harness.words import counted, duration

if TYPE_CHECKING:
    from harness.campaign.foresight import Foreseen


def inform(name: str, overrides: Sequence[str], *, as_json: bool) -> int:
    """Print it. `name`: of an experiment, "": of all; `overrides`: as a run would be given them."""
    if name:
        facts = _of_night(name, overrides) if _is_night(name) else _of_one(name, overrides)
        print(json.dumps(facts, indent=1) if as_json else "\n".join(_in_lines(facts)))
        return 0
    if overrides:
        raise UsageError(f"--info: {overrides[0]}: give the experiment, --info NAME {overrides[0]}")
    rows = [
        {"name": name, "question": question, "command": _command(name, ())}
        for name, question in described(conf_dir(), "experiment")
    ]
    if as_json:
        print(json.dumps(rows, indent=1))
        return 0
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        print(f"{row['name'].ljust(width)}  {row['question']}")
    print("\nall about one: python -m harness --info NAME")
    return 0


def _is_night(name: str) -> bool:
    from harness.sweep.nightly import is_night

    names = options(conf_dir(), "experiment")
    if name not in names:
        raise UsageError(f"--info {name}: no such experiment{nearest(name, names)}")
    return is_night([f"+experiment={name}"])


def _head(name: str, overrides: Sequence[str]) -> dict[str, Any]:
    question, *rest = comment_of(conf_dir(), "experiment", name)
    return {
        "name": name,
        "question": question,
        "description": rest,
        "command": _command(name, overrides),
    }


def _of_one(name: str, overrides: Sequence[str]) -> dict[str, Any]:
    """What it compares, and how long that takes here."""
    from harness.campaign.foresight import Foresight
    from harness.report.tables import differing_settings, said_of_all, settings_of
    from harness.report.terminal import Terminal

    view = Terminal()
    foreseen = Foresight(view, ask=False).of(compose([f"+experiment={name}", *overrides]))
    view.close()
    plan = foreseen.plan
    differing = differing_settings(plan.arms.values())
    seconds, unknown = _expected(foreseen)
    return {
        **_head(name, overrides),
        "design": plan.design,
        "baseline": plan.baseline,
        "model": foreseen.model_name,
        "model_made": foreseen.model is not None,
        "cells": len(plan.cells),
        "arms": {
            arm.name: {title: settings_of(arm)[title] for title in differing}
            for arm in plan.arms.values()
        },
        "in_all_arms": said_of_all(plan.arms.values(), differing),
        "at_most": plan.coins is not None,
        "expected_s": seconds,
        "unknown_cells": unknown,
    }


def _expected(foreseen: Foreseen) -> tuple[float, int]:
    from harness.history import expected_in_all

    return expected_in_all(foreseen.plan, foreseen.seconds)


def _of_night(name: str, overrides: Sequence[str]) -> dict[str, Any]:
    from harness.sweep.nightly import night_of

    _, night, campaigns = night_of([f"+experiment={name}", *overrides])
    return {
        **_head(name, overrides),
        "budget_s": night.budget_s,
        "campaigns": [" ".join(c.varied) for c in campaigns],
    }


def _command(name: str, overrides: Sequence[str]) -> str:
    return shlex.join(["python", "-m", "harness", f"+experiment={name}", *overrides])


def _in_lines(facts: dict[str, Any]) -> list[str]:
    lines = [f"{facts['name']}: {facts['question']}", *(f"  {s}" for s in facts["description"]), ""]
    if "campaigns" in facts:
        lines.append(f"a sweep, {duration(facts['budget_s'])} at most, most valuable first:")
        lines += [f"  {i + 1} {what}" for i, what in enumerate(facts["campaigns"])]
    else:
        lines += _arms_in_lines(facts)
    return [*lines, f"run: {facts['command']}"]


def _arms_in_lines(facts: dict[str, Any]) -> list[str]:
    cells = counted(facts["cells"], "cell")
    most = "at most " if facts["at_most"] else ""
    made = "" if facts["model_made"] else ", not made yet"
    lines = [f"design {facts['design']}, {most}{cells}; model {facts['model']}{made}"]
    arms: dict[str, dict[str, str]] = facts["arms"]
    titles = list(next(iter(arms.values())))
    rows = [["arm", *titles], *([name, *own.values()] for name, own in arms.items())]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells_of = (text.ljust(width) for text, width in zip(row, widths, strict=True))
        mark = "  (baseline)" if row[0] == facts["baseline"] else ""
        lines.append(f"  {'  '.join(cells_of)}".rstrip() + mark)
    lines.append(f"  in all: {facts['in_all_arms']}")
    known, unknown = duration(facts["expected_s"]), facts["unknown_cells"]
    if unknown:
        beside = f" of waits and cells that ran before; {counted(unknown, 'cell')} unknown"
    else:
        beside = ", by earlier campaigns"
    lines.append(f"time expected: {most}{known}{beside}")
    return lines
