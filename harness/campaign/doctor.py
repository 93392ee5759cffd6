"""`python -m harness doctor`: looks at a device, measures a short A/A on it, says what both mean.

Whatever becomes of one part, the others are still told: a diagnosis is most wanted where something
is wrong. What is looked at and how it is judged: `device.checkup`, `doctor`.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from harness import rundir
from harness.campaign.device import connect
from harness.campaign.doctor_parts import (
    EngineMissing,
    Ready,
    Wanted,
    ask_arms,
    compiler_sign,
    engine_sign,
    launcher_alone,
    make_ready_for,
    needs_of,
    store_sign,
)
from harness.configure import check, compose, resolved
from harness.doctor.cli import parse
from harness.doctor.signs import Sign
from harness.errors import DeviceError, HarnessError, Interrupted
from harness.schema import Config

if TYPE_CHECKING:
    from harness.campaign.short_aa import ShortAA
    from harness.device.checkup import CheckUp
    from harness.device.opening import Machine
    from harness.doctor.device_signs import Heat
    from harness.doctor.diagnosis import Diagnosis
    from harness.doctor.noise import Noise
    from harness.doctor.resolution import Resolution
    from harness.records import TargetId
    from harness.report.terminal import Terminal
    from harness.targets.target import Target

# The A/A, where nothing else is asked for: cells of about two seconds on a small computer, as the
# baseline of matched_pair decodes 200 tokens a second there; probes long enough to be repeated.
OURS = (
    "+experiment=aa",
    "name=doctor",
    "design.stop_when_decided=false",
    "cell.n_predict=448",
    "cell.n_ctx=1024",
    "schedule.spacing_s=0.5",
    "schedule.probe_s=0.4",
)
# what simulating may take, beside the A/A
SIMULATE_S = 30.0


@dataclass
class _Found:
    """What was found so far."""

    signs: list[Sign] = field(default_factory=list)
    target: TargetId | None = None
    heat: Heat | None = None
    noise: Noise | None = None
    resolution: Resolution | None = None
    unmeasured: str | None = None
    interrupted: bool = False
    campaign_dir: Path | None = None

    def diagnosis(self) -> Diagnosis:
        from harness.doctor.diagnosis import Diagnosis

        return Diagnosis(
            target=self.target,
            signs=tuple(self.signs),
            heat=self.heat,
            noise=self.noise,
            resolution=self.resolution,
            unmeasured=self.unmeasured,
            interrupted=self.interrupted,
            campaign_dir=None if self.campaign_dir is None else str(self.campaign_dir),
        )


def main(argv: Sequence[str]) -> int:
    """Run the verb; returns the exit code. Raises HarnessError for what cannot be asked for."""
    asked = parse(argv)  # first: --help is answered without what a diagnosis needs
    from harness.doctor.show import as_data, show
    from harness.report.terminal import Terminal

    overrides = (*OURS, f"design.pairs={asked.cells // 2}", *asked.overrides)
    data = compose(overrides)
    config = check(data)
    found = _Found()
    with contextlib.ExitStack() as at_end:
        view = Terminal(sys.stderr if asked.json else None)
        at_end.callback(view.close)
        wanted = Wanted(asked, overrides, config, resolved(data))
        _examine(wanted, found, view, at_end)
    diagnosis = found.diagnosis()
    if asked.json:
        print(json.dumps(as_data(diagnosis), indent=1))
    else:
        show(diagnosis, view)
        view.close()
    return diagnosis.exit_code


def _examine(wanted: Wanted, found: _Found, view: Terminal, at_end: contextlib.ExitStack) -> None:
    asked, config = wanted.asked, wanted.config
    rundir.check_runs_dir(Path(config.runs_dir))
    found.signs += [store_sign(config), compiler_sign()]
    target, machine = connect(config, view, at_end)
    found.target = target.id
    if asked.quick:
        _glance(config, target, machine, found, view)
        return
    directory = Path(config.runs_dir) / rundir.new_id(config.name)
    try:
        ready = make_ready_for(
            config, target, machine, directory=directory, view=view, at_end=at_end
        )
    except EngineMissing as e:
        found.signs.append(e.sign)
        found.unmeasured = "there is no engine"
        return
    found.signs.append(engine_sign(ready.deployed))
    check_up = _check_up(config, target, ready, directory, found)
    if check_up is None:
        return
    if not asked.noise:
        found.unmeasured = "--no-noise"
    elif any(sign.level == "failure" for sign in found.signs):
        found.unmeasured = "something stands against measuring"
    else:
        from harness.campaign.short_aa import ShortAA

        own = ShortAA(wanted, ready, directory, target, check_up)
        _measure(own, found, view)


# --- looking -------------------------------------------------------------------------------------


def _glance(
    config: Config, target: Target, machine: Machine | None, found: _Found, view: Terminal
) -> None:
    from harness.device.checkup import glance
    from harness.doctor.device_signs import device_signs, heat_of

    launcher = launcher_alone(config, target, machine, view)
    from harness.targets.remote import RemoteTarget

    here = rundir_parent(Path(config.runs_dir))
    place = target.home if isinstance(target, RemoteTarget) else here
    check_up = glance(target, launcher, work_dir=place)
    found.heat = heat_of(check_up, config)
    found.signs += device_signs(check_up, config, needs_of(config, None, None), found.heat)
    found.unmeasured = "--quick"


def _check_up(
    config: Config, target: Target, ready: Ready, directory: Path, found: _Found
) -> CheckUp | None:
    """None where the device did not answer, which is a sign then."""
    from harness.device.checkup import check_up
    from harness.doctor.device_signs import device_signs, heat_of

    local = target.id.kind == "local"
    work_dir = rundir_parent(directory) if local else target.work_dir(directory)
    try:
        done = check_up(target, ready.deployed, work_dir=work_dir)
        anon, refused = ask_arms(target, ready, directory)
    except DeviceError as e:
        found.signs.append(Sign("failure", "device", str(e), "nothing can be measured on it"))
        found.unmeasured = "the device did not answer"
        return None
    found.heat = heat_of(done, config)
    found.signs += device_signs(done, config, needs_of(config, ready, anon), found.heat)
    found.signs += refused
    return done


def rundir_parent(path: Path) -> Path:
    """The directory, or the nearest above it that is there."""
    absolute = path.absolute()
    return next(p for p in (absolute, *absolute.parents) if p.is_dir())


# --- measuring -----------------------------------------------------------------------------------


def _measure(own: ShortAA, found: _Found, view: Terminal) -> None:
    from harness.doctor.device_signs import device_signs, heat_of
    from harness.doctor.noise_signs import noise_signs

    view.say(f"A/A: {own.in_words}; Ctrl-C ends it early and keeps what was measured")
    try:
        own.measure(view)
    except Interrupted as e:
        found.interrupted = True
        found.unmeasured = str(e).partition(";")[0]
    except HarnessError as e:
        found.signs.append(
            Sign("failure", "A/A", str(e), "campaigns will fail here too", "mend that first")
        )
    found.campaign_dir = own.directory if own.begun else None
    if not own.begun:
        return
    noise = own.noise()
    found.noise = noise
    # the sensors were seen under load meanwhile, over minutes
    if noise.cells and found.heat is not None:
        before = device_signs(own.check_up, own.config, own.needs, found.heat)
        found.heat = heat_of(own.check_up, own.config, noise.sensor)
        after = device_signs(own.check_up, own.config, own.needs, found.heat, noise.sensor)
        others = [sign for sign in found.signs if sign not in before]
        found.signs = [*others, *after]
    seconds = 0.0 if found.interrupted else SIMULATE_S
    found.resolution = own.resolution(noise, seconds, view)
    found.signs += noise_signs(noise, found.resolution, stable_pct=own.config.verdict.stable_pct)
