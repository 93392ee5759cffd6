"""The environment of every engine that the harness starts without its launcher.

The launcher gives a cell a clean one (docs/launcher.md). The user's may hold EPQ_* variables, which
are defaults for the engine's flags: what the harness asks for is on the command line alone.
"""

from __future__ import annotations

import os

PREFIX = "EPQ_"


def engine_environment() -> dict[str, str]:
    """The user's environment without the variables that an engine would take for settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
