"""What a device says before a campaign, and what is made of it: recorded and made-up answers."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any, cast

import pytest
from cell_parts import make_arm, with_engine
from hypothesis import given
from hypothesis import strategies as st

from harness.device.inspection import (
    GRACE_ENV,
    DirectIo,
    DirState,
    Inspection,
    Look,
    OtherEngine,
    inspect,
    parse_stats,
)
from harness.device.suitability import Finding, Needs, cell_bytes, findings, in_words, refuse
from harness.errors import DeviceError, UsageError
from harness.jsonable import to_json
from harness.readings import BatteryState, CpufreqState, DeviceState, ThermalState
from harness.records import TargetId
from harness.session_config import GateConfig, SessionConfig
from harness.targets.link import Finished
from harness.targets.target import Target

MIB, GIB = 2**20, 2**30
LAUNCHER = PurePosixPath("/data/moe-launcher")
PHONE = DeviceState(
    unix_s=1000.0,
    mem_total_bytes=8 * GIB,
    mem_available_bytes=3 * GIB,
    cpu_busy_share=0.05,
    cpufreq=(
        CpufreqState("policy0", "0 1 2 3", 1_800_000, 900_000, 1_800_000, "schedutil"),
        CpufreqState("policy4", "4 5 6 7", 2_800_000, 900_000, 2_800_000, "walt"),
    ),
    thermal=(ThermalState("thermal_zone0", "cpu-0-0", 41.5), ThermalState("tz1", "battery", 30.0)),
    battery=BatteryState(30.0, 80.0, "Discharging", -300_000),
)
ANSWER = {
    "machine": "aarch64",
    "kernel": "5.15.1",
    "hostname": "localhost",
    "page_bytes": 4096,
    "boot_id": "b",
    "unix_s": 1000.0,
    "monotonic_ms": 5000,
    "user": 2000,
    "dir": {
        "path": "/data/m",
        "filesystem": "f2fs",
        "fuse": False,
        "size_bytes": 100 * GIB,
        "free_bytes": 50 * GIB,
        "writable": True,
    },
    "direct_io": {"works": True, "reason": None},
    "other_engines": [],
    "sees_all_processes": True,
    "state": to_json(PHONE),
}


@pytest.fixture(autouse=True)
def usual_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of tests which run beside others."""
    monkeypatch.delenv(GRACE_ENV, raising=False)


class Device:
    """Answers as the launcher does."""

    id = TargetId("adb", "phone")

    def __init__(self, **changes: Any) -> None:
        self.answer = json.loads(json.dumps(ANSWER)) | changes
        self.now = 1000.0
        self.looks = 0
        self.stats: list[str] = []
        self.calls: list[list[str]] = []
        self.set_clock_by = 0.0
        self.hot = False
        self.digests: dict[str, str | None] = {}

    def call(self, argv: Sequence[str], *, timeout_s: float, stdin: bytes = b"") -> Finished:
        self.calls.append(list(argv))
        if argv[0] == "dumpsys":
            return Finished(0, b"Thermal Status: 3\n" if self.hot else b"", b"")
        if argv[0] == "cat":
            return Finished(1, self.stats.pop(0).encode(), b"cat: /proc/9/stat: No such file")
        if argv[1] == "digest":
            files = [{"path": p, "sha256": h, "bytes": 1} for p, h in self.digests.items()]
            return Finished(0, json.dumps({"files": files}).encode(), b"")
        step = self.looks * self.set_clock_by
        answer = self.answer | {
            "unix_s": self.now + step,
            "monotonic_ms": 5000 + 1000 * (self.now - 1000),
            "dir": self.answer["dir"] | {"path": argv[argv.index("--dir") + 1]},
        }
        self.looks += 1
        self.now += 0.1
        return Finished(0, json.dumps(answer).encode(), b"")

    def nap(self, seconds: float) -> None:
        self.now += seconds

    def inspect(self, **options: Any) -> Inspection:
        return inspect(
            cast(Target, self),
            LAUNCHER,
            work_dir=PurePosixPath("/data/w"),
            model_files=(PurePosixPath("/data/m/a.gguf"), PurePosixPath("/data/m/b.gguf")),
            nap=self.nap,
            wall=lambda: self.now,
            **options,
        )


def found(device: Device | None = None, needs: Needs | None = None) -> dict[str, list[Finding]]:
    by_topic: dict[str, list[Finding]] = {}
    for finding in findings((device or Device()).inspect(), needs or Needs()):
        by_topic.setdefault(finding.about, []).append(finding)
    return by_topic


def of_state(needs: Needs | None = None, **changes: Any) -> dict[str, list[Finding]]:
    return found(Device(state=to_json(dataclasses.replace(PHONE, **changes))), needs)


def one(topic: str, level: str, by_topic: dict[str, list[Finding]]) -> str:
    (finding,) = by_topic[topic]
    assert finding.level == level, finding
    return in_words(finding)


# --- asking --------------------------------------------------------------------------------------


def test_model_and_work_directory_are_looked_at() -> None:
    device = Device()
    inspection = device.inspect()
    assert inspection.model.dir == DirState("/data/m", "f2fs", False, 100 * GIB, 50 * GIB, True)
    assert inspection.work.dir.path == "/data/w"
    assert inspection.model.direct_io == DirectIo(True)
    assert inspection.work.state == PHONE
    assert inspection.clock_step_s == pytest.approx(0)
    assert inspection.clock_off_s == pytest.approx(-0.05)
    assert inspection.clock_error_s == pytest.approx(0.05)
    assert inspection.model_sha256 is None
    assert [call[1] for call in device.calls] == ["inspect", "inspect", "thermalservice"]


def stat(pid: int, ticks: int, name: str = "moe engine) (x", started: int = 77) -> str:
    fields = ["S", *["1"] * 10, str(ticks), "0", *["0"] * 6, str(started), "9"]
    return f"{pid} ({name}) {' '.join(fields)}\n"


def test_engines_are_asked_twice_what_they_have_used() -> None:
    device = Device(other_engines=[{"pid": pid, "name": f"e{pid}"} for pid in (7, 8, 9)])
    device.stats = [
        "100.00 50.0\n" + stat(7, 1000) + stat(8, 5) + stat(9, 1),
        "101.25 50.0\n" + stat(7, 1100) + stat(8, 5, started=999),
    ]
    assert device.inspect(grace_s=0).engines == (
        OtherEngine(7, "e7", 0.8),
        OtherEngine(8, "e8", None),  # another process by now
        OtherEngine(9, "e9", None),  # gone
    )


def test_an_engine_that_is_ending_is_waited_for() -> None:
    """A campaign that was killed leaves one for seconds, and is resumed at once."""
    device = Device(other_engines=[{"pid": 7, "name": "moe-engine"}])
    busy = ["1.0 1\n" + stat(7, 0), "2.0 1\n" + stat(7, 90)]
    device.stats = [*busy, *busy, "3.0 1\n" + stat(7, 90), "4.0 1\n"]
    assert device.inspect().engines == (OtherEngine(7, "moe-engine", None),)
    assert device.now == pytest.approx(1000 + 3 + 4 * 0.1)


def test_where_engines_take_turns_they_are_waited_for_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = Device(other_engines=[{"pid": 7, "name": "moe-engine"}])
    device.stats = ["1.0 1\n" + stat(7, 0), "2.0 1\n" + stat(7, 90)] * 20
    assert device.inspect().engines == (OtherEngine(7, "moe-engine", 0.9),)
    assert len(device.stats) == 8  # after sixteen looks
    device.stats = [*device.stats[:2] * 20, "41.0 1\n" + stat(7, 90), "42.0 1\n"]
    monkeypatch.setenv(GRACE_ENV, "60")
    assert device.inspect().engines == (OtherEngine(7, "moe-engine", None),)
    assert device.stats == []


@pytest.mark.parametrize("text", ["long", "-1", "inf", "nan"])
def test_a_patience_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(GRACE_ENV, text)
    with pytest.raises(UsageError, match=f"^MOE_OTHER_ENGINES_S='{text}' in the environment: give"):
        Device().inspect()


@given(st.text())
def test_no_text_of_stats_raises(text: str) -> None:
    parse_stats(text)
    parse_stats("1.0 2.0\n" + text)


def test_the_models_hash_is_that_of_its_shards() -> None:
    device = Device()
    device.digests = {"/data/m/b.gguf": "b" * 64, "/data/m/a.gguf": "a" * 64}
    wanted = hashlib.sha256(f"{'a' * 64}\n{'b' * 64}\n".encode()).hexdigest()
    inspection = device.inspect(hash_model=True)
    assert inspection.model_sha256 == wanted
    good = [f for f in findings(inspection, Needs(model_sha256=wanted)) if f.about == "model"]
    bad = [f for f in findings(inspection, Needs(model_sha256="c")) if f.about == "model"]
    assert [f.level for f in good + bad] == ["info", "failure"]
    device.digests["/data/m/b.gguf"] = None
    with pytest.raises(DeviceError, match=r"phone: /data/m/b.gguf is not there"):
        device.inspect(hash_model=True)


@pytest.mark.parametrize("answer", [b"", b"[]", b"{}", b'{"dir": 3}', b"moe-engine 1.0"])
def test_another_program_than_the_launcher_is_one_line(answer: bytes) -> None:
    class Other(Device):
        def call(self, argv: Sequence[str], *, timeout_s: float, stdin: bytes = b"") -> Finished:
            return Finished(0, answer, b"")

    with pytest.raises(DeviceError, match="moe-launcher") as refused:
        Other().inspect()
    assert "\n" not in str(refused.value)


def test_what_the_launcher_itself_says_is_handed_on() -> None:
    class Refusing(Device):
        def call(self, argv: Sequence[str], *, timeout_s: float, stdin: bytes = b"") -> Finished:
            return Finished(2, b"", b"moe-launcher: inspect: no such directory\n")

    with pytest.raises(DeviceError, match="inspect: no such directory"):
        Refusing().inspect()


# --- what is made of it --------------------------------------------------------------------------


def test_a_good_device_has_no_warnings() -> None:
    every = findings(Device().inspect(), Needs(direct_io=True, write_bytes=GIB, model_bytes=GIB))
    assert {f.level for f in every} == {"info"}
    refuse(every)
    words = " | ".join(in_words(f) for f in every)
    assert "governor schedutil, walt" in words
    assert "thermal_zone0.cpu-0-0, reads 41.5 °C" in words
    assert "battery at 80 %, discharging" in words
    assert "3.00 times the model (1.0 GiB)" in words


@pytest.mark.parametrize(
    ("free", "level"), [(99 * MIB, "failure"), (150 * MIB, "warning"), (GIB, "info")]
)
def test_space(free: int, level: str) -> None:
    device = Device(dir=ANSWER["dir"] | {"free_bytes": free})  # type: ignore[operator]
    words = one("space", level, found(device, Needs(put_bytes=60 * MIB, write_bytes=40 * MIB)))
    assert "100 MiB at least will be used" in words


def test_a_directory_that_cannot_be_written_is_refused() -> None:
    device = Device(dir=ANSWER["dir"] | {"writable": False})  # type: ignore[operator]
    with pytest.raises(DeviceError, match="/data/w: cannot be written"):
        refuse(findings(device.inspect(), Needs()))


def test_direct_io_that_does_not_work_is_refused_only_where_it_is_asked_for() -> None:
    broken = {"works": False, "reason": "the buffer was left untouched"}
    device = Device(direct_io=broken)
    assert one("direct_io", "info", found(device))
    with pytest.raises(UsageError, match=r"cell\.engine\.direct_io.*left untouched.*=false"):
        refuse(findings(device.inspect(), Needs(direct_io=True)))
    untried = Device(direct_io={"works": None, "reason": "no permission"})
    assert "no permission" in one("direct_io", "warning", found(untried, Needs(direct_io=True)))


def test_fuse_is_named() -> None:
    device = Device(dir=ANSWER["dir"] | {"fuse": True, "filesystem": "fuse"})  # type: ignore[operator]
    assert found(device)["direct_io"][0].level == "warning"


@pytest.mark.parametrize(("used", "level"), [(19, "warning"), (50, "failure"), (None, "warning")])
def test_another_engine_is_named_and_refused_where_it_is_at_work(
    used: int | None, level: str
) -> None:
    device = Device(other_engines=[{"pid": 7, "name": "llama-server"}])
    later = "" if used is None else stat(7, 100 + used)
    device.stats = ["10.0 1\n" + stat(7, 100), "11.0 1\n" + later] * 20
    assert "llama-server (pid 7)" in one("engines", level, found(device))


def test_what_the_launcher_cannot_see_is_no_clean_bill() -> None:
    assert one("engines", "info", found(Device(sees_all_processes=False)))


def test_a_busy_device_and_too_little_memory_are_warnings() -> None:
    assert "60% of all cores" in one("load", "warning", of_state(cpu_busy_share=0.6))
    words = one("memory", "warning", of_state(Needs(anon_bytes=4 * GIB, model_bytes=12 * GIB)))
    assert "0.25 times the model (12.0 GiB)" in words
    assert "needs 4.0 GiB" in words
    assert one("memory", "warning", of_state(mem_available_bytes=None))


def test_caps_below_the_hardwares_maximum_are_named_by_cluster() -> None:
    slow = dataclasses.replace(PHONE.cpufreq[1], scaling_max_khz=1_800_000)
    words = one("caps", "warning", of_state(cpufreq=(PHONE.cpufreq[0], slow)))
    assert "policy4 is capped at 1.80 GHz, 64% of its 2.80 GHz" in words
    assert one("caps", "info", of_state(cpufreq=()))


def test_android_is_believed_when_it_says_that_it_throttles() -> None:
    device = Device()
    device.hot = True
    assert "severe" in one("throttling", "warning", found(device))


@pytest.mark.parametrize(
    ("capacity", "status", "level"),
    [
        (14.0, "Discharging", "warning"),
        (14.0, "Charging", "info"),
        (14.0, "Not charging", "warning"),
        (15.0, "Discharging", "info"),
        (3.0, None, "warning"),
    ],
)
def test_a_battery_that_is_low_and_not_charging(
    capacity: float, status: str | None, level: str
) -> None:
    battery = BatteryState(capacity_pct=capacity, status=status)
    assert one("power", level, of_state(battery=battery))


def test_what_cannot_be_waited_for_or_watched_is_said_once_before() -> None:
    needs = Needs(
        gate=GateConfig(cpu_temp_max_c=60, cap_min_pct=90),
        session=SessionConfig(cpu_temp_max_c=80),
        probes=True,
    )
    blind = of_state(needs, thermal=(), cpufreq=())
    assert [f.level for f in blind["gates"]] == ["warning", "warning"]
    assert "session.cpu_temp_* watches nothing" in one("sensors", "warning", blind)
    assert one("sensors", "info", of_state(thermal=()))
    assert "nothing shows heat" in one(
        "sensors", "warning", of_state(Needs(probes=False), thermal=())
    )


@pytest.mark.parametrize("action", ["stop", "repeat"])
def test_what_is_to_happen_to_throttled_cells_and_cannot_is_said_before(action: Any) -> None:
    both = Needs(session=SessionConfig(on_throttle=action, cpu_temp_max_c=80))
    caps = Needs(session=SessionConfig(on_throttle=action))
    heat = Needs(session=SessionConfig(on_throttle=action, cpu_temp_rise_c=10, cap_drop_pct=None))
    blind: dict[str, Any] = {"thermal": (), "cpufreq": ()}
    words = one("limits", "warning", of_state(both, **blind))
    assert words == (
        f"session.on_throttle: {action} cannot act: this device shows no frequency caps and no "
        "temperature of the CPU, so that throttled cells will count"
    )
    assert "no frequency caps, so" in one("limits", "warning", of_state(caps, **blind))
    assert "set session.cpu_temp_max_c" in one("limits", "warning", of_state(caps, cpufreq=()))
    assert "set session.cap_drop_pct" in one("limits", "warning", of_state(heat, thermal=()))
    for needs, changes in ((both, {"thermal": ()}), (both, {"cpufreq": ()}), (caps, {})):
        assert "limits" not in of_state(needs, **changes)
    marking = Needs(session=SessionConfig(cpu_temp_max_c=80))
    assert "limits" not in of_state(marking, **blind)


def test_a_sensor_is_called_constant_only_when_it_was_seen_to_be() -> None:
    trip = dataclasses.replace(PHONE, thermal=(ThermalState("tz9", "cpu-trip", 99.6),))
    inspection = Device(state=to_json(trip)).inspect()
    now = [f for f in findings(inspection, Needs()) if "constant" in f.words]
    later = [f for f in findings(inspection, Needs(), [trip] * 3) if "constant" in f.words]
    assert (len(now), len(later)) == (0, 1)


def test_a_clock_that_is_off_is_recorded_and_one_that_is_set_is_a_warning() -> None:
    device = Device()
    device.set_clock_by = 3600.0
    levels = {f.words: f.level for f in found(device)["clock"]}
    assert levels == {
        "the device's clock was set by +3600.0 s between two looks": "warning",
        "the device's clock agrees with this machine's": "info",
    }
    off = dataclasses.replace(Device().inspect(), clock_off_s=-90.0)
    assert "-90.0 s off" in " ".join(f.words for f in findings(off, Needs()))


def test_traces_need_room() -> None:
    arm = make_arm(n_predict=100)
    assert cell_bytes(with_engine(arm, route_trace=True)) > 2 * cell_bytes(arm)


@given(
    st.builds(
        Look,
        dir=st.builds(DirState, path=st.just("/d")),
        state=st.builds(DeviceState),
        direct_io=st.builds(DirectIo),
    )
)
def test_whatever_is_missing_raises_nothing(look: Look) -> None:
    inspection = Inspection(look, look, (), None, 0.0, None, None)
    for finding in findings(inspection, Needs(direct_io=True)):
        assert in_words(finding)
