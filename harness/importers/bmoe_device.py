"""What the other engine's scripts noted of the device: `.metrics`, `.state`, ENTRY and EXIT lines.

Touches nothing; never fails. Temperatures come in degrees, tenths or thousandths, by their suffix
or else by their size; what no sensor can mean is None.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from harness.importers.text import as_whole, kib, number, pairs, whole
from harness.readings import BatteryState, CpufreqState, DeviceState, Peaks, ThermalState

_SIDECAR = re.compile(
    r"^(?P<key>peak_rss_kb|mem_avail_\w+_kb|batt_temp_\w+|cpu_temp_\w+)=(?P<value>\S*)[ \t]*$", re.M
)
_TEMPERATURE = re.compile(r"(-?\d+(?:\.\d+)?)\s*(mC|dC|C)?")
_POLICY = re.compile(r"^(policy\d+):(.*)$", re.M)
_SENSOR = re.compile(r"mValue=(-?[\d.]+).*?mName=([^,}]+)")
_DATE = re.compile(
    r"^date:\s*\w{3} (?P<day>\w{3}\s+\d+ \d\d:\d\d:\d\d) (?P<zone>\w+) (?P<year>\d{4})", re.M
)
_ZONES_H = {"UTC": 0, "GMT": 0, "CET": 1, "CEST": 2}
# the CPU zone that the scripts looked for; they do not say which it was
_CPU = "cpu"


@dataclass(frozen=True)
class DeviceNotes:
    """What one source says of a cell; empty where it says nothing."""

    entry: DeviceState = field(default_factory=DeviceState)
    exit: DeviceState = field(default_factory=DeviceState)
    peaks: Peaks = field(default_factory=Peaks)
    peak_rss_bytes: int | None = None
    waited_s: float | None = None
    notes: tuple[str, ...] = ()


def celsius(text: str | None, unit: str | None = None) -> float | None:
    """Degrees; the unit by its suffix, or by the size of the number."""
    match = _TEMPERATURE.match((text or "").strip())
    value = number(match[1]) if match else None
    if match is None or value is None:
        return None
    unit = match[2] or unit
    if unit is None:
        unit = "mC" if abs(value) > 2000 else "dC" if abs(value) > 150 else "C"
    degrees = value / {"mC": 1000.0, "dC": 10.0, "C": 1.0}[unit]
    return degrees if -40.0 <= degrees <= 150.0 else None


def is_sidecar(text: str) -> bool:
    """Key and value a line, of those that the device sampler writes."""
    return _SIDECAR.search(text) is not None


def read_sidecar(text: str) -> DeviceNotes:
    """A `.metrics` file, or the copy of one inside a log."""
    said = {m["key"]: m["value"] for m in _SIDECAR.finditer(text)}

    def kb(name: str) -> int | None:
        return kib(number(said.get(name)))

    return DeviceNotes(
        entry=_state(
            kb("mem_avail_before_kb"),
            celsius(said.get("cpu_temp_before_mC"), "mC"),
            celsius(said.get("batt_temp_before_dC"), "dC"),
        ),
        exit=_state(
            kb("mem_avail_after_kb"),
            celsius(said.get("cpu_temp_after_mC"), "mC"),
            celsius(said.get("batt_temp_after_dC"), "dC"),
        ),
        peaks=Peaks(
            cpu_temp_max_c=celsius(said.get("cpu_temp_max_mC"), "mC"),
            battery_temp_max_c=celsius(said.get("batt_temp_max_dC"), "dC"),
            mem_available_min_bytes=kb("mem_avail_floor_kb"),
        ),
        peak_rss_bytes=kb("peak_rss_kb"),
    )


def _state(
    memory: int | None,
    cpu_c: float | None,
    battery_c: float | None,
    caps: Iterable[CpufreqState] = (),
    unix_s: float | None = None,
) -> DeviceState:
    return DeviceState(
        unix_s=unix_s,
        mem_available_bytes=memory,
        cpufreq=tuple(caps),
        thermal=() if cpu_c is None else (ThermalState(_CPU, _CPU, cpu_c),),
        battery=None if battery_c is None else BatteryState(temp_c=battery_c),
    )


# --- .state --------------------------------------------------------------------------------------


def is_state(text: str) -> bool:
    """Blocks of the state before and after a run."""
    return "--- BEFORE ---" in text or (_POLICY.search(text) is not None and "scaling_max=" in text)


def read_state(text: str) -> DeviceNotes:
    """A `.state` file. Sensors that read the same before and after are trip points: left out."""
    before, _, after = text.partition("--- AFTER ---")
    sensors = [{m[2]: m[1] for m in _SENSOR.finditer(part)} for part in (before, after)]
    moving = {n for n, v in sensors[0].items() if n in sensors[1] and sensors[1][n] != v}
    still = sorted((sensors[0].keys() | sensors[1].keys()) - moving)
    notes = (
        (f"temperatures that do not vary are no temperatures: {', '.join(still)} left out",)
        if still
        else ()
    )
    entry, leaving = (
        _block(part, {n: v for n, v in values.items() if n in moving})
        for part, values in zip((before, after), sensors, strict=True)
    )
    return DeviceNotes(entry, leaving, notes=notes)


def _block(text: str, sensors: Mapping[str, str]) -> DeviceState:
    memory = re.search(r"MemAvailable:\s*(\d+)", text)
    battery = re.search(r"battery_temp_dC:[ \t]*(\S*)", text)
    state = _state(
        kib(number(memory[1])) if memory else None,
        None,
        celsius(battery[1], "dC") if battery else None,
        (_policy(m[1], pairs(m[2])) for m in _POLICY.finditer(text)),
        _unix_s(text),
    )
    zones = tuple(ThermalState(n, n, celsius(v, "C")) for n, v in sorted(sensors.items()))
    return DeviceState(
        unix_s=state.unix_s,
        mem_available_bytes=state.mem_available_bytes,
        cpufreq=state.cpufreq,
        thermal=zones,
        battery=state.battery,
    )


def _policy(name: str, said: Mapping[str, str]) -> CpufreqState:
    return CpufreqState(
        policy=name,
        scaling_max_khz=whole(said.get("scaling_max")),
        scaling_cur_khz=whole(said.get("cur")),
        cpuinfo_max_khz=whole(said.get("hw_max")),
    )


def _unix_s(text: str) -> float | None:
    """Of a date with a zone's name that is known."""
    match = _DATE.search(text)
    if match is None or match["zone"] not in _ZONES_H:
        return None
    try:
        words = " ".join(f"{match['day']} {match['year']}".split())
        local = datetime.strptime(words, "%b %d %H:%M:%S %Y").replace(tzinfo=UTC)
    except ValueError:
        return None
    return (local - timedelta(hours=_ZONES_H[match["zone"]])).timestamp()


# --- ENTRY and EXIT ------------------------------------------------------------------------------


def read_moment(text: str) -> DeviceState:
    """`batt=420 dC, cpu=44400 mC, memavail=6837980 kB, freq=1555200`, with other names too."""
    said = {m[1].lower(): m[2] for m in re.finditer(r"([A-Za-z_]\w*)=\s*([^=]*)(?=\s|,|$)", text)}
    first = {key: value.split(",")[0].strip() for key, value in said.items()}

    def of(*names: str) -> str | None:
        return next((first[n] for n in names if n in first), None)

    memory = re.match(r"\d+", of("memavail", "mem_avail", "mem", "memavailable") or "")
    return _state(
        kib(number(memory[0])) if memory else None,
        celsius(of("cpu", "cpu_temp", "cputemp")),
        celsius(of("batt", "battery", "batt_temp", "bat")),
        _caps(of("freq_cap", "freqcap", "cap", "caps"), of("freq", "scaling_max")),
    )


def waited_s(text: str) -> float | None:
    """`waited=180s`."""
    match = re.search(r"\bwaited=(\d+(?:\.\d+)?)\s*s?\b", text)
    return number(match[1]) if match else None


def _caps(several: str | None, one: str | None) -> list[CpufreqState]:
    """`freq=` is the cap of the first cluster; `freq_cap=a/b` those of the clusters in order.

    The second cluster's policy is not named; on the phone of the archive it is policy6.
    """
    values = several.split("/") if several else [one] if one else []
    caps = []
    for i, value in enumerate(values):
        match = re.match(r"\d+", value.strip())
        khz = as_whole(number(match[0])) if match else None
        if khz:
            caps.append(CpufreqState("policy0" if i == 0 else f"cluster{i}", scaling_max_khz=khz))
    return caps


# --- several sources -----------------------------------------------------------------------------


def merged(sources: Iterable[DeviceNotes]) -> DeviceNotes:
    """What the first source that says it says."""
    result = DeviceNotes()
    for s in sources:
        result = DeviceNotes(
            entry=_either(result.entry, s.entry),
            exit=_either(result.exit, s.exit),
            peaks=Peaks(
                _first(result.peaks.cpu_temp_max_c, s.peaks.cpu_temp_max_c),
                _first(result.peaks.battery_temp_max_c, s.peaks.battery_temp_max_c),
                as_whole(
                    _first(result.peaks.mem_available_min_bytes, s.peaks.mem_available_min_bytes)
                ),
            ),
            peak_rss_bytes=as_whole(_first(result.peak_rss_bytes, s.peak_rss_bytes)),
            waited_s=_first(result.waited_s, s.waited_s),
            notes=(*result.notes, *s.notes),
        )
    return result


def _either(a: DeviceState, b: DeviceState) -> DeviceState:
    return DeviceState(
        unix_s=_first(a.unix_s, b.unix_s),
        mem_available_bytes=as_whole(_first(a.mem_available_bytes, b.mem_available_bytes)),
        cpufreq=a.cpufreq or b.cpufreq,
        thermal=a.thermal or b.thermal,
        battery=a.battery or b.battery,
    )


def _first(a: float | None, b: float | None) -> float | None:
    return b if a is None else a
