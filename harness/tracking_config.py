"""`tracking`: which MLflow store. Touches nothing, and knows no MLflow."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from harness.errors import UsageError

# servers, and what MLflow keeps a store in; with SQLAlchemy's driver, where one is named
_SERVERS = ("http", "https")
_DATABASE = re.compile(r"(sqlite|postgresql|mysql|mssql)(\+\w+)?")


@dataclass(frozen=True)
class TrackingConfig:
    """`uri` None: the store in `runs_dir`."""

    enabled: bool
    uri: str | None


def survives_in_address(directory: str) -> bool:
    """Whether a store below it can be named: SQLAlchemy decodes `%41`, and takes the rest after a
    `?` for options.
    """
    return "?" not in directory and unquote(directory) == directory


def check_tracking(tracking: TrackingConfig) -> None:
    """MLflow itself would complain after the first cell, and takes a mistyped address for a path.

    Raises UsageError, without the address: what is wrong may hold a password.
    """
    if tracking.uri is not None and not _is_address(tracking.uri):
        raise UsageError(
            "tracking.uri: is no address that MLflow takes; use http://HOST:PORT of a server, "
            "sqlite:////ABSOLUTE/PATH or another database's, or null for the store in runs_dir"
        )


def _is_address(uri: str) -> bool:
    try:
        parts = urlsplit(uri)
        named = parts.hostname is not None and parts.port != 0
    except ValueError:  # brackets that do not close, a port that is no number
        return False
    if parts.scheme in _SERVERS:
        return named
    return bool(_DATABASE.fullmatch(parts.scheme)) and bool(uri.partition("://")[2])
