"""Where campaigns lie on disk: ids, finding one again, refusing another configuration on resume.

Touches `runs_dir` and the campaign's directory; the journal and the records are `journal.py`'s.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.errors import DeviceError, HarnessError, UsageError
from harness.jsonfile import read_as, read_json
from harness.typed import nearest

CONFIG, PLAN, ENVIRONMENT, VERDICT = "config.yaml", "plan.json", "environment.json", "verdict.json"
PLOTS = "plots"
SWEEP = "sweep.json"  # only of a campaign that is part of one
SWEEP_STATE = "campaigns.json"  # of a sweep's own directory: all of them, and how far it came
DEFAULT_RUNS_DIR = "runs"

# may differ between the first command line and the one that resumes
FREE_ON_RESUME = ("resume", "runs_dir", "plan_only")

# a campaign of four short cells takes about this; below it the run could not even begin to record
MIN_FREE_BYTES = 256 * 1024

# conditions of the disk that are the user's to change, not faults of the program
DISK_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}


@dataclass(frozen=True)
class Sweep:
    """What a campaign is part of: several that one command line asked for.

    `index` of `count`, from 0; `overrides` set this campaign apart from the others. `alike`: how
    many of them have its name, None where an older version did not say; a night has others, too.
    """

    id: str
    name: str
    index: int
    count: int
    overrides: tuple[str, ...] = ()
    alike: int | None = None


def read_sweep(campaign_dir: Path) -> Sweep | None:
    """None where the campaign stands alone. Raises DeviceError naming the file that is damaged."""
    return read_as(Sweep, campaign_dir / SWEEP)


@dataclass(frozen=True)
class StoredEnvironment:
    """What `environment.json` says; `wrong`: why nothing of it is known, else None.

    No verdict rests on it, so a report, or a store, goes without one that is damaged and says so.
    """

    values: Mapping[str, Any]
    wrong: str | None = None


def read_environment(campaign_dir: Path) -> StoredEnvironment:
    """Where it is missing or damaged, that is said in `wrong`."""
    path = campaign_dir / ENVIRONMENT
    try:
        found = read_json(path)
    except DeviceError as e:
        return StoredEnvironment({}, str(e))
    if found is None:
        return StoredEnvironment({}, f"{path}: is missing")
    return StoredEnvironment(found)


def new_id(name: str, now: datetime | None = None) -> str:
    """`20261129T200533Z-matched_pair-3fa9`: sorts by time, unlike any other."""
    moment = (now or datetime.now(UTC)).strftime("%Y%m%dT%H%M%SZ")
    return f"{moment}-{name}-{secrets.token_hex(2)}"


def check_runs_dir(runs_dir: Path) -> None:
    """Refuse a place where no campaign can be written, before minutes go into a build."""
    try:
        nearest_parent = next(p for p in (runs_dir, *runs_dir.absolute().parents) if p.exists())
    except OSError as e:
        raise UsageError(f"runs_dir: {e.strerror}; choose another runs_dir") from None
    if not nearest_parent.is_dir():
        raise UsageError(f"runs_dir: {nearest_parent} is not a directory; choose another runs_dir")
    if not os.access(nearest_parent, os.W_OK | os.X_OK):
        raise UsageError(f"runs_dir: {nearest_parent} cannot be written; choose another runs_dir")
    space = os.statvfs(nearest_parent)
    free = space.f_bavail * space.f_frsize
    if free < MIN_FREE_BYTES:
        raise UsageError(
            f"runs_dir: no space left on the disk of {nearest_parent} ({free} bytes free); "
            "make room or choose another runs_dir"
        )


def make_campaign_dir(runs_dir: Path, campaign_id: str) -> Path:
    """The campaign's new directory. Raises UsageError when it cannot be made."""
    path = runs_dir / campaign_id
    try:
        path.mkdir(parents=True)
    except OSError as e:
        raise UsageError(f"runs_dir: cannot create {path}: {e.strerror}") from None
    return path


def find_campaign(name: str, runs_dir: Path, asked_by: str = "resume=") -> Path:
    """The directory that `name` is, or the id of a campaign in `runs_dir`, under its own name.

    A campaign is known by its directory's name: `runs/latest` that points to it, or `.` in it, is
    no other campaign. `asked_by`: what stands before the name on the command line. Raises
    UsageError.
    """
    if not name:  # `--candidate "$RUN"`: else it would be the directory that one happens to be in
        raise UsageError(f"{asked_by}: is empty; name a campaign".replace(" :", ":"))
    try:
        places = (runs_dir / name, Path(name))
        # a bare id is one in `runs_dir`, also where a copy of it lies in the directory one is in
        for path in places if os.sep not in name else places[::-1]:
            if (path / CONFIG).is_file() and (path / PLAN).is_file():
                own = path.is_symlink() or path.name in ("", "..")
                return path.resolve() if own else path
    except (OSError, ValueError) as e:
        raise UsageError(f"{asked_by}{name[:40]!r}: {getattr(e, 'strerror', e)}") from None
    known = sorted(p.parent.name for p in runs_dir.glob(f"*/{PLAN}"))
    if asked_by == "resume=":  # which takes up sweeps as well
        known = sorted([*known, *(p.parent.name for p in runs_dir.glob(f"*/{SWEEP_STATE}"))])
    raise UsageError(
        f"{asked_by}{name}: no campaign there, nor in {runs_dir}/"
        f"{nearest(name, known[-20:], 'campaigns')}"
    )


def resume_command(campaign_dir: Path) -> str:
    """The command that goes on with a campaign, or with a sweep."""
    return shlex.join(["python", "-m", "harness", *resume_words(campaign_dir)])


def resume_words(campaign_dir: Path) -> tuple[str, ...]:
    """Its overrides."""
    runs_dir = campaign_dir.parent
    words = [f"resume={campaign_dir.name}"]
    if runs_dir != Path(DEFAULT_RUNS_DIR):
        words.append(f"runs_dir={as_value(str(runs_dir))}")
    return tuple(words)


def as_value(text: str) -> str:
    """As Hydra reads it: in quotes, if need be."""
    return text if re.fullmatch(r"[\w./:%@+-]+", text, re.ASCII) else quoted(text)


def quoted(text: str) -> str:
    """In Hydra's quotes, in which only what precedes a quote is escaped."""
    escaped = re.sub(r'(\\*)("|$)', lambda m: m[1] * 2 + m[2].replace('"', '\\"'), text)
    return f'"{escaped}"'


def difference(old: Any, new: Any, key: str = "") -> list[str]:
    """`key: old -> new` for every leaf in which two plain values differ."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        lines: list[str] = []
        for name in [*old, *(n for n in new if n not in old)]:
            dotted = f"{key}.{name}" if key else str(name)
            if not key and name in FREE_ON_RESUME:
                continue
            if name not in old:
                lines.append(f"{dotted}: (absent) -> {new[name]}")
            elif name not in new:
                lines.append(f"{dotted}: {old[name]} -> (absent)")
            else:
                lines += difference(old[name], new[name], dotted)
        return lines
    return [] if old == new else [f"{key}: {old} -> {new}"]


@contextmanager
def disk_errors(campaign_dir: Path) -> Iterator[None]:
    """A full or unwritable disk becomes one DeviceError line that says how to go on."""
    hint = f"what was measured is kept; make room, then {resume_command(campaign_dir)}"
    try:
        yield
    except OSError as e:
        if e.errno not in DISK_ERRNOS:
            raise
        raise DeviceError(f"{e.filename or campaign_dir}: {e.strerror}; {hint}") from e
    except HarnessError as e:
        cause = e.__cause__
        if isinstance(cause, OSError) and cause.errno in DISK_ERRNOS:
            raise DeviceError(f"{e}; {hint}") from e
        raise
