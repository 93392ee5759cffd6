"""Puts what a campaign runs where it runs: programs, model, texts, routes. Goes through the target.

On this machine everything stays where it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from harness.build.given import no_moe_engine
from harness.build.programs import build_id_of
from harness.build.types import EngineBuild, EngineFile
from harness.cachedir import cache_root, sha256_file
from harness.device.environment import CellEngine
from harness.engines.native_argv import input_files
from harness.errors import DeviceError, UsageError
from harness.models.hashes import files_sha256
from harness.planned import Arm, GivenBinary, Plan
from harness.targets.android import SettingOutcome
from harness.targets.target import Target

VERSION_S = 60.0


@dataclass(frozen=True)
class Deployed:
    """Paths of the target. `given` (engines of single cells), `inputs`: by their paths here."""

    build: EngineBuild
    model: Path
    model_files: tuple[Path, ...]
    inputs: dict[str, str]
    settings: tuple[SettingOutcome, ...] = ()  # of a phone, as they were switched
    given: dict[str, EngineFile] = field(default_factory=dict)

    def engine_of(self, arm: Arm) -> EngineBuild | EngineFile:
        """What the arm runs."""
        return self.build if arm.binary is None else self.given[arm.binary.path]


def deploy_launcher(target: Target, build: EngineBuild) -> EngineBuild:
    """First of all: with the launcher a device can be claimed, and files checked there."""
    place = target.install_launcher(build.launcher, sha256_file(build.launcher))
    return dataclasses.replace(build, launcher=Path(place))


def deploy(
    target: Target,
    build: EngineBuild,
    *,
    model: Path,
    model_files: Sequence[Path],
    arms: Collection[Arm],
    cache_dir: str | None,
    settings: tuple[SettingOutcome, ...] = (),
    given: Mapping[str, EngineFile] | None = None,
) -> Deployed:
    """Everything else; on a target that was claimed, as a transfer would disturb a measurement.

    All shards of a model go to one directory, whose name is of them all. Raises DeviceError, and
    UsageError for an engine of a cell (`given`, by its path here) that is none on the target.
    """
    sha256 = sha256_file(build.engine)
    engine = target.install(build.engine, sha256)
    own = {
        arm.binary.path: _place_engine(target, (given or {})[arm.binary.path], arm)
        for arm in arms
        if arm.binary is not None
    }
    cache = cache_root(cache_dir)
    hashes = {file: files_sha256((file,), cache) for file in model_files}
    whole = files_sha256(model_files, cache)
    places = {
        file: Path(target.install(file, sha256, beside=whole)) for file, sha256 in hashes.items()
    }
    inputs = {}
    for path in sorted({path for arm in arms for path in input_files(arm)}):
        file = Path(path).absolute()
        try:
            inputs[path] = str(target.install(file, sha256_file(file)))
        except OSError as e:
            raise DeviceError(f"{file}: {e.strerror}") from e
    version = build.version or _version(target, engine)
    return Deployed(
        build=dataclasses.replace(build, engine=Path(engine), version=version, sha256=sha256),
        model=places[model] if model in places else Path(model),
        model_files=tuple(places[file] for file in model_files),
        inputs=inputs,
        settings=settings,
        given=own,
    )


def _place_engine(target: Target, engine: EngineFile, arm: Arm) -> EngineFile:
    key, path = f"cells.{arm.cell}.binary", engine.engine
    if sha256_file(path) != engine.sha256:
        raise UsageError(f"{key}: {path} has changed since it was looked at; start again")
    there = target.install(path, engine.sha256)
    version, build_id = engine.version, engine.build_id
    if version is None:
        version = _version(target, there)
        said = build_id_of(version)
        if said is None:
            raise UsageError(no_moe_engine(key, path, f" on {target.id.name}"))
        build_id = said
    return EngineFile(Path(there), build_id, version, engine.sha256)


def cell_engines(plan: Plan, deployed: Deployed) -> tuple[CellEngine, ...]:
    """The engines that cells brought, each once, in the order of the arms."""
    cells: dict[GivenBinary, list[str]] = {}
    for arm in plan.arms.values():
        if arm.binary is not None:
            cells.setdefault(arm.binary, []).append(arm.name)
    return tuple(
        CellEngine(
            cells=tuple(names),
            path=binary.path,
            sha256=binary.sha256,
            build_id=deployed.given[binary.path].build_id,
            version=deployed.given[binary.path].version,
        )
        for binary, names in cells.items()
    )


def _version(target: Target, engine: PurePath) -> str | None:
    """Of an engine that could not be asked here: made for another processor, and no emulator."""
    done = target.call([str(engine), "--version"], timeout_s=VERSION_S)
    line = done.stdout.decode(errors="replace").partition("\n")[0]
    return line if done.code == 0 and line.startswith("moe-engine ") else None
