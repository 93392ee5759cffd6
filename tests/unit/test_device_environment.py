"""What the machine is, read from made-up /proc, /sys and /etc."""

from __future__ import annotations

import json
import os
from pathlib import Path

from harness.device.environment import describe_environment
from harness.device.machine import parse_cpuinfo, parse_meminfo, storage_of
from harness.jsonable import to_json
from harness.targets.local import LocalTarget

X86 = """processor\t: 0
model name\t: Some CPU @ 3 GHz
physical id\t: 0
core id\t\t: 0
flags\t\t: fpu avx2 hypervisor

processor\t: 1
model name\t: Some CPU @ 3 GHz
physical id\t: 0
core id\t\t: 0
flags\t\t: fpu avx2 hypervisor

"""
ARM = """processor\t: 0
Features\t: fp asimd
CPU implementer\t: 0x41
CPU part\t: 0xd05

processor\t: 1
Features\t: fp asimd
CPU implementer\t: 0x41
CPU part\t: 0xd0a

"""


def test_threads_of_one_core_count_once() -> None:
    cpu = parse_cpuinfo(X86)
    assert (cpu.model, cpu.logical, cpu.physical) == ("Some CPU @ 3 GHz", 2, 1)
    assert "avx2" in cpu.flags


def test_arm_names_part_numbers_of_every_cluster() -> None:
    cpu = parse_cpuinfo(ARM)
    assert cpu.model == "Arm implementer/part 0x41/0xd05, 0x41/0xd0a"
    assert (cpu.logical, cpu.physical) == (2, None)
    assert cpu.flags == ("fp", "asimd")


def test_nothing_readable_is_none() -> None:
    cpu = parse_cpuinfo("")
    assert (cpu.model, cpu.logical, cpu.physical, cpu.flags) == (None, None, None, ())
    assert parse_meminfo("") == {}


def test_memory_is_in_bytes() -> None:
    assert parse_meminfo("MemTotal:  24 kB\nHugePages_Total:  3\nOdd: x kB\n") == {
        "MemTotal": 24576,
        "HugePages_Total": 3,
    }


def test_storage_is_that_of_the_innermost_mount(tmp_path: Path) -> None:
    device = tmp_path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    inner = tmp_path / "in ner"
    inner.mkdir()
    root = tmp_path / "root"
    (root / "proc/self").mkdir(parents=True)
    spaced = str(inner).replace(" ", "\\040")
    (root / "proc/self/mountinfo").write_text(
        f"1 0 {number} / / rw - ext4 /dev/outer rw\n"
        f"2 1 {number} / {spaced} rw,noatime shared:1 - f2fs /dev/inner rw\n"
        f"3 1 0:99 / {inner}/elsewhere rw - tmpfs none rw\nshort line\n"
    )
    queue = root / "sys/dev/block" / number / "queue"
    queue.mkdir(parents=True)
    (queue / "rotational").write_text("0\n")
    found = storage_of(inner / "not" / "there", root)
    assert (found.filesystem, found.device, found.mount_options) == (
        "f2fs",
        "/dev/inner",
        "rw,noatime",
    )
    assert found.rotational is False
    assert found.free_bytes is not None
    assert storage_of(tmp_path, root).filesystem == "ext4"


def test_a_machine_that_tells_nothing_is_described_all_the_same(tmp_path: Path) -> None:
    found = describe_environment(
        target=LocalTarget("here"),
        model_path=tmp_path / "m.gguf",
        model_bytes=20,
        model_sha256=None,
        engine_build_id="b",
        engine_version=None,
        runs_dir=tmp_path,
        root=tmp_path / "void",
    )
    assert found.model_bytes == 20
    assert (found.os, found.mem_total_bytes, found.hypervisor) == (None, None, None)
    assert found.model_storage.filesystem is None
    assert found.packages["numpy"]
    json.dumps(to_json(found))
