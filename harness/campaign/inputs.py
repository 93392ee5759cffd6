"""What a campaign is made from: texts, routes, the model, the engine. Makes what is not there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import UsageError
from harness.schema import Config

if TYPE_CHECKING:
    from harness.build import EngineBuild
    from harness.device.opening import Machine
    from harness.models import ModelFile
    from harness.records import GivenText, Plan
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


def check_texts(plan: Plan) -> None:
    """A resumed campaign decodes and scores the texts that it began with."""
    from harness.models.text import given_text

    for name, arm in plan.arms.items():
        for key in _TEXT_KEYS:
            text: GivenText | None = getattr(arm, key)
            if text is not None and given_text(text.path, f"cells.{name}.{key}") != text:
                raise UsageError(
                    f"cells.{name}.{key}: {text.path} is not what it was when the campaign began; "
                    "restore it, or start a new campaign"
                )


def model_file(config: Config) -> ModelFile:
    """The model, fetched, made or found; NotMadeError where only the plan was asked for."""
    from harness.models import resolve_model
    from harness.models.cli import ProgressLine

    progress = ProgressLine()
    try:
        return resolve_model(
            config.model,
            cache_dir=config.engine.cache_dir,
            make=not config.plan_only,
            progress=progress,
        )
    finally:
        progress.close()


def engine_for(config: Config, target: Target, machine: Machine | None) -> EngineBuild:
    """Engine and launcher for the machine behind a target, given or built; None: this one."""
    from harness.build import ensure_engine, machine_from
    from harness.build.cli import ProgressLine
    from harness.device.opening import compile_host

    there = None
    if machine is not None:
        there = machine_from(machine.uname, machine.cpuinfo, machine.android)
    engine, progress = config.engine, ProgressLine()
    try:
        return ensure_engine(
            binary=_path(engine.binary),
            launcher=_path(engine.launcher),
            llama_cpp_dir=_path(engine.llama_cpp_dir),
            cache_dir=_path(engine.cache_dir),
            toolchain=config.build.toolchain,
            machine=there,
            ndk_dir=_path(config.build.ndk_dir),
            host=compile_host(target, config.session.wait_for_device_s),
            progress=progress,
        )
    finally:
        progress.close()


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
