"""What a campaign would be: its plan and the time it will take, with nothing made and nothing run.

Connects to the device, which alone knows its cores; reads in earlier campaigns how long cells took.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.campaign.device import connect
from harness.campaign.inputs import binaries, check_routes, model_file, texts
from harness.configure import check
from harness.schema import Config

if TYPE_CHECKING:
    from harness.models import ModelFile
    from harness.planned import Plan
    from harness.records import TargetId
    from harness.report.terminal import Terminal

PLAN_ONLY = "plan only: nothing was run, and the engine was not asked whether it fits"


@dataclass(frozen=True)
class Foreseen:
    """`model`: None while it is not made, so that what is a share of it is not known.

    `seconds`: what a cell took before, by arm, as far as one like it was measured.
    """

    config: Config
    plan: Plan
    model_name: str
    model: ModelFile | None
    seconds: Mapping[str, float]


@dataclass
class Foresight:
    """Of several campaigns; each device is asked once, or, where `ask` is false, none at all."""

    view: Terminal
    ask: bool = True
    _devices: dict[str, tuple[TargetId, int]] = field(default_factory=dict)

    def of(self, data: Mapping[str, Any]) -> Foreseen:
        """Of one composed configuration. Raises UsageError, or DeviceError where none answers."""
        from harness.history import expected_seconds
        from harness.models import NotMadeError
        from harness.plan import make_plan

        config = dataclasses.replace(check(data), plan_only=True)  # nothing is made
        named, engines = texts(config), binaries(config)
        check_routes(config)
        try:
            model = model_file(config, self.view.progress)
        except NotMadeError as e:
            # a fraction of the experts has no size until the model's file says how large they are
            plan = make_plan(config, None, os.cpu_count() or 1, named, engines)
            return Foreseen(config, plan, e.name, None, {})
        target, cores = self._device(config)
        plan = make_plan(config, model.info, cores, named, engines)
        seconds = expected_seconds(Path(config.runs_dir), plan, model.sha256, target)
        return Foreseen(config, plan, model.name, model, seconds)

    def _device(self, config: Config) -> tuple[TargetId | None, int]:
        from harness.device.opening import cores_of

        if not self.ask:  # what ran on whichever device is all there is to go by
            return None, os.cpu_count() or 1
        key = json.dumps(config.target, sort_keys=True, default=str)
        if key not in self._devices:
            with contextlib.ExitStack() as at_end:
                target, machine = connect(config, self.view, at_end)
                self._devices[key] = target.id, cores_of(machine)
        return self._devices[key]


def show(foreseen: Foreseen, view: Terminal) -> None:
    """The plan, and what is not known of it while the model is not made."""
    view.plan(foreseen.plan, foreseen.model_name, foreseen.seconds)
    if foreseen.model is not None:
        return
    config = foreseen.config
    fractions = {name: cell.engine.cache_fraction for name, cell in config.cells.items()}
    asked = [f"{name} {f:g} of the experts" for name, f in fractions.items() if f is not None]
    unknown = f"; the cache in MiB is not known until then: {', '.join(asked)}" if asked else ""
    if config.design.levels is not None:
        unknown += "; the levels, shares of its file, are not known in MiB until then"
    if config.memory.limit_share is not None:
        unknown += "; the limit, a share of its file, is not known in MiB until then"
    view.say(f"model {foreseen.model_name}: not made yet, a run makes it first{unknown}")
