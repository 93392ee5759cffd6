"""Imported cells as a campaign directory like any other. Writes one new directory in `runs_dir`.

It appears whole or not at all: written beside, then renamed. Only the journal is forced to disk,
since nothing that was measured can be lost; its hashes would show what is.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import harness
from harness import rundir
from harness.errors import DeviceError
from harness.importers.measures import Row, tokens_csv
from harness.journal import JOURNAL, RECORD, hashes_of
from harness.jsonable import to_json
from harness.planned import Plan
from harness.records import CellRecord

# what a cell's directory holds under these names is ours, and read as such
_OURS = frozenset(
    (RECORD, "tokens.csv", "samples.csv", "stdout.txt", "stderr.txt", "telemetry.jsonl")
)
# as `environment.json` of a campaign of our own (device.environment), of which nothing is known
_ENVIRONMENT = (
    *("hostname", "os", "kernel", "architecture", "hypervisor", "cpu", "mem_total_bytes"),
    *("swap_total_bytes", "page_bytes", "model_storage", "runs_storage", "model_path"),
    *("model_bytes", "model_sha256", "engine_build_id", "engine_version", "python"),
    *("target", "android", "host"),
)

# how the note of a cell begins of which it is not known that it ran after the one before it
PLACE_GUESSED = "that it ran after the cell before it is a guess, by "


@dataclass(frozen=True)
class PassedOver:
    """A file that is not part of any cell, and why."""

    file: str
    reason: str


@dataclass(frozen=True)
class ImportedCell:
    """A record, its rows, and the files that both were read from (name in the directory: path)."""

    record: CellRecord
    rows: tuple[Row, ...]
    files: Mapping[str, Path]


@dataclass(frozen=True)
class Imported:
    """One foreign campaign, ready to be written; `facts`: what `config.yaml` says of the import."""

    name: str
    plan: Plan
    cells: tuple[ImportedCell, ...]
    facts: Mapping[str, Any]
    files: Mapping[str, Path] = field(default_factory=dict)  # of the whole campaign
    passed_over: tuple[PassedOver, ...] = ()
    notes: tuple[str, ...] = ()


def write_campaign(imported: Imported, runs_dir: Path) -> Path:
    """The new campaign's directory.

    Raises UsageError when `runs_dir` cannot take it, DeviceError when the disk fails.
    """
    rundir.check_runs_dir(runs_dir)
    campaign_id = rundir.new_id(imported.name)
    directory = runs_dir / campaign_id
    temporary = runs_dir / f".{campaign_id}.{os.getpid()}.tmp"
    try:
        (temporary / "cells").mkdir(parents=True)
        try:
            _fill(temporary, imported)
            temporary.rename(directory)
            _fsync(runs_dir)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    except OSError as e:
        raise DeviceError(f"{e.filename or directory}: {e.strerror or e}") from e
    return directory


def _fill(directory: Path, imported: Imported) -> None:
    events: list[dict[str, Any]] = [
        {"event": "campaign_imported", **imported.facts, "cells": len(imported.cells)}
    ]
    for cell in imported.cells:
        events.append(_write_cell(directory, cell))
    source = directory / "source"
    for name, path in imported.files.items():
        source.mkdir(exist_ok=True)
        shutil.copyfile(path, source / name)
    config = {"name": imported.name, "import": dict(imported.facts)}
    (directory / rundir.CONFIG).write_text(_yaml(config), encoding="utf-8")
    _json(directory / rundir.PLAN, imported.plan)
    environment: dict[str, Any] = {"harness_version": harness.__version__}
    environment |= dict.fromkeys(_ENVIRONMENT)
    _json(
        directory / rundir.ENVIRONMENT,
        environment | {"packages": {}, "settings": [], "preflight": []},
    )
    now = time.time()
    lines = [json.dumps({"seq": i, "unix_s": now} | event) for i, event in enumerate(events)]
    with (directory / JOURNAL).open("w", encoding="utf-8") as journal:
        journal.write("".join(line + "\n" for line in lines))
        journal.flush()
        os.fsync(journal.fileno())


def _write_cell(directory: Path, cell: ImportedCell) -> dict[str, Any]:
    record = cell.record
    cell_dir = directory / "cells" / f"{record.index:02d}-{record.cell}"
    cell_dir.mkdir()
    for name, path in cell.files.items():
        shutil.copyfile(path, cell_dir / name)
    if cell.rows:
        (cell_dir / "tokens.csv").write_bytes(tokens_csv(cell.rows))
    content = _json(cell_dir / RECORD, record)
    return {
        "event": "cell_finished",
        "index": record.index,
        "cell": record.cell,
        "status": record.status,
        "record": f"cells/{cell_dir.name}/{RECORD}",
        "sha256": hashlib.sha256(content).hexdigest(),
        "files": hashes_of(cell_dir),
    }


def _json(path: Path, value: Any) -> bytes:
    content = json.dumps(to_json(value), indent=1).encode() + b"\n"
    path.write_bytes(content)
    return content


def _yaml(value: Mapping[str, Any], indent: str = "") -> str:
    """Mappings in blocks, all else as JSON, which is YAML."""
    text = ""
    for key, item in value.items():
        if isinstance(item, Mapping) and item:
            text += f"{indent}{key}:\n{_yaml(item, indent + '  ')}"
        else:
            text += f"{indent}{key}: {json.dumps(to_json(item))}\n"
    return text


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def is_truth(path: Path) -> bool:
    """What a simulator wrote to judge the judge."""
    return path.name.lower().startswith("truth.")


def raw_names(paths: Sequence[Path], root: Path) -> dict[str, Path]:
    """A name for the copy of each file: its own, or with its directory where two are alike.

    The names that a cell's directory gives to its own files are kept free.
    """
    names: dict[str, Path] = {}
    for path in paths:
        name = path.name
        if name in names or name in _OURS:
            name = "source-" + "-".join(path.relative_to(root).parts)
        names[name] = path
    return names
