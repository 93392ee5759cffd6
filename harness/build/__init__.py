"""Sources, toolchains, cache: from the shipped C++ to a verified `moe-engine` and `moe-launcher`.

May touch the cache directory, run pip, cmake, ninja and the compiler. Knows nothing of campaigns.
"""

from __future__ import annotations

from harness.build.engine import ensure_engine
from harness.build.given import cached_engine, given_binary, given_engine
from harness.build.machine import TargetMachine, machine_from
from harness.build.types import (
    BuildProgress,
    EngineBuild,
    EngineFile,
    Progress,
    ToolchainKind,
)

__all__ = [
    "BuildProgress",
    "EngineBuild",
    "EngineFile",
    "Progress",
    "TargetMachine",
    "ToolchainKind",
    "cached_engine",
    "ensure_engine",
    "given_binary",
    "given_engine",
    "machine_from",
]
