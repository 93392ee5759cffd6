"""The environment of every engine that the harness starts without its launcher.

The launcher gives a cell a clean one (docs/launcher.md). The user's, here or on a device, may hold
EPQ_* variables, which are defaults for the engine's flags: what the harness asks for is on the
command line alone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

PREFIX = "EPQ_"
# of a variable whose value has several lines, too many rather than too few
_CLEAN = (
    f"for name in $(env | sed -n 's/^\\({PREFIX}[A-Za-z0-9_]*\\)=.*/\\1/p'); "
    'do unset "$name"; done; exec "$@"'
)


def engine_environment() -> dict[str, str]:
    """The user's environment without the variables that an engine would take for settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}


def clean_argv(argv: Sequence[str]) -> list[str]:
    """The same program, started so on a machine where the environment is a login's.

    A program that cannot be started is exit 126 or 127, with the shell's words on stderr.
    """
    return ["sh", "-c", _CLEAN, "sh", *argv]
