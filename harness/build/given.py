"""Engines that are there already: named by the user for single cells, or found in the cache.

Reads the files, runs `--version`; builds nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

from harness.build.engine import MANIFEST
from harness.build.machine import TargetMachine, this_machine
from harness.build.programs import describe, program_at
from harness.build.recipe import ENGINE
from harness.build.types import EngineFile
from harness.cachedir import cache_root, read_json, sha256_file
from harness.errors import UsageError
from harness.planned import GivenBinary


def given_binary(text: str, key: str) -> GivenBinary:
    """The executable that a cell asks for, as it is now. UsageError where it is none."""
    path = program_at(Path(text), key)
    try:
        return GivenBinary(str(path), sha256_file(path))
    except OSError as e:
        raise UsageError(f"{key}: {path} cannot be read: {e.strerror}") from None


def given_engine(binary: GivenBinary, key: str, machine: TargetMachine | None) -> EngineFile:
    """The same, which must be a moe-engine for `machine`. UsageError where it is not.

    `version` None: nothing here can run it, so it is still to be asked.
    """
    path = program_at(Path(binary.path), key, machine)
    try:
        version, build_id = describe(path, machine)
    except UsageError as e:
        raise UsageError(f"{key}: {e}") from None
    here = machine is None or machine.architecture == this_machine().architecture
    if version is None and here:
        raise UsageError(no_moe_engine(key, path))
    return EngineFile(path, build_id, version, binary.sha256)


def no_moe_engine(key: str, path: Path, where: str = "") -> str:
    """What to say of a program that does not know its version as an engine does."""
    return (
        f"{key}: {path} is no moe-engine: its `--version`{where} does not answer "
        "`moe-engine VERSION build ID`; give one, or null for the campaign's engine"
    )


def cached_engine(build_id: str, cache_dir: Path | None = None) -> EngineFile | None:
    """The engine that was built under that id, if it is in the cache, unaltered.

    Ids are those of records (`identity.engine_build_id`); each is of one combination of sources,
    compiler, level and system, so that at most one engine can be meant. Raises UsageError where
    there can be no cache.
    """
    for manifest in sorted((cache_root(cache_dir) / "bin").glob(f"{ENGINE}-*/{MANIFEST}")):
        said = read_json(manifest) or {}
        path = manifest.with_name(ENGINE)
        if said.get("build_id") != build_id or not os.access(path, os.X_OK):
            continue
        try:
            sha256 = sha256_file(path)
        except OSError:
            continue
        if sha256 != said.get("sha256"):
            continue
        version = said.get("version")
        return EngineFile(path, build_id, version if isinstance(version, str) else None, sha256)
    return None
