"""The made-up /sys: thermal zones, clocks, battery; files that change while they are read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple


class Zone(NamedTuple):
    kind: str
    celsius: float
    per_degree: int = 1000


class Policy(NamedTuple):
    cpus: str
    max_khz: int


# as on a phone: clusters of cores, a battery in tenths, and a trip point that is no thermometer
ZONES = {
    "thermal_zone0": Zone("cpu-0-0", 38.2),
    "thermal_zone1": Zone("cpu-0-1", 38.6),
    "thermal_zone2": Zone("cpu-1-0", 39.1),
    "thermal_zone3": Zone("gpu", 36.4),
    "thermal_zone4": Zone("battery", 29.5),
    "thermal_zone5": Zone("soc-trip", 99.6),
}
POLICIES = {"policy0": Policy("0 1 2 3", 1_804_800), "policy4": Policy("4 5 6 7", 2_841_600)}
BATTERY = {
    "type": "Battery",
    "present": "1",
    "health": "Good",
    "technology": "Li-ion",
    "status": "Discharging",
    "capacity": "81",
    "temp": "295",
    "current_now": "-412000",
    "voltage_now": "3987000",
    "charge_counter": "3240000",
}


class Sensors:
    """`root` stands for /sys."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def create(self) -> None:
        for name, zone in ZONES.items():
            directory = self._root / "class/thermal" / name
            _write(directory / "type", zone.kind)
            _write(directory / "mode", "enabled")
            self.set_temperature(name, zone.celsius)
        cpu = self._root / "devices/system/cpu"
        for name in ("possible", "present", "online"):
            _write(cpu / name, "0-7")
        for name, policy in POLICIES.items():
            values: dict[str, str | int] = {
                "affected_cpus": policy.cpus,
                "related_cpus": policy.cpus,
                "cpuinfo_max_freq": policy.max_khz,
                "cpuinfo_min_freq": 300_000,
                "scaling_min_freq": 300_000,
                "scaling_governor": "schedutil",
            }
            for key, value in values.items():
                _write(cpu / "cpufreq" / name / key, value)
            self.set_cap(name, policy.max_khz)
        for key, text in BATTERY.items():
            _write(self._root / "class/power_supply/battery" / key, text)
        for kind in ("ac", "usb"):
            self.set_plugged(kind, False)

    def set_temperature(self, zone: str, celsius: float) -> None:
        made_up = ZONES[zone]
        raw = round(celsius * made_up.per_degree)
        _write(self._root / "class/thermal" / zone / "temp", raw)

    def set_cap(self, policy: str, khz: int) -> None:
        """The cap, and the cores run at it."""
        directory = self._policy(policy)
        for name in ("scaling_max_freq", "scaling_cur_freq"):
            _write(directory / name, khz)

    def set_governor(self, policy: str, governor: str) -> None:
        _write(self._policy(policy) / "scaling_governor", governor)

    def _policy(self, name: str) -> Path:
        if name not in POLICIES:
            raise KeyError(name)
        return self._root / "devices/system/cpu/cpufreq" / name

    def set_battery(
        self,
        *,
        celsius: float | None = None,
        capacity_pct: int | None = None,
        status: str | None = None,
        current_ua: int | None = None,
    ) -> None:
        """`status` as the kernel says it: Charging, Discharging, Not charging, Full."""
        directory = self._root / "class/power_supply/battery"
        if celsius is not None:
            _write(directory / "temp", round(celsius * 10))
            self.set_temperature("thermal_zone4", celsius)
        for name, value in (
            ("capacity", capacity_pct),
            ("status", status),
            ("current_now", current_ua),
        ):
            if value is not None:
                _write(directory / name, value)

    def set_plugged(self, kind: str, online: bool) -> None:
        """`kind`: ac or usb."""
        directory = self._root / "class/power_supply" / kind
        _write(directory / "type", {"ac": "Mains", "usb": "USB"}[kind])
        _write(directory / "online", int(online))


def _write(path: Path, value: str | int) -> None:
    """In place, for whoever holds the file open reads on in it; shortened only after the write,
    so that nobody finds it empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = f"{value}\n".encode()
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(handle, data, 0)
        os.ftruncate(handle, len(data))
    finally:
        os.close(handle)
