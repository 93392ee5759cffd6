"""Puts what a campaign runs where it runs: programs, model, texts, routes. Goes through the target.

On this machine everything stays where it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from harness.build.types import EngineBuild
from harness.cachedir import cache_root, sha256_file
from harness.engines.native_argv import input_files
from harness.errors import DeviceError
from harness.models.hashes import files_sha256
from harness.records import Arm
from harness.targets.android import SettingOutcome
from harness.targets.target import Target

VERSION_S = 60.0


@dataclass(frozen=True)
class Deployed:
    """Paths of the target. `inputs`: by their paths on this machine."""

    build: EngineBuild
    model: Path
    model_files: tuple[Path, ...]
    inputs: dict[str, str]
    settings: tuple[SettingOutcome, ...] = ()  # of a phone, as they were switched


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
    arms: Iterable[Arm],
    cache_dir: str | None,
    settings: tuple[SettingOutcome, ...] = (),
) -> Deployed:
    """Everything else; on a target that was claimed, as a transfer would disturb a measurement.

    All shards of a model go to one directory, whose name is of them all. Raises DeviceError.
    """
    engine = target.install(build.engine, sha256_file(build.engine))
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
        build=dataclasses.replace(build, engine=Path(engine), version=version),
        model=places[model] if model in places else Path(model),
        model_files=tuple(places[file] for file in model_files),
        inputs=inputs,
        settings=settings,
    )


def _version(target: Target, engine: PurePath) -> str | None:
    """Of an engine that could not be asked here: made for another processor, and no emulator."""
    done = target.call([str(engine), "--version"], timeout_s=VERSION_S)
    line = done.stdout.decode(errors="replace").partition("\n")[0]
    return line if done.code == 0 and line.startswith("moe-engine ") else None
