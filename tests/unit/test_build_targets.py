"""Building for other machines without building: which machine, which level, which compiler."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path
from typing import Any

import pytest

from harness.build import cross, machine, programs, recipe, toolchain
from harness.build.cli import main
from harness.build.machine import (
    LEVELS,
    TargetMachine,
    elf_architecture,
    level_of,
    machine_at,
    machine_from,
)
from harness.build.recipe import ENGINE, LAUNCHER, Order, make_recipe
from harness.errors import UsageError

V82 = "armv8.2-a+dotprod+fp16"
I8MM = f"{V82}+i8mm"

# as Linux writes them, with what tells cores apart
XEON = """processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R) Processor
flags\t\t: fpu sse sse2 ssse3 fma sse4_1 sse4_2 avx f16c rdrand bmi1 avx2 bmi2 avx512f
vmx flags\t: vnmi ept
bugs\t\t: spectre_v1

processor\t: 1
flags\t\t: fpu sse sse2 ssse3 fma sse4_1 sse4_2 avx f16c rdrand bmi1 avx2 bmi2 avx512f
"""
GRAVITON = """processor\t: 0
BogoMIPS\t: 2100.00
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt \
fcma lrcpc dcpop sha3 sm3 sm4 asimddp sha512 sve asimdfhm dit uscat ilrcpc flagm ssbs paca pacg \
dcpodp svei8mm svebf16 i8mm bf16 dgh rng
CPU implementer\t: 0x41
CPU part\t: 0xd40
"""
A53 = "fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid"
A76 = f"{A53} atomics fphp asimdhp asimdrdm lrcpc dcpop asimddp"
X3 = f"{A76} i8mm bf16 sve2"


def phone(*features: str) -> str:
    """/proc/cpuinfo of an Arm phone, a core for each of `features`."""
    cores = [
        f"processor\t: {i}\nBogoMIPS\t: 38.40\nFeatures\t: {f}\nCPU part\t: 0xd4{i}\n\n"
        for i, f in enumerate(features)
    ]
    return "".join(cores) + "Hardware\t: Qualcomm Technologies, Inc\n"


# --- the machine ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uname", "cpuinfo", "architecture", "level"),
    [
        ("x86_64\n", XEON, "x86_64", "avx2"),
        ("x86_64", XEON.replace("avx2", "", 1), "x86_64", "baseline"),
        ("aarch64", GRAVITON, "aarch64", I8MM),
        ("aarch64", phone(X3, X3), "aarch64", I8MM),
        # the cores in the middle have no i8mm, so a thread that moves there must not need it
        ("aarch64", phone(A76, X3, A76), "aarch64", V82),
        ("aarch64", phone(A53, A53, A76, X3), "aarch64", "armv8-a"),
        ("arm64", phone(A76), "aarch64", V82),
        ("aarch64", "", "aarch64", "armv8-a"),
        ("x86_64", "no such line\n", "x86_64", "baseline"),
        # as a 32-bit program is told, though the core is a 64-bit one
        ("aarch64", phone("half thumb fastmult vfp edsp neon"), "aarch64", "armv8-a"),
        ("riscv64", "isa\t: rv64imafdc\n", "riscv64", "baseline"),
    ],
)
def test_what_all_cores_have_decides(
    uname: str, cpuinfo: str, architecture: str, level: str
) -> None:
    found = machine_from(uname, cpuinfo, android=True)
    assert (found.architecture, found.android) == (architecture, True)
    assert level_of(found) == level


def test_one_feature_less_is_a_level_less() -> None:
    for levels in LEVELS.values():
        names = list(levels)
        for lower, name in itertools.pairwise(names):
            assert levels[lower] < levels[name]
            for feature in levels[name] - levels[lower]:
                features = levels[name] - {feature}
                arch = next(a for a, known in LEVELS.items() if known is levels)
                assert level_of(TargetMachine(arch, features)) == lower


def test_levels_are_those_that_the_engine_can_be_built_for() -> None:
    text = (recipe.engine_source_dir() / "cmake" / "levels.cmake").read_text()
    for levels in LEVELS.values():
        assert f"set(moe_levels {' '.join(levels)}" in text


def test_a_level_is_asked_for_by_name() -> None:
    assert level_of(machine_at("aarch64", None, False)) == "armv8-a"
    assert level_of(machine_at("aarch64", I8MM, True)) == I8MM
    with pytest.raises(UsageError, match=r"--level avx2: aarch64 has armv8-a, armv8\.2-a"):
        machine_at("aarch64", "avx2", False)


# --- the compiler --------------------------------------------------------------------------------


PHONE = TargetMachine("aarch64", frozenset(A76.split()), android=True)
BOARD = TargetMachine("aarch64", frozenset(A53.split()))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine is an x86-64 with AVX2 that can link statically."""
    monkeypatch.setattr(
        recipe, "this_machine", lambda: TargetMachine("x86_64", LEVELS["x86_64"]["avx2"])
    )
    monkeypatch.setattr(recipe, "links_statically", lambda tools: True)
    recipe._static_host.cache_clear()


def kind(order: Order) -> str:
    return type(make_recipe(LAUNCHER, order).tools).__name__


def test_the_compiler_follows_the_target(here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ziglang")
    server = TargetMachine("x86_64", frozenset())
    assert kind(Order()) == "HostTools"
    assert kind(Order(machine=server)) == "HostTools"
    assert kind(Order(machine=PHONE)) == "ZigTools"
    assert kind(Order(machine=BOARD)) == "ZigTools"
    assert kind(Order(toolchain="zig")) == "ZigTools"
    # what is linked with this machine's libraries may not run on another
    monkeypatch.setattr(recipe, "links_statically", lambda tools: False)
    recipe._static_host.cache_clear()
    assert kind(Order(machine=server)) == "ZigTools"
    assert kind(Order()) == "HostTools"


def test_the_level_is_the_targets_not_this_machines(here: None) -> None:
    server = TargetMachine("x86_64", frozenset({"sse2"}))
    assert make_recipe(ENGINE).variables["MOE_CPU_LEVEL"] == "avx2"
    made = make_recipe(ENGINE, Order(machine=server))
    assert made.variables["MOE_CPU_LEVEL"] == "baseline"
    assert made.key != make_recipe(ENGINE).key
    # the launcher has no level
    assert make_recipe(LAUNCHER, Order(machine=server)).key == make_recipe(LAUNCHER).key


def test_keys_tell_targets_and_compilers_apart(here: None) -> None:
    pytest.importorskip("ziglang")
    orders = [
        *(Order(), Order(toolchain="zig"), Order(machine=PHONE), Order(machine=BOARD)),
        Order(machine=TargetMachine("x86_64", frozenset()), toolchain="zig"),
    ]
    assert len({make_recipe(ENGINE, order).key for order in orders}) == len(orders)
    # one static program serves phones and boards alike
    board = TargetMachine("aarch64", PHONE.features)
    assert (
        make_recipe(ENGINE, Order(machine=board)).key
        == make_recipe(ENGINE, Order(machine=PHONE)).key
    )


def test_a_missing_zig_is_named_with_the_command(
    here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "ziglang" else find(name)
    )
    with pytest.raises(UsageError, match="zig is not installed; pip install 'ziglang>="):
        make_recipe(ENGINE, Order(machine=BOARD))


def test_zig_is_called_through_scripts(tmp_path: Path) -> None:
    zig = tmp_path / "a zig"
    zig.write_text('#!/bin/sh\necho "$ZIG_GLOBAL_CACHE_DIR" "$@"\n')
    zig.chmod(0o755)
    home = tmp_path / "build" / "x"
    tools = cross.ZigTools(zig, zig, "", zig, "aarch64")
    variables = tools.variables(home)
    assert variables["CMAKE_SYSTEM_PROCESSOR"] == "aarch64"
    assert variables["MOE_ZIG"] == "ON"
    said = {
        name: programs.version_line(Path(variables[name]))
        for name in ("CMAKE_C_COMPILER", "CMAKE_CXX_COMPILER", "CMAKE_AR", "CMAKE_RANLIB")
    }
    cache = tmp_path / "build" / "zig"
    assert said == {
        "CMAKE_C_COMPILER": f"{cache} cc -target aarch64-linux-musl -O2 -s --version",
        "CMAKE_CXX_COMPILER": f"{cache} c++ -target aarch64-linux-musl -O2 -s --version",
        "CMAKE_AR": f"{cache} ar --version",
        "CMAKE_RANLIB": f"{cache} ranlib --version",
    }


@pytest.mark.parametrize(
    ("order", "words"),
    [
        (Order(toolchain="host", machine=PHONE), "host compiles for x86_64, the target is aarch64"),
        (Order(sanitize="address", toolchain="zig"), "sanitize=address: needs toolchain=host"),
        (Order(sanitize="memory"), "sanitize=memory"),
        (Order(machine=machine_from("armv7l", "")), "processor is armv7l: engines are built for"),
        (Order(machine=machine_from("", "")), "processor is unknown"),
    ],
)
def test_what_cannot_be_built_is_one_line(order: Order, words: str, here: None) -> None:
    with pytest.raises(UsageError) as caught:
        make_recipe(ENGINE, order)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_static_link_is_tried(tmp_path: Path) -> None:
    compiler = tmp_path / "c++"
    for code in (0, 1):
        compiler.write_text(f"#!/bin/sh\nexit {code}\n")
        compiler.chmod(0o755)
        tools = toolchain.HostTools(compiler, compiler, "", compiler, compiler)
        assert toolchain.links_statically(tools) is (code == 0)


# --- the NDK -------------------------------------------------------------------------------------


def ndk(folder: Path, revision: str = "27.2.12479018") -> Path:
    (folder / "build" / "cmake").mkdir(parents=True)
    (folder / "build" / "cmake" / "android.toolchain.cmake").write_text("# Google's\n")
    (folder / "source.properties").write_text(
        f"Pkg.Desc = Android NDK\nPkg.Revision = {revision}\n"
    )
    return folder


def test_the_ndk_is_used_through_its_toolchain_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ndk(tmp_path / "ndk")
    made = make_recipe(ENGINE, Order(toolchain="ndk", machine=PHONE, ndk_dir=folder))
    assert made.tools.variables(tmp_path) == {
        "CMAKE_TOOLCHAIN_FILE": f"{folder}/build/cmake/android.toolchain.cmake",
        "ANDROID_ABI": "arm64-v8a",
        "ANDROID_PLATFORM": "android-28",
        "ANDROID_STL": "c++_static",
    }
    assert made.variables["MOE_CPU_LEVEL"] == V82
    assert made.system == "android-aarch64"
    assert made.run_with is None  # Android's loader is not here
    monkeypatch.setenv("ANDROID_NDK_HOME", str(folder))
    assert make_recipe(ENGINE, Order(toolchain="ndk", machine=PHONE)).key == made.key
    (folder / "source.properties").write_text("Pkg.Revision = 28.0.1\n")
    assert make_recipe(ENGINE, Order(toolchain="ndk", machine=PHONE)).key != made.key


@pytest.mark.parametrize(
    ("target", "set_to", "words"),
    [
        (PHONE, None, "ndk needs Android's NDK; set build.ndk_dir=DIR or ANDROID_NDK_HOME"),
        (PHONE, "empty", "is no Android NDK (no build/cmake/android.toolchain.cmake)"),
        (BOARD, "ndk", "ndk builds for Android, which the target is not"),
        (None, "ndk", "ndk builds for Android, which the target is not"),
    ],
)
def test_without_a_fitting_ndk_it_is_refused(
    target: TargetMachine | None,
    set_to: str | None,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ANDROID_NDK_HOME", raising=False)
    ndk(tmp_path / "ndk")
    folder = None if set_to is None else tmp_path / set_to
    with pytest.raises(UsageError) as caught:
        make_recipe(ENGINE, Order(toolchain="ndk", machine=target, ndk_dir=folder))
    assert words in str(caught.value)


# --- executables that are there ------------------------------------------------------------------


def elf(path: Path, number: int) -> Path:
    path.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\0" + number.to_bytes(2, "little"))
    path.chmod(0o755)
    return path


def test_the_architecture_of_a_file(tmp_path: Path) -> None:
    assert elf_architecture(elf(tmp_path / "a", 183)) == "aarch64"
    assert elf_architecture(elf(tmp_path / "b", 62)) == "x86_64"
    assert elf_architecture(elf(tmp_path / "c", 40)) is None
    (tmp_path / "d").write_text("#!/bin/sh\n")
    assert elf_architecture(tmp_path / "d") is None
    (tmp_path / "d").write_bytes(b"")
    assert elf_architecture(tmp_path / "d") is None


def test_a_given_program_must_be_the_targets(tmp_path: Path) -> None:
    mine = elf(tmp_path / "mine", 62)
    assert programs.given_program(mine, "engine.binary") == mine
    with pytest.raises(UsageError, match=r"engine\.binary: .* x86_64, the target is aarch64"):
        programs.given_program(mine, "engine.binary", PHONE)
    assert programs.given_program(elf(mine, 183), "engine.binary", PHONE) == mine


def test_a_foreign_engine_that_cannot_be_run_here_is_named_by_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = elf(tmp_path / "moe-engine", 183)
    for emulator in (None, "/bin/false"):
        monkeypatch.setattr(machine.shutil, "which", lambda name, found=emulator: found)
        version, build_id = programs.describe(engine, BOARD)
        assert version is None
        assert build_id.startswith("sha256-")


def test_a_foreign_engine_is_asked_under_an_emulator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulator = tmp_path / "qemu"
    emulator.write_text('#!/bin/sh\n[ "$1 $2" = "-cpu max" ] && echo moe-engine 1 build abc x\n')
    emulator.chmod(0o755)
    monkeypatch.setattr(machine.shutil, "which", lambda name: str(emulator))
    engine = elf(tmp_path / "moe-engine", 183)
    assert programs.describe(engine, BOARD) == ("moe-engine 1 build abc x", "abc")


# --- the command line ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--level", V82], "--level: needs --target"),
        (["--target", "aarch64", "--level", "avx2"], "--level avx2: aarch64 has"),
        (["--ndk-dir", "x"], "--ndk-dir: acts only with --toolchain ndk"),
        (["--toolchain", "ndk"], "--toolchain ndk: needs --target"),
        (["--toolchain", "zig", "--tests"], "--tests: runs on this machine"),
        (["--toolchain", "zig", "--sanitize", "thread"], "sanitize=thread: needs toolchain=host"),
    ],
)
def test_options_that_cannot_act_are_refused(
    argv: list[str], words: str, tmp_path: Path, capsys: Any
) -> None:
    assert main([*argv, "--cache-dir", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("harness: error: ") and words in said
    assert said.count("\n") == 1
