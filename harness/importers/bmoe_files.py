"""Which files of a directory are what: sessions, and in them runs, sidecars, states, logs.

Reads the directory it is named. What a file is follows from its content, not from its extension.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from pathlib import Path

from harness.errors import UsageError
from harness.importers import bmoe_device, bmoe_logs
from harness.importers.bmoe_tokens import is_token_file
from harness.importers.text import decode, natural
from harness.importers.write import PassedOver, is_truth
from harness.journal import JOURNAL

# directories that sort a session's files by kind, rather than being sessions
_KINDS = re.compile(
    r"(raw|data|csvs?|logs?|outs?|output|metrics|states?|runs?|results?|cells?|tokens|device|files)",
    re.I,
)
_DATED = re.compile(r"\d{4}-\d{2}-\d{2}")
_MAX_BYTES = 256 * 2**20
_SNIFFED = 65536
# texts that quote what a log says
_DOCUMENTS = (".md", ".rst", ".html", ".json", ".jsonl", ".py", ".sh", ".ps1", ".patch")
_TRACE = re.compile(r"# \w+_trace v\d")


@dataclass(eq=False)
class SessionFiles:
    """A session's files by what they are; `runs` are per-token CSVs."""

    directory: Path
    runs: list[Path] = field(default_factory=list)
    sidecars: list[Path] = field(default_factory=list)
    states: list[Path] = field(default_factory=list)
    logs: list[Path] = field(default_factory=list)  # of one run each
    drivers: list[Path] = field(default_factory=list)  # of several cells
    traces: list[Path] = field(default_factory=list)  # of single experts, reads or operations
    passed_over: list[PassedOver] = field(default_factory=list)

    @property
    def has_cells(self) -> bool:
        return bool(self.runs or self.logs or self.drivers)


def content(path: Path) -> bytes:
    """Raises UsageError when it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as e:
        raise UsageError(f"{path}: cannot be read: {e.strerror}") from None


def find_sessions(directory: Path) -> list[SessionFiles]:
    """The sessions in `directory` and below, each with its files.

    A directory that holds cells itself is one session with all below it, but for dated
    directories, which are their own; so are directories of which each holds runs. Raises
    UsageError when there is no cell at all.
    """
    sessions = _sessions(directory)
    if not sessions:
        plain = (directory / "campaign.csv").is_file()
        raise UsageError(
            f"{directory}: no cell in it: neither a per-token CSV (a header with step and wall_ms) "
            f"nor a log with a generation: line{'; use `import csv`' if plain else ''}"
        )
    return sessions


def _sessions(directory: Path) -> list[SessionFiles]:
    own = _sorted_files(directory, _files(directory))
    below = [d for d in _entries(directory) if _is_below(d)]
    dated = [d for d in below if _DATED.match(d.name)]
    others = [d for d in below if d not in dated]
    nested = [s for d in others for s in _sessions(d)]
    by_date = [s for s in nested if _DATED.match(s.directory.name)]
    parts = [s for s in nested if s not in by_date]
    by_kind = all(_KINDS.fullmatch(s.directory.name) for s in parts)
    if own.has_cells or (parts and (by_kind or sum(bool(s.runs) for s in parts) <= 1 < len(parts))):
        for other in others:
            _add(own, _sorted_files(directory, _files(other, deep=True)))
        found = [own] if own.has_cells else []
    else:
        found = parts
    return found + by_date + [s for d in dated for s in _sessions(d)]


def _entries(directory: Path) -> list[Path]:
    try:
        entries = [p for p in directory.iterdir() if not p.name.startswith(".")]
    except OSError as e:
        raise UsageError(f"{directory}: cannot be read: {e.strerror}") from None
    return sorted(entries, key=lambda p: natural(p.name))


def _files(directory: Path, *, deep: bool = False) -> list[Path]:
    found: list[Path] = []
    for path in _entries(directory):
        if path.is_file():
            found.append(path)
        elif deep and _is_below(path) and not _DATED.match(path.name):
            found += _files(path, deep=True)
    return found


def _is_below(path: Path) -> bool:
    """A directory to look into: no link, which may lead in circles, and no campaign of ours."""
    return path.is_dir() and not path.is_symlink() and not (path / JOURNAL).exists()


def _add(to: SessionFiles, other: SessionFiles) -> None:
    for f in fields(SessionFiles):
        if f.name != "directory":
            getattr(to, f.name).extend(getattr(other, f.name))


def _sorted_files(root: Path, files: list[Path]) -> SessionFiles:
    session = SessionFiles(root)
    for path in files:
        kind, reason = what_is(path)
        if reason is not None:
            session.passed_over.append(PassedOver(str(path.relative_to(root)), reason))
        else:
            getattr(session, kind).append(path)
    return session


def what_is(path: Path) -> tuple[str, str | None]:
    """The list of `SessionFiles` that a file belongs to, or why it belongs to none."""
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            head = stream.read(_SNIFFED)
    except OSError as e:
        return "", f"cannot be read: {e.strerror}"
    text = "" if is_truth(path) else decode(head)
    reason = _no_text(path, size, head) or _other_table(path, text)
    if reason is not None:
        return "", reason
    for kind, here in (("traces", _TRACE.match(text)), ("runs", is_token_file(head))):
        if here:
            return kind, None
    # what names a log may stand at its end, after llama.cpp's own pages
    text = decode(content(path)) if size > _SNIFFED else text
    for kind, test in (
        ("states", bmoe_device.is_state),
        ("drivers", bmoe_logs.driver_blocks),
        ("logs", bmoe_logs.is_log),
        ("sidecars", bmoe_device.is_sidecar),
    ):
        if test(text):
            return kind, None
    return "", "neither a run nor notes on one"


def _no_text(path: Path, size: int, head: bytes) -> str | None:
    if size == 0:
        return "empty"
    if is_truth(path):
        return "a simulation's ground truth is never read"
    if size > _MAX_BYTES:
        return f"{size} bytes: too large for a file of a session"
    if path.suffix.lower() in _DOCUMENTS:
        return "a document or a script, not a log"
    return "not text" if "\0" in decode(head) else None


def _other_table(path: Path, text: str) -> str | None:
    if path.suffix.lower() != ".csv" or _TRACE.match(text) or is_token_file(text.encode()):
        return None
    header = next((s for s in text.split("\n") if s and not s.startswith("#")), "")
    return f"no column wall_ms (its header: {header[:60]}): not a per-token CSV"
