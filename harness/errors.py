"""Errors a user can act on. Touches nothing."""

from __future__ import annotations


class HarnessError(Exception):
    """One line for the user: what is wrong, where, what to do. `exit_code` is the process's."""

    exit_code = 1


class UsageError(HarnessError):
    """Bad input or configuration; nothing was started."""

    exit_code = 2


class DeviceError(HarnessError):
    """A cell, the engine's build or the device failed; what was measured is kept."""

    exit_code = 1


class Interrupted(HarnessError):  # noqa: N818 - the user's wish is no error
    """Stopped by the user (Ctrl-C or SIGTERM); the campaign can be resumed."""

    exit_code = 130
