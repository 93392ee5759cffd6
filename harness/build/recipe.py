"""What an executable is made from, by which compilers and for which machine; the key of all that.

Reads our sources and asks compilers for their version; builds nothing.
"""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from harness.build.cross import NdkTools, ZigTools, find_ndk, find_zig
from harness.build.host import BuildHost, RemoteTools, find_there
from harness.build.machine import LEVELS, TargetMachine, level_of, runner, this_machine
from harness.build.resources import engine_source_dir
from harness.build.source import SHA256 as PINNED_SHA256
from harness.build.source import LlamaSource, given_source, tree_sha256
from harness.build.toolchain import (
    HostTools,
    Toolchain,
    find_toolchain,
    links_statically,
    machine_name,
)
from harness.build.types import ToolchainKind
from harness.errors import UsageError

ENGINE = "moe-engine"
LAUNCHER = "moe-launcher"
# of engine_src; the launcher is a project of its own, and the C++ tests are in neither
PARTS = {
    ENGINE: ("CMakeLists.txt", "cmake", "src"),
    LAUNCHER: ("launcher/CMakeLists.txt", "launcher/src", "src/sha256.cpp", "src/sha256.h"),
}
SANITIZERS = ("", "address", "thread")
# raised when the layout of the cache changes
LAYOUT = 1


@dataclass(frozen=True)
class Order:
    """What is asked for. Without `toolchain` the fitting one, without `machine` this one."""

    llama_cpp_dir: Path | None = None
    sanitize: str = ""
    toolchain: ToolchainKind | None = None
    machine: TargetMachine | None = None
    ndk_dir: Path | None = None
    host: BuildHost | None = None  # the target, where programs can be compiled on it


@dataclass(frozen=True)
class Recipe:
    """What one executable is made from. The launcher is made apart: it changes less often."""

    program: str
    tools: Toolchain
    machine: TargetMachine
    origin: Path  # engine_src
    sources_sha256: str
    llama: LlamaSource | None  # None: the launcher, which has nothing of llama.cpp
    llama_place: str  # where its objects may be shared: the pinned tree, or one directory
    sanitize: str

    @property
    def variables(self) -> dict[str, str]:
        """CMake variables that decide about the objects, so without the build id."""
        result = {"MOE_SANITIZE": self.sanitize}
        if self.llama is not None:
            result["MOE_CPU_LEVEL"] = level_of(self.machine)
        return result

    @property
    def system(self) -> str:
        """The system and architecture that the executable is for, with the C library it brings."""
        if isinstance(self.tools, ZigTools):
            return f"linux-musl-{self.machine.architecture}"
        if isinstance(self.tools, NdkTools):
            return f"android-{self.machine.architecture}"
        if isinstance(self.tools, RemoteTools):
            return f"linux-{self.machine.architecture}"
        return machine_name()

    @property
    def run_with(self) -> tuple[str, ...] | None:
        """What to put before the executable to run it here; None when nothing here can."""
        own_libraries = isinstance(self.tools, NdkTools | RemoteTools)
        return None if own_libraries else runner(self.machine)

    @property
    def workspace_key(self) -> str:
        """Names the build directory: everything but sources that are edited between builds."""
        parts = [LAYOUT, self.system, self.tools.compiler_id, self.variables, self.llama_place]
        return _digest([*parts, self.program])

    @property
    def key(self) -> str:
        """Names the executable; its first 12 digits are the engine's build id."""
        llama = self.llama.sha256 if self.llama is not None else None
        return _digest([self.workspace_key, self.sources_sha256, llama])

    @property
    def build_id(self) -> str:
        """What the engine reports as its own."""
        return self.key[:12]

    @property
    def parts(self) -> tuple[str, ...]:
        """What of engine_src it is made from."""
        return PARTS[self.program]


def make_recipe(program: str, order: Order | None = None) -> Recipe:
    """The recipe for an order, now. The pinned tree is named by its hash and not fetched.

    UsageError, one line, when a compiler is missing or cannot build for the machine.
    """
    order = order or Order()
    if order.sanitize not in SANITIZERS:
        names = ", ".join(map(repr, SANITIZERS))
        raise UsageError(f"sanitize={order.sanitize}: needs one of {names}")
    machine = order.machine or this_machine()
    tools = _tools(order, machine)
    if order.sanitize and not isinstance(tools, HostTools):
        raise UsageError(f"sanitize={order.sanitize}: needs toolchain=host")
    origin = engine_source_dir()
    sha256 = tree_sha256(origin, PARTS[program])
    llama, place = None, "none"
    if program == ENGINE and order.llama_cpp_dir is None:
        llama, place = LlamaSource(Path(), PINNED_SHA256), PINNED_SHA256
    elif program == ENGINE and order.llama_cpp_dir is not None:
        llama = given_source(order.llama_cpp_dir)
        place = str(llama.path)
    return Recipe(program, tools, machine, origin, sha256, llama, place, order.sanitize)


def _tools(order: Order, machine: TargetMachine) -> Toolchain:
    kind = order.toolchain
    here = this_machine().architecture
    if machine.architecture not in {here, *LEVELS}:
        raise UsageError(
            f"the target's processor is {machine.architecture or 'unknown'}: engines are built for "
            f"{' and '.join(LEVELS)}; give your own with engine.binary and engine.launcher"
        )
    if kind is None:
        local = order.machine is None
        kind = "host" if local or (machine.architecture == here and _static_host()) else "zig"
    if kind == "zig":
        return find_zig(machine)
    if kind == "ndk":
        return find_ndk(machine, order.ndk_dir)
    if machine.architecture != here and order.host is not None:
        return find_there(order.host)
    if machine.architecture != here:
        raise UsageError(
            f"build.toolchain: host compiles for {here}, the target is {machine.architecture}; "
            "use build.toolchain=zig"
        )
    return find_toolchain()


@functools.cache
def _static_host() -> bool:
    """Whether what is compiled here runs on any machine of the architecture."""
    try:
        return links_statically(find_toolchain())
    except UsageError:  # no compiler
        return False


def _digest(parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
