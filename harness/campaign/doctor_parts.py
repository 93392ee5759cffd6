"""What a doctor's examination needs: engine, model, device; and what it says of them."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.campaign.device import make_ready
from harness.campaign.inputs import binaries, check_routes, model_file, texts
from harness.doctor.cli import Asked
from harness.doctor.signs import Sign
from harness.errors import DeviceError, HarnessError, UsageError
from harness.plan import make_plan
from harness.schema import Config

if TYPE_CHECKING:
    from harness.device.deploy import Deployed
    from harness.device.opening import Machine
    from harness.device.suitability import Needs
    from harness.models import ModelFile
    from harness.planned import Plan
    from harness.report.terminal import Terminal
    from harness.targets.target import Target


# of an error about a key of the configuration, rather than about what is there
_SETTING = re.compile(r"(engine|build|target|model|cells?|memory|session|schedule)\.\w+")


class EngineMissing(Exception):  # noqa: N818 - carried to where it is told
    """There is no engine for the device; the sign says why."""

    def __init__(self, sign: Sign) -> None:
        """`sign`: what is told of it."""
        super().__init__(sign.seen)
        self.sign = sign


@dataclass(frozen=True)
class Wanted:
    """`overrides`: from which the configuration comes; `data`: it, resolved, as it is stored."""

    asked: Asked
    overrides: tuple[str, ...]
    config: Config
    data: dict[str, Any]


@dataclass(frozen=True)
class Ready:
    """What the A/A would run, on a device that was claimed for it."""

    plan: Plan
    model: ModelFile
    deployed: Deployed

    @property
    def model_bytes(self) -> int:
        """Of all its shards."""
        return sum(path.stat().st_size for path in self.model.info.shards)


def make_ready_for(
    config: Config,
    target: Target,
    machine: Machine | None,
    *,
    directory: Path,
    view: Terminal,
    at_end: contextlib.ExitStack,
) -> Ready:
    """Raises EngineMissing; DeviceBusy where a campaign measures; UsageError for settings."""
    from harness.device.opening import cores_of
    from harness.targets.target import DeviceBusy

    named, engines = texts(config), binaries(config)
    check_routes(config)
    model = model_file(config, view.progress)
    plan = make_plan(config, model.info, cores_of(machine), named, engines)
    try:
        deployed = make_ready(
            config,
            target,
            machine,
            directory=directory,
            plan=plan,
            model=model,
            view=view,
            at_end=at_end,
        )
    except DeviceBusy:
        raise
    except HarnessError as e:
        if isinstance(e, UsageError) and _SETTING.match(str(e)):
            raise
        seen, _, advice = str(e).partition("; ")
        means = "nothing can be built, put there or run"
        raise EngineMissing(Sign("failure", "engine", seen, means, advice or None)) from e
    return Ready(plan, model, deployed)


def engine_sign(deployed: Deployed) -> Sign:
    """Which engine would be measured."""
    build = deployed.build
    version = build.version or f"not a moe-engine's version line; build {build.build_id[:12]}"
    how = {"built": "built now", "cached": "built before", "given": "given (engine.binary)"}
    return Sign(
        "ok", "engine", f"{version}, {how[build.source]}", "it runs here, and so will campaigns"
    )


def compiler_sign() -> Sign:
    """What there is on this machine to build engines with, for it and for others."""
    from harness.build.cross import find_zig
    from harness.build.machine import this_machine
    from harness.build.toolchain import find_toolchain, links_statically

    about = "compiler"
    try:
        find_zig(this_machine())
        zig = "zig is installed, for other processors and Android"
    except UsageError:
        zig = "no zig"
    try:
        tools = find_toolchain()
    except UsageError as e:
        seen, _, advice = str(e).partition("; ")
        means = "an engine that is not built yet can only be given, or built with zig"
        return Sign("warning", about, f"{seen}; {zig}", means, advice or "install g++")
    static = "static programs" if links_statically(tools) else "no static programs"
    version = tools.compiler_id.partition("\n")[2].partition("\n")[0]
    return Sign("ok", about, f"{version} ({static}); {zig}", "engines can be built here")


def launcher_alone(config: Config, target: Target, machine: Machine | None, view: Terminal) -> Path:
    """On the target; what has to be built first is built only where nobody measures."""
    from harness.build import machine_from
    from harness.build.cli import shown_on
    from harness.build.engine import check_published, ensure_program
    from harness.build.recipe import LAUNCHER, Order, make_recipe
    from harness.build.types import Reporter
    from harness.cachedir import cache_root, sha256_file
    from harness.device.claim import claim, owner_of
    from harness.device.opening import compile_host

    if config.engine.launcher is not None:
        program = Path(config.engine.launcher)
        if not program.is_file():
            raise UsageError(f"engine.launcher: {program}: there is no such file")
    else:
        there = None
        if machine is not None:
            there = machine_from(machine.uname, machine.cpuinfo, machine.android)
        host = compile_host(target, config.session.wait_for_device_s)
        order = Order(None, "", config.build.toolchain, there, _path(config.build.ndk_dir), host)
        cache_dir = _path(config.engine.cache_dir)
        recipe = make_recipe(LAUNCHER, order)
        folder = cache_root(cache_dir) / "bin" / f"{LAUNCHER}-{recipe.key[:24]}"
        if target.id.kind == "local" and check_published(folder, recipe) is not None:
            # compiling would be in the way of whoever measures here
            owner = owner_of(Path(config.runs_dir) / "doctor")
            claim(target, owner, wait_s=config.session.wait_for_device_s, say=view.say)
        report = Reporter(shown_on(view.progress))
        try:
            program = ensure_program(LAUNCHER, order, cache_dir, report).path
        finally:
            view.progress.close()
    return Path(target.install_launcher(program, sha256_file(program)))


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


# --- what is asked of it -------------------------------------------------------------------------


def needs_of(config: Config, ready: Ready | None, anon_bytes: int | None) -> Needs:
    """As for a campaign of these cells."""
    from harness.device.suitability import Needs, cell_bytes

    arms = () if ready is None else ready.plan.arms.values()
    cells = () if ready is None else ready.plan.cells
    return Needs(
        write_bytes=sum(cell_bytes(ready.plan.arms[c.arm]) for c in cells) if ready else 0,
        model_bytes=None if ready is None else ready.model_bytes,
        anon_bytes=anon_bytes,
        direct_io=any(a.engine.moe_stream and a.engine.direct_io for a in arms),
        probes=config.schedule.probe_s > 0,
        gate=config.schedule.gate,
        session=config.session,
    )


def ask_arms(target: Target, ready: Ready, directory: Path) -> tuple[int | None, list[Sign]]:
    """Anonymous memory of a cell, and the engine's refusal where it refuses it."""
    from harness.device.preflight import check_arm, scratch_dir
    from harness.engines.native_argv import placed_arm

    deployed = ready.deployed
    arm = next(iter(ready.plan.arms.values()))  # the others are the same
    with scratch_dir(target, directory) as scratch:
        try:
            placed = placed_arm(arm, deployed.inputs)
            return check_arm(target, deployed.build.engine, deployed.model, placed, scratch), []
        except (UsageError, DeviceError) as e:
            seen, _, advice = str(e).partition("; ")
            means = "no cell of the A/A can run"
            return None, [Sign("failure", "engine", seen, means, advice or None)]


def store_sign(config: Config) -> Sign:
    """Whether results can be logged; asked cheaply, and nothing is written."""
    from harness.tracking_store import TrackingError, store_state

    about = "MLflow"
    if not config.tracking.enabled:
        return Sign("note", about, "tracking is off", "nothing is logged; campaigns are on disk")
    try:
        seen = store_state(config.tracking.uri, Path(config.runs_dir))
    except TrackingError as e:
        return Sign(
            "warning",
            about,
            str(e),
            "campaigns are measured and kept on disk, but not logged",
            "start the server, or tracking.uri=ADDRESS, or tracking=off",
        )
    return Sign("ok", about, seen, "campaigns are logged there")
