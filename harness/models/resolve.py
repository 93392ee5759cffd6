"""From the `model` configuration to a checked file: packaged, made, fetched or the user's own."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from harness.cachedir import cache_root, guarded, locked, read_json, write_json
from harness.errors import UsageError
from harness.models import hub
from harness.models.config import (
    HubModel,
    InflatedModel,
    ModelConfig,
    PathModel,
    ReferenceModel,
    SyntheticModel,
    parse_model,
)
from harness.models.gguf_info import ModelInfo, model_info
from harness.models.hashes import Tick, files_sha256, remember
from harness.models.shards import shard_paths

DATA = Path(__file__).resolve().parent / "data"
REFERENCE = "reference-q4_k_m.gguf"
REFERENCE_SIDECAR = "reference.json"

Origin = Literal["packaged", "made", "cached", "fetched", "given"]


@dataclass(frozen=True)
class ModelProgress:
    """What is being done to get a model; bytes done and in all, None when not counted.

    `note` marks a line worth keeping on screen: why something is made again, what is waited for.
    """

    message: str
    done: int | None = None
    total: int | None = None
    note: bool = False


Progress = Callable[[ModelProgress], None]


@dataclass(frozen=True)
class ModelFile:
    """A model that is there and was checked.

    `path` is what the engine is given; `sha256` is of the file, or of its shards' hashes, one a
    line; `name` is for people.
    """

    path: Path
    sha256: str
    info: ModelInfo
    name: str
    kind: str
    origin: Origin

    @property
    def paths(self) -> tuple[Path, ...]:
        """All files of the model, in order."""
        return self.info.shards

    def to_json(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        info = {
            k: [str(p) for p in v] if k == "shards" else str(v) if isinstance(v, Path) else v
            for k, v in dataclasses.asdict(self.info).items()
        }
        return {
            "name": self.name,
            "kind": self.kind,
            "origin": self.origin,
            "path": str(self.path),
            "sha256": self.sha256,
            "info": info,
        }


def resolve_model(
    model: Mapping[str, Any] | ModelConfig,
    *,
    cache_dir: Path | str | None = None,
    make: bool = True,
    progress: Progress | None = None,
) -> ModelFile:
    """The file of a model configuration, made or fetched into the cache when needed.

    With `make=False` nothing is made or fetched. UsageError, one line, for a configuration or a
    file that cannot be used; DeviceError when writing fails.
    """
    config = parse_model(model)
    resolver = _Resolver(cache_root(cache_dir), make, progress or (lambda step: None))
    try:
        return resolver.resolve(config)
    except NotMadeError as e:
        where = f" --cache-dir {shlex.quote(str(cache_dir))}" if cache_dir is not None else ""
        raise NotMadeError(f"{e}{where}`", e.name) from None


def write_model(
    model: Mapping[str, Any] | ModelConfig,
    target: Path,
    *,
    cache_dir: Path | str | None = None,
    progress: Progress | None = None,
) -> ModelFile:
    """Write a made model to `target`, not the cache. UsageError for kinds that are not made."""
    resolver = _Resolver(cache_root(cache_dir), True, progress or (lambda step: None))
    config = parse_model(model)
    if not isinstance(config, InflatedModel | SyntheticModel):
        raise UsageError(
            f"-o: a model of kind {config.kind} is not made; only inflated and synthetic ones are"
        )
    target = target.expanduser().absolute()
    if target.is_dir():
        raise UsageError(f"-o: {target} is a directory; give a file")
    recipe = resolver.recipe(config)
    return resolver.finish(target, recipe.write(target), recipe.name, config.kind, "made")


@dataclass(frozen=True)
class _Recipe:
    """How a model is made: `key` names its content, `write` writes it and returns its SHA-256.

    Of several shards `write` is given the path of the first.
    """

    folder: str
    stem: str
    name: str
    key: str
    write: Callable[[Path], str]
    shards: int = 1


class NotMadeError(UsageError):
    """The model could be made, and was not to be; `name` is its name for people."""

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


class _Resolver:
    def __init__(self, cache: Path, make: bool, progress: Progress) -> None:
        self._cache = cache
        self._make = make
        self._progress = progress

    def resolve(self, config: ModelConfig) -> ModelFile:
        """One method for each kind."""
        if isinstance(config, ReferenceModel):
            return self._reference()
        if isinstance(config, PathModel):
            return self._path(config)
        if isinstance(config, HubModel):
            return self._hub(config)
        return self._made(config)

    def finish(
        self, path: Path, sha256: str | None, name: str, kind: str, origin: Origin
    ) -> ModelFile:
        """Read the header, hash when `sha256` is not known yet."""
        info = model_info(path)
        if sha256 is None:
            sha256 = files_sha256(info.shards, self._cache, self._tick("hashing"))
        elif origin == "made" and len(info.shards) == 1:
            remember(path, self._cache, sha256)
        return ModelFile(info.path, sha256, info, name, kind, origin)

    # --- what is there -------------------------------------------------------------------------

    def _reference(self) -> ModelFile:
        path, sidecar = DATA / REFERENCE, DATA / REFERENCE_SIDECAR
        if not path.is_file():
            raise UsageError(
                f"model reference: {path} is missing from this installation; reinstall "
                "moe-harness, or use model=path model.path=FILE"
            )
        promised = (read_json(sidecar) or {}).get("sha256")
        if not isinstance(promised, str):
            raise UsageError(f"model reference: {sidecar} is missing or damaged; reinstall")
        found = self.finish(path, None, "reference Q4_K_M", "reference", "packaged")
        if found.sha256 != promised:
            raise UsageError(
                f"model reference: {path} has SHA-256 {found.sha256}, not {promised}; reinstall"
            )
        return found

    def _path(self, config: PathModel) -> ModelFile:
        if not config.path:
            raise UsageError("model.path: no file given; set model.path=FILE.gguf")
        path = Path(config.path).expanduser()
        return self.finish(path.absolute(), None, path.name, "path", "given")

    def _hub(self, config: HubModel) -> ModelFile:
        path, fetched = hub.locate(
            config,
            self._cache,
            fetch=self._make,
            say=lambda text: self._progress(ModelProgress(text, note=True)),
            tick=lambda done, total: self._progress(ModelProgress("fetching", done, total)),
        )
        origin: Origin = "fetched" if fetched else "cached"
        found = self.finish(path, None, config.name, "hub", origin)
        if config.sha256 is not None and found.sha256 != config.sha256:
            raise UsageError(
                f"model {config.name}: {path} has SHA-256 {found.sha256}, not {config.sha256}; "
                "delete it and fetch it again"
            )
        return found

    # --- what is made --------------------------------------------------------------------------

    def recipe(self, config: InflatedModel | SyntheticModel) -> _Recipe:
        """How to make it; resolves what it is made from."""
        return (
            self._inflated(config)
            if isinstance(config, InflatedModel)
            else _synthetic(config, self._tick("making the synthetic model"))
        )

    def _inflated(self, config: InflatedModel) -> _Recipe:
        from harness.models import inflate

        factor = inflate.check_factor(config.factor)
        base = self.resolve(PathModel(config.base) if config.base else ReferenceModel())
        return _Recipe(
            "inflated",
            f"{base.path.stem}-x{factor}",
            f"{base.name} inflated {factor} times",
            _key("inflated", inflate.RECIPE, base.sha256, factor),
            lambda target: inflate.inflate(
                base.path, target, factor, self._tick("making the inflated model")
            ),
        )

    def _made(self, config: InflatedModel | SyntheticModel) -> ModelFile:
        recipe = self.recipe(config)
        part = f"-00001-of-{recipe.shards:05d}" if recipe.shards != 1 else ""
        name = f"{recipe.stem}-{recipe.key[:12]}{part}.gguf"
        path = self._cache / "models" / recipe.folder / name
        known = self._known(path, recipe)
        if known is not None:
            return self.finish(path, known, recipe.name, config.kind, "cached")
        if not self._make:
            raise NotMadeError(
                f"model {recipe.name}: not made yet; make it with "
                f"`python -m harness model make {_words(config)}",
                recipe.name,
            )
        lock = self._cache / "locks" / f"model-{recipe.key[:12]}.lock"
        with locked(lock, lambda line: self._progress(ModelProgress(line, note=True))):
            known = self._known(path, recipe)
            if known is not None:
                return self.finish(path, known, recipe.name, config.kind, "cached")
            why = " again: it was altered" if path.exists() else ""
            self._progress(ModelProgress(f"making {path.name}{why}", note=True))
            sha256 = recipe.write(path)
            with guarded("writing the model", path):
                write_json(path.with_suffix(".json"), {"key": recipe.key, "sha256": sha256})
        return self.finish(path, sha256, recipe.name, config.kind, "made")

    def _known(self, path: Path, recipe: _Recipe) -> str | None:
        """The SHA-256 of a file that is as it was made, else None."""
        sidecar = read_json(path.with_suffix(".json"))
        if sidecar is None or sidecar.get("key") != recipe.key:
            return None
        files = shard_paths(path, recipe.shards)
        if not all(f.is_file() for f in files):
            return None
        sha256 = files_sha256(files, self._cache, self._tick("hashing"))
        return sha256 if sha256 == sidecar.get("sha256") else None

    def _tick(self, message: str) -> Tick:
        return lambda done, total: self._progress(ModelProgress(message, done, total))


def _synthetic(config: SyntheticModel, tick: Tick) -> _Recipe:
    from harness.models import synth
    from harness.models.geometry import geometry

    shape = geometry(config.geometry)
    label = synth.weights_label(shape, config.arch, config.weights)
    if config.seed < 0:
        raise UsageError(f"model.seed: {config.seed} is negative")
    sizes = dataclasses.asdict(shape) | {"arch": config.arch}
    del sizes["about"]
    parts: list[object] = ["synthetic", synth.RECIPE, sizes, label, config.seed]
    return _Recipe(
        "synthetic",
        f"{config.arch}-{config.geometry}-{label.lower()}-s{config.seed}",
        f"synthetic {config.arch} {config.geometry} {label} seed {config.seed}",
        _key(*parts, *([config.shards] if config.shards != 1 else [])),
        lambda target: synth.write_synthetic(
            target,
            shape,
            arch=config.arch,
            seed=config.seed,
            weights=config.weights,
            shards=config.shards,
            tick=tick,
        ),
        config.shards,
    )


def _words(config: InflatedModel | SyntheticModel) -> str:
    """The command line that makes it."""
    given = (
        f"{f.name}={shlex.quote(str(getattr(config, f.name)))}"
        for f in dataclasses.fields(config)
        if getattr(config, f.name) != f.default
    )
    return " ".join([config.kind, *given])


def _key(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
