"""Its being here puts `tests/` on sys.path, so that tests of every room can share their parts."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from browser_parts import browser, screenshots

__all__ = ["browser", "screenshots"]  # fixtures

# one campaign at a time has a device; a test run must not wait for whoever else tests here
_LOCKS = tempfile.TemporaryDirectory(prefix="moe-harness-tests-")
os.environ["MOE_DEVICE_LOCK"] = str(Path(_LOCKS.name) / "device.lock")
