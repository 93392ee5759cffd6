"""Names and values in the form that a tracking store takes, without secrets. Touches nothing."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

_SECRET = re.compile(
    r"(^|_)(password|passwd|passphrase|token|secret|credentials?|api_?key|private_key|key_file)$",
    re.IGNORECASE,
)
# as RFC 3986 has them before a host; as SQLAlchemy takes them, with a `/` in the password; and as
# PostgreSQL does, among the options
_CREDENTIALS = (
    (re.compile(r"(?<=://)[^/?#\s]*@"), ""),
    (re.compile(r"(?<=://)[^/:@\s]*:[^@\s]*@"), ""),
    (
        re.compile(
            r"([?&#](?:user|[\w.-]*(?:password|passwd|pwd|token|secret|api_?key|auth|sig(?:nature)?))=)"
            r"[^&#\s]*",
            re.IGNORECASE,
        ),
        r"\1***",
    ),
)
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_./ -]")
# part of a value, so that what was cut cannot be mistaken for the whole
_CUT = " ... (cut, sha256 {})"
# tags by which runs are found again
PARENT = "mlflow.parentRunId"
NOTE = "mlflow.note.content"
KIND, CAMPAIGN = "harness.kind", "harness.campaign"
# of a campaign in a sweep
SWEEP, OVERRIDES = "harness.sweep", "harness.sweep_overrides"
SWEEP_INDEX, SWEEP_COUNT = "harness.sweep_index", "harness.sweep_count"
PARAM_CHARS = 6000
NAME_CHARS = 250
TAG_CHARS = 5000


def flatten(data: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings to `a.b.c: text`, in names and lengths that the store takes, without None."""
    flat: dict[str, str] = {}
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{name}.")
        elif value is not None:
            text = value if isinstance(value, str) else json.dumps(value)
            flat[name_for_store(name)] = cut(text, PARAM_CHARS)
    return flat


def without_secrets(data: Mapping[str, Any]) -> dict[str, Any]:
    """A copy without keys that name secrets, and with user names and passwords out of URLs."""
    clean: dict[str, Any] = {}
    for key, value in data.items():
        if _SECRET.search(str(key)):
            continue
        if isinstance(value, Mapping):
            clean[str(key)] = without_secrets(value)
        elif isinstance(value, str):
            clean[str(key)] = without_credentials(value)
        else:
            clean[str(key)] = value
    return clean


def without_credentials(text: str) -> str:
    """Any text without users and passwords of the URLs in it.

    What looks as if it could be a password goes, though it may be none: `//HOST:PORT/x@y`.
    """
    for pattern, instead in _CREDENTIALS:
        text = pattern.sub(instead, text)
    return text


def name_for_store(name: str) -> str:
    """`name` with what the store refuses replaced by `_`, and no longer than it takes."""
    return cut(_NOT_IN_A_NAME.sub("_", name), NAME_CHARS, " {:.12}")


def cut(text: str, most: int, mark: str = _CUT) -> str:
    """`text`, or its beginning and the hash of the whole when it is longer than `most`."""
    if len(text) <= most:
        return text
    end = mark.format(hashlib.sha256(text.encode()).hexdigest())
    return text[: most - len(end)] + end
