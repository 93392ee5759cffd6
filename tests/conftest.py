"""Its being here puts `tests/` on sys.path, so that tests of every room can share their parts."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest
from browser_parts import browser, screenshots
from hypothesis import HealthCheck, settings

__all__ = ["browser", "screenshots"]  # fixtures

# one campaign at a time has a device; a test run must not wait for whoever else tests here
_LOCKS = tempfile.TemporaryDirectory(prefix="moe-harness-tests-")
os.environ["MOE_DEVICE_LOCK"] = str(Path(_LOCKS.name) / "device.lock")

# and the other worker's engines are at work beside its campaigns, for longer on a slow machine than
# one that is only just ending is waited for
os.environ["MOE_OTHER_ENGINES_S"] = "900"

# CI fails for what was changed, not for what was drawn or for a clock: the same examples each time.
# HYPOTHESIS_PROFILE=search draws new ones, and twice as many.
_NO_CLOCK = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", _NO_CLOCK, derandomize=True, max_examples=50)
settings.register_profile("search", _NO_CLOCK)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

# The tests start Python many hundred times. Where the environment forbids to keep what is compiled,
# as container images do, each start compiles the harness: a plan takes 0.98 s of a core, not 0.83.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# More would measure each other: the cells of tests are real, and take a core each.
_WORKERS = 2


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """All tests run file by file in two workers; a choice of them in this process alone.

    Half of the time of most slow tests is waiting: for leases, dead lines, spacing.
    """
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return 0
    config.option.dist = "loadfile"
    # in their own order the few long ones come first, and the many short ones fill the end
    config.option.loadscopereorder = False
    return _WORKERS
