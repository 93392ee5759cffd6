"""The text of an OpenSSH configuration file with all that it includes. Reads files.

paramiko's parser passes over `Include` in silence and takes a comment at a line's end for a part
of the value; both would change where we log in.
"""

from __future__ import annotations

import glob
import re
import shlex
from pathlib import Path

from harness.errors import UsageError

MOST_LEVELS = 16
COMMENT_AT_END = re.compile(r"""^((?:[^"'#]|"[^"]*"|'[^']*'|(?<=\S)\#)*?)\s+\#.*$""")
SECTION = re.compile(r"^\s*(host|match)\b", re.IGNORECASE)
INCLUDE = re.compile(r"^\s*include(?:\s*=\s*|\s+)(.+)$", re.IGNORECASE)
EVERYWHERE = re.compile(r"^\s*(?:host(?:\s*=\s*|\s+)\*|match(?:\s*=\s*|\s+)all)\s*$", re.IGNORECASE)

MATCH_WITHOUT_VALUE = ("all", "canonical", "final")
MATCH_WITH_VALUE = ("host", "originalhost", "user", "localuser")


def read_config_text(path: Path) -> str:
    """A configuration in one piece. Raises UsageError."""
    return "\n".join(_lines(path, 0))


def _lines(path: Path, level: int) -> list[str]:
    if level > MOST_LEVELS:
        raise UsageError(f"{path}: more than {MOST_LEVELS} levels of Include; a ring?")
    try:
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as e:
        raise UsageError(f"cannot read the ssh configuration {path}: {e.strerror}") from e
    section = "Host *"
    out: list[str] = []
    for raw in text.splitlines():
        comment = COMMENT_AT_END.match(raw)
        line = comment[1] if comment and not raw.lstrip().startswith("#") else raw
        included = INCLUDE.match(line)
        if SECTION.match(line):
            section = line
            _check_match(path, line)
        if included is None:
            out.append(line)
            continue
        inner = [more for file in _included(path, included[1]) for more in _lines(file, level + 1)]
        if any(SECTION.match(more) for more in inner):
            if not EVERYWHERE.match(section):
                raise UsageError(
                    f"{path}: `{line.strip()}` within `{section.strip()}` includes sections of its "
                    "own, which is not supported; move the Include to the top of the file"
                )
            # the included sections end with the file
            inner.append(section)
        out += inner
    return out


def _check_match(path: Path, line: str) -> None:
    """Raises UsageError for conditions that are not known: paramiko would take them for true."""
    keyword, *words = re.split(r"[\s=]+", line.strip().lower())
    while keyword == "match" and words:
        condition = words.pop(0).removeprefix("!")
        if condition in MATCH_WITH_VALUE and words:
            words.pop(0)
        elif condition not in MATCH_WITHOUT_VALUE:
            raise UsageError(
                f"{path}: `{line.strip()}` is not supported; give target.ssh_config=another file, "
                "or null and the target's own keys (host, user, port, key_file)"
            )


def _included(path: Path, patterns: str) -> list[Path]:
    try:
        words = shlex.split(patterns)
    except ValueError as e:
        raise UsageError(f"{path}: Include {patterns}: {e}") from e
    files: list[Path] = []
    for word in words:
        pattern = str(Path("~/.ssh").expanduser() / Path(word).expanduser())
        files += [Path(name) for name in sorted(glob.glob(pattern)) if Path(name).is_file()]  # noqa: PTH207 - may be absolute
    return files
