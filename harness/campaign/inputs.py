"""What a campaign is made from: texts, routes, the model, the engine. Makes what is not there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import UsageError
from harness.schema import Config

if TYPE_CHECKING:
    from harness.build import EngineBuild, EngineFile
    from harness.device.opening import Machine
    from harness.models import ModelFile
    from harness.planned import GivenBinary, GivenText, Plan
    from harness.progress import Progress
    from harness.targets.target import Target

# what names a text, of a cell and of its arm
_TEXT_KEYS = ("text", "perplexity")


def texts(config: Config) -> dict[str, GivenText]:
    """All texts that are decoded or scored, as they are named. Raises UsageError."""
    from harness.models.text import given_text

    named = {
        f"cells.{name}.{key}": getattr(cell, key)
        for name, cell in config.cells.items()
        for key in _TEXT_KEYS
    }
    return {text: given_text(text, key) for key, text in named.items() if text is not None}


def binaries(config: Config) -> dict[str, GivenBinary]:
    """All engines that cells bring, as they are named. Raises UsageError."""
    from harness.build import given_binary

    found: dict[str, GivenBinary] = {}
    for name, cell in config.cells.items():
        if cell.binary is not None and cell.binary not in found:
            found[cell.binary] = given_binary(cell.binary, f"cells.{name}.binary")
    return found


def check_routes(config: Config) -> None:
    """Raises UsageError for a recorded trace that is not there."""
    for name, cell in config.cells.items():
        if cell.engine.forced_routes is None:
            continue
        path = Path(cell.engine.forced_routes).absolute()
        if not path.is_file():
            wrong = "is not a file" if path.exists() else "there is no such file"
            raise UsageError(
                f"cells.{name}.engine.forced_routes: {path}: {wrong}; "
                "give a recorded route trace, or null"
            )


def check_given(plan: Plan) -> None:
    """A resumed campaign has the engines that it began with, and decodes and scores its texts."""
    from harness.build import given_binary
    from harness.models.text import given_text

    for arm in plan.arms.values():
        key = f"cells.{arm.cell}.binary"
        if arm.binary is not None and given_binary(arm.binary.path, key) != arm.binary:
            raise UsageError(
                f"{key}: {arm.binary.path} is not the engine that it was when the campaign began; "
                "restore it, or start a new campaign"
            )
    for name, arm in plan.arms.items():
        for key in _TEXT_KEYS:
            text: GivenText | None = getattr(arm, key)
            if text is not None and given_text(text.path, f"cells.{name}.{key}") != text:
                raise UsageError(
                    f"cells.{name}.{key}: {text.path} is not what it was when the campaign began; "
                    "restore it, or start a new campaign"
                )


def model_file(config: Config, progress: Progress) -> ModelFile:
    """The model, fetched, made or found; NotMadeError where only the plan was asked for."""
    from harness.models import resolve_model
    from harness.models.cli import shown_on

    try:
        return resolve_model(
            config.model,
            cache_dir=config.engine.cache_dir,
            make=not config.plan_only,
            progress=shown_on(progress),
        )
    finally:
        progress.close()


@dataclass(frozen=True)
class Engines:
    """`build`: the campaign's engine, and the launcher. `given`: those of cells, by their path."""

    build: EngineBuild
    given: dict[str, EngineFile]


def engines_for(
    config: Config, plan: Plan, target: Target, machine: Machine | None, progress: Progress
) -> Engines:
    """Everything to run on the machine behind a target, given or built; None: this one.

    Where every cell brings an engine the campaign's is that of the first, and nothing is built.
    """
    from harness.build import ensure_engine, given_engine, machine_from
    from harness.build.cli import shown_on
    from harness.device.opening import compile_host

    there = None
    if machine is not None:
        there = machine_from(machine.uname, machine.cpuinfo, machine.android)
    engine = config.engine
    # before anything is built, which takes minutes
    own = {
        arm.binary.path: given_engine(arm.binary, f"cells.{arm.cell}.binary", there)
        for arm in plan.arms.values()
        if arm.binary is not None
    }
    binary = engine.binary
    if all(arm.binary is not None for arm in plan.arms.values()):
        binary = next(iter(own))
    try:
        build = ensure_engine(
            binary=_path(binary),
            launcher=_path(engine.launcher),
            llama_cpp_dir=_path(engine.llama_cpp_dir),
            cache_dir=_path(engine.cache_dir),
            toolchain=config.build.toolchain,
            machine=there,
            ndk_dir=_path(config.build.ndk_dir),
            host=compile_host(target, config.session.wait_for_device_s),
            progress=shown_on(progress),
        )
        return Engines(build, own)
    finally:
        progress.close()


OWN = "the campaign's engine"


def say_alike(plan: Plan, engines: Engines, say: Callable[[str], None]) -> None:
    """Engines of different names that are one file: the comparison may be meant to be another."""
    known: dict[str, tuple[str, str]] = {}
    arms = sorted(plan.arms.values(), key=lambda arm: arm.name != plan.baseline)
    for arm in arms:
        if arm.binary is None:
            path, sha256 = str(engines.build.engine), engines.build.sha256
            key = OWN
        else:
            path, sha256 = arm.binary.path, arm.binary.sha256
            key = f"cells.{arm.cell}.binary"
        other, its = known.setdefault(sha256 or "", (key, path))
        # one path given to several cells is one engine on purpose; given beside the campaign's own
        # it was meant to be another
        if its != path or (other != key and OWN in (other, key)):
            say(f"warning: {key}: {path} is, byte for byte, {its} ({other}): one build, not two")


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
