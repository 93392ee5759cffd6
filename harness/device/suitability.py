"""What an inspected device means for a campaign: findings, each with what to do. Pure.

A failure is what would make every cell worthless or end the campaign half-way; it is refused before
the first cell. A warning is what a reader of the results should know; it is stored with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.analysis.cpu_zones import cpu_rank, hottest_cpu, zone_name
from harness.device.gates import NAMES, unreadable
from harness.device.inspection import Inspection
from harness.errors import DeviceError, UsageError
from harness.planned import Arm
from harness.readings import CpufreqState, DeviceState
from harness.session_config import NO_GATES, USUAL_SESSION, GateConfig, SessionConfig
from harness.words import counted

MIB = 2**20
GIB = 2**30

BUSY_DEVICE_SHARE = 0.25
LOW_BATTERY_PCT = 15
# a clock that a governor or rounding leaves just below the maximum is no cap
CAP_SLACK = 0.99
CLOCK_STEP_S = 0.5
CLOCK_OFF_S = 2.0
_CHARGES = ("charging", "full")

# Less than that is certainly too little: tables by token, and what is written once. How long a cell
# takes, which is what its samples grow with, is not known before.
_CELL_BYTES = 64 * 1024
_TOKEN_BYTES = 256
_TRACED_TOKEN_BYTES = 4 * 1024
# and with so many times as much there is no doubt
_AMPLE = 16

Level = Literal["info", "warning", "failure"]


@dataclass(frozen=True)
class Finding:
    """`about`: one word for what was looked at; `advice`: what to do, None where there is nothing.

    `usage`: a failure of what was asked for, not of the device.
    """

    level: Level
    about: str
    words: str
    advice: str | None = None
    usage: bool = False


@dataclass(frozen=True)
class Needs:
    """What a campaign asks of a device.

    `put_bytes`: what is still to be put there; `write_bytes`: what cells will have written there at
    least (`cell_bytes`). `anon_bytes`: anonymous memory of the largest cell. None: not known.
    """

    put_bytes: int = 0
    write_bytes: int = 0
    model_bytes: int | None = None
    model_sha256: str | None = None
    anon_bytes: int | None = None
    direct_io: bool = False
    probes: bool = True
    gate: GateConfig = NO_GATES
    session: SessionConfig = USUAL_SESSION


def cell_bytes(arm: Arm) -> int:
    """What a cell of the arm writes at least."""
    settings = arm.engine
    traces = (settings.route_trace, settings.io_trace, settings.compute_trace is not None)
    per_token = _TOKEN_BYTES + _TRACED_TOKEN_BYTES * sum(traces)
    return _CELL_BYTES + per_token * arm.n_predict


def findings(
    inspection: Inspection, needs: Needs, seen: Sequence[DeviceState] = ()
) -> tuple[Finding, ...]:
    """All that is to be said; `seen`: states of the campaign so far, of one that is resumed."""
    state = inspection.work.state
    return (
        *_space(inspection, needs),
        *_model(inspection, needs),
        *_direct_io(inspection, needs),
        *_engines(inspection),
        *_load(inspection),
        *_memory(state, needs),
        *_sensors(state, needs, seen),
        *_clocks(state),
        *_throttling(inspection),
        *_power(state),
        *_gates(state, needs),
        *_limits(state, needs, seen),
        *_clock(inspection),
    )


def refuse(found: Iterable[Finding]) -> None:
    """Raises for the first failure: UsageError where it was asked for, else DeviceError."""
    for finding in found:
        if finding.level == "failure":
            raise (UsageError if finding.usage else DeviceError)(in_words(finding))


def in_words(finding: Finding) -> str:
    """One line: what was found, and what to do."""
    return finding.words if finding.advice is None else f"{finding.words}; {finding.advice}"


# --- storage -------------------------------------------------------------------------------------


def _space(inspection: Inspection, needs: Needs) -> Iterable[Finding]:
    place = inspection.work.dir
    if place.writable is False:
        yield Finding(
            "failure", "space", f"{place.path}: cannot be written", "give another directory"
        )
        return
    if place.free_bytes is None:
        yield Finding("warning", "space", f"{place.path}: the space left is not known")
        return
    needed = needs.put_bytes + needs.write_bytes
    words = (
        f"{place.path}: {_size(place.free_bytes)} free ({place.filesystem or 'unknown filesystem'})"
        f", {_size(needed)} at least will be used"
    )
    if place.free_bytes < needed:
        yield Finding("failure", "space", words, "make room, or give another directory")
    elif place.free_bytes < needed + (_AMPLE - 1) * needs.write_bytes:
        yield Finding("warning", "space", words, "traces and long cells may need more")
    else:
        yield Finding("info", "space", words)


def _model(inspection: Inspection, needs: Needs) -> Iterable[Finding]:
    found, wanted = inspection.model_sha256, needs.model_sha256
    if found is None or wanted is None:
        return
    place = inspection.model.dir.path
    if found != wanted:
        yield Finding(
            "failure",
            "model",
            f"{place}: the model there has SHA-256 {found}, not {wanted}",
            "remove it, so that it is put there again",
        )
    else:
        yield Finding("info", "model", f"{place}: the model has the SHA-256 that was asked for")


def _direct_io(inspection: Inspection, needs: Needs) -> Iterable[Finding]:
    place, direct = inspection.model.dir, inspection.model.direct_io
    reason = f" ({direct.reason})" if direct.reason else ""
    if place.fuse:
        yield Finding(
            "warning",
            "direct_io",
            f"{place.path}: is on FUSE ({place.filesystem}): another program does its reads",
            "keep the model on a real filesystem",
        )
    if direct.works:
        yield Finding("info", "direct_io", f"{place.path}: direct reads give the file's bytes")
    elif direct.works is None:
        level: Level = "warning" if needs.direct_io else "info"
        yield Finding(level, "direct_io", f"{place.path}: direct reads could not be tried{reason}")
    elif needs.direct_io:
        yield Finding(
            "failure",
            "direct_io",
            f"cell.engine.direct_io: true, but direct reads do not work in {place.path}{reason}",
            "use cell.engine.direct_io=false, or keep the model on another filesystem",
            usage=True,
        )
    else:
        yield Finding("info", "direct_io", f"{place.path}: direct reads do not work{reason}")


# --- who else is there ---------------------------------------------------------------------------


def _engines(inspection: Inspection) -> Iterable[Finding]:
    if inspection.model.sees_all_processes is False:
        yield Finding(
            "info", "engines", "the processes of other users are not shown: an engine may be there"
        )
    for engine in inspection.engines:
        who = f"{engine.name} (pid {engine.pid})"
        if engine.cpu_share is None:
            yield Finding("warning", "engines", f"{who} is running", "end it if it is not needed")
            continue
        words = f"{who} is running and uses {engine.cpu_share:.0%} of a core"
        yield Finding(
            "failure" if engine.is_busy else "warning",
            "engines",
            words,
            "end it, or wait for its end" if engine.is_busy else "end it: it holds memory",
        )


def _load(inspection: Inspection) -> Iterable[Finding]:
    shares = [look.state.cpu_busy_share for look in (inspection.model, inspection.work)]
    known = [share for share in shares if share is not None]
    if known and min(known) >= BUSY_DEVICE_SHARE:
        yield Finding(
            "warning",
            "load",
            f"other programs use {min(known):.0%} of all cores",
            "end them: cells will wait for a core",
        )


def _memory(state: DeviceState, needs: Needs) -> Iterable[Finding]:
    available = state.mem_available_bytes
    if available is None:
        yield Finding("warning", "memory", "how much memory is available is not known")
        return
    words = f"{_size(available)} of memory available"
    if needs.model_bytes is not None:
        share = available / max(needs.model_bytes, 1)
        words += (
            f", {share:.{2 if share < 10 else 0}f} times the model ({_size(needs.model_bytes)})"
        )
    if needs.anon_bytes is not None and needs.anon_bytes > available:
        yield Finding(
            "warning",
            "memory",
            f"{words}; the largest cell needs {_size(needs.anon_bytes)} of anonymous memory",
            "free memory, or use a smaller cache",
        )
    else:
        yield Finding("info", "memory", words)


# --- clocks and heat -----------------------------------------------------------------------------


def _sensors(state: DeviceState, needs: Needs, seen: Sequence[DeviceState]) -> Iterable[Finding]:
    hottest = hottest_cpu(state, seen)
    zones = [zone_name(t) for t in state.thermal if cpu_rank(t.type) is not None]
    for words in hottest.rejected:
        yield Finding("info", "sensors", f"constant, hence no thermometer: {words}")
    if hottest.temp_c is not None:
        yield Finding(
            "info",
            "sensors",
            f"{counted(len(state.thermal), 'thermal zone')}, {len(zones)} of the CPU; the hottest, "
            f"{hottest.zone}, reads {hottest.temp_c:.1f} °C",
        )
        return
    watched = needs.session.cpu_temp_max_c is not None or needs.session.cpu_temp_rise_c is not None
    yield Finding(
        "info" if needs.probes and not watched else "warning",
        "sensors",
        "no sensor shows the CPU's temperature"
        + ("; session.cpu_temp_* watches nothing" if watched else "")
        + ("" if needs.probes else "; nor is there a probe, so that nothing shows heat"),
        None if needs.probes else "use schedule.probe_s=1",
    )


def _clocks(state: DeviceState) -> Iterable[Finding]:
    if not state.cpufreq:
        yield Finding("info", "caps", "no frequency caps are shown")
        return
    governors = sorted({c.governor for c in state.cpufreq if c.governor})
    yield Finding("info", "governor", f"governor {', '.join(governors) or 'not shown'}")
    capped = [c for c in state.cpufreq if _share_of_maximum(c) < CAP_SLACK]
    for c in capped:
        cap, most = (c.scaling_max_khz or 0) / 1e6, (c.cpuinfo_max_khz or 0) / 1e6
        yield Finding(
            "warning",
            "caps",
            f"{c.policy} is capped at {cap:.2f} GHz, {_share_of_maximum(c):.0%} of its "
            f"{most:.2f} GHz",
            "let the device cool and end its power saving, or wait with schedule.gate.cap_min_pct",
        )
    if not capped:
        yield Finding("info", "caps", "no cluster is capped below its maximum")


def _throttling(inspection: Inspection) -> Iterable[Finding]:
    if inspection.throttling is not None:
        yield Finding(
            "warning",
            "throttling",
            f"Android throttles the device: {inspection.throttling}",
            "let it cool",
        )


def _share_of_maximum(c: CpufreqState) -> float:
    if not c.scaling_max_khz or not c.cpuinfo_max_khz:
        return 1.0
    return c.scaling_max_khz / c.cpuinfo_max_khz


def _power(state: DeviceState) -> Iterable[Finding]:
    battery = state.battery
    if battery is None or battery.capacity_pct is None:
        return
    status = battery.status or "status not shown"
    words = f"battery at {battery.capacity_pct:.0f} %, {status.lower()}"
    if status.lower() in _CHARGES:
        yield Finding("info", "power", words)
    elif battery.capacity_pct < LOW_BATTERY_PCT:
        yield Finding(
            "warning", "power", words, "charge it: many devices lower their clocks when it is low"
        )
    else:
        yield Finding("info", "power", words)


def _gates(state: DeviceState, needs: Needs) -> Iterable[Finding]:
    for what in unreadable(state, needs.gate):
        yield Finding(
            "warning",
            "gates",
            f"schedule.gate: {NAMES[what]} cannot be read on this device: it is not waited for",
        )


def _limits(state: DeviceState, needs: Needs, seen: Sequence[DeviceState]) -> Iterable[Finding]:
    """That what is asked for where a cell is throttled will never happen."""
    session = needs.session
    if session.on_throttle == "mark" or not session.watches:
        return
    shows_caps = any(c.scaling_max_khz is not None for c in state.cpufreq)
    shows_cpu = hottest_cpu(state, seen).temp_c is not None
    on_caps = session.cap_drop_pct is not None
    on_cpu = session.cpu_temp_max_c is not None or session.cpu_temp_rise_c is not None
    if (on_caps and shows_caps) or (on_cpu and shows_cpu):
        return
    missing = ["no frequency caps"] if on_caps else []
    missing += ["no temperature of the CPU"] if on_cpu else []
    other = None
    if shows_cpu:
        other = "set session.cpu_temp_max_c or cpu_temp_rise_c: temperatures are shown"
    elif shows_caps:
        other = "set session.cap_drop_pct: frequency caps are shown"
    yield Finding(
        "warning",
        "limits",
        f"session.on_throttle: {session.on_throttle} cannot act: this device shows "
        f"{' and '.join(missing)}, so that throttled cells will count",
        other,
    )


def _clock(inspection: Inspection) -> Iterable[Finding]:
    step, off = inspection.clock_step_s, inspection.clock_off_s
    if step is not None and abs(step) > CLOCK_STEP_S:
        yield Finding(
            "warning",
            "clock",
            f"the device's clock was set by {step:+.1f} s between two looks",
            "durations do not depend on it; times of day in the records do",
        )
    if off is not None and abs(off) > CLOCK_OFF_S + inspection.clock_error_s:
        yield Finding("info", "clock", f"the device's clock is {off:+.1f} s off this machine's")
    elif off is not None:
        yield Finding("info", "clock", "the device's clock agrees with this machine's")


def _size(n_bytes: int) -> str:
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (1024, "KiB")):
        if n_bytes >= unit:
            return f"{n_bytes / unit:.{1 if unit == GIB else 0}f} {name}"
    return f"{n_bytes} bytes"
