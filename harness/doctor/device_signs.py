"""What the looks at a device mean: heat, clocks, limits, reads, neighbours. Pure.

What a campaign asks as well is taken from `suitability`, and what it means is added here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.analysis.cpu_zones import cpu_rank, hottest_cpu, zone_name
from harness.analysis.device_state import CpuSensor
from harness.device.checkup import CheckUp
from harness.device.suitability import Finding, Needs, findings
from harness.doctor.asked_signs import asked, engines, free_space, load, memory
from harness.doctor.signs import Level, Sign
from harness.readings import DeviceState
from harness.schema import Config
from harness.words import counted

# clocks that follow the load: a cell then begins slow, and how slow depends on what was before it
_STEADY = ("performance", "userspace")
_NOT_TRIED = "not tried: it would disturb a campaign that measures there"
_TRY = "leave --quick out"


@dataclass(frozen=True)
class Heat:
    """By what a campaign would see that the device throttles."""

    caps: bool
    temperatures: bool
    probes: bool
    sensor: str | None = None  # which would be used


def heat_of(check_up: CheckUp, config: Config, used: CpuSensor | None = None) -> Heat:
    """`used`: the sensor that a measured campaign used, None where there was none."""
    state = check_up.inspection.work.state
    hottest = hottest_cpu(state, looks=check_up.looks)
    sensor = hottest.zone
    if used is not None:
        sensor = None if used.zone is None else f"{used.zone}.{used.type}"
    return Heat(
        caps=any(c.scaling_max_khz is not None for c in state.cpufreq),
        temperatures=sensor is not None,
        probes=config.schedule.probe_s > 0,
        sensor=sensor,
    )


def device_signs(
    check_up: CheckUp, config: Config, needs: Needs, heat: Heat, used: CpuSensor | None = None
) -> list[Sign]:
    """Everything that was looked at, in the order of a reader's interest."""
    inspection, quick = check_up.inspection, check_up.limits is None
    state = inspection.work.state
    of: dict[str, list[Finding]] = {}
    for finding in findings(inspection, needs):
        of.setdefault(finding.about, []).append(finding)
    return [
        *_temperatures(check_up, config, heat, used),
        *_caps(state, config, heat, of.get("caps", ())),
        *_governor(state, config),
        *_heat_status(check_up, config, of.get("throttling", ())),
        *asked(of.get("power", ())),
        *_direct_io(check_up, of.get("direct_io", ()), quick),
        *_page_cache(check_up, config, needs, quick),
        *_limits(check_up, config),
        *memory(of.get("memory", ()), needs, state.mem_available_bytes),
        *([free_space(check_up.work)] if quick else asked(of.get("space", ()))),
        *engines(of.get("engines", ()), quick),
        *load(of.get("load", ()), (inspection.model.state.cpu_busy_share, state.cpu_busy_share)),
        *_neighbours(check_up, state),
        *asked((*of.get("gates", ()), *of.get("limits", ()))),
        *asked(of.get("clock", ())),
    ]


# --- heat ----------------------------------------------------------------------------------------


def _temperatures(
    check_up: CheckUp, config: Config, heat: Heat, used: CpuSensor | None
) -> Iterable[Sign]:
    state = check_up.inspection.work.state
    zones = len(state.thermal)
    rejected = (
        used.rejected if used is not None else hottest_cpu(state, looks=check_up.looks).rejected
    )
    if heat.sensor is not None:
        of_cpu = sum(cpu_rank(t.type) is not None for t in state.thermal)
        now = next((t.temp_c for t in state.thermal if zone_name(t) == heat.sensor), None)
        reads = "" if now is None else f", at {now:.1f} °C"
        yield Sign(
            "ok",
            "temperatures",
            f"{counted(zones, 'sensor')}, {of_cpu} of the CPU; {heat.sensor} is used{reads}",
            f"cells are compared where they began within {config.verdict.temp_tolerance_c:g} °C",
        )
    else:
        others = ", ".join(sorted({zone_name(t) for t in state.thermal})[:4])
        seen = f"{counted(zones, 'sensor')}, none of the CPU ({others})" if zones else "no sensors"
        by_probes = "the probes before and after each cell are the only thermometer"
        yield Sign(
            "warning",
            "temperatures",
            seen if not rejected else f"{seen}; those of the CPU are none",
            f"heat is not seen; {by_probes}" if heat.probes else "heat is not seen, nor probed",
            "keep schedule.probe_s above 0; on a virtual machine measure on its host"
            if heat.probes
            else "schedule.probe_s=1",
        )
    for words in rejected:
        yield Sign("note", "temperatures", words, "a set point, no thermometer: it is left out")


def _caps(
    state: DeviceState, config: Config, heat: Heat, found: Sequence[Finding]
) -> Iterable[Sign]:
    if not heat.caps:
        gate = config.schedule.gate.cap_min_pct is not None
        yield Sign(
            "warning",
            "frequency caps",
            "none are shown (cpufreq)",
            "throttling is not seen by caps: session.cap_drop_pct and schedule.gate.cap_min_pct "
            "cannot act" + (", though the latter is asked for" if gate else ""),
            None
            if heat.temperatures
            else "rely on verdicts of pairs (+experiment=sequential_pairs)",
        )
        return
    capped = [f for f in found if f.level == "warning"]
    for finding in capped:
        yield Sign(
            "warning",
            "frequency caps",
            finding.words,
            "it is throttled, or told to save power, now: what is measured is not its full speed",
            finding.advice,
        )
    if not capped:
        clusters = ", ".join(
            f"{c.policy} {c.scaling_max_khz / 1e6:.2f} GHz"
            for c in state.cpufreq
            if c.scaling_max_khz is not None
        )
        yield Sign(
            "ok",
            "frequency caps",
            f"{clusters}; none below its maximum",
            "throttling is seen in every cell, while it runs and at its ends",
        )


def _heat_status(check_up: CheckUp, config: Config, found: Sequence[Finding]) -> Iterable[Sign]:
    """Of a phone: Android's own judgement of its heat."""
    yield from asked(found)
    if config.target.get("kind") != "adb" or found:
        return
    if check_up.heat_status is None:
        seen = "Android's thermal service does not tell (or was made to tell something else)"
        yield Sign("note", "heat status", seen, "caps and temperatures have to show it")
    else:
        seen = f"Android's thermal status is {check_up.heat_status}"
        yield Sign("ok", "heat status", seen, "it is not throttled now")


def _governor(state: DeviceState, config: Config) -> Iterable[Sign]:
    names = sorted({c.governor for c in state.cpufreq if c.governor})
    if not names:
        return
    seen = ", ".join(names)
    if all(name in _STEADY for name in names):
        yield Sign("ok", "governor", seen, "clocks do not follow the load")
        return
    kind = config.target.get("kind")
    yield Sign(
        "note",
        "governor",
        seen,
        "clocks follow the load: a cell's first tokens are slower, and short cells vary more",
        "target.fixed_performance=true, where the phone knows it"
        if kind == "adb"
        else "sudo cpupower frequency-set -g performance, there, for as long as you measure",
    )


# --- reads and limits ----------------------------------------------------------------------------


def _direct_io(check_up: CheckUp, found: Sequence[Finding], quick: bool) -> Iterable[Sign]:
    if quick:
        yield Sign("note", "direct reads", _NOT_TRIED, "not known", _TRY)
        return
    for finding in found:
        level: Level = "ok" if check_up.inspection.model.direct_io.works else "note"
        if finding.level != "info":
            level = finding.level
        yield Sign(
            level,
            "direct reads",
            f"{finding.words}{_kind_of(check_up)}",
            "the engine reads from the storage itself, and so does the probe"
            if level == "ok"
            else "reads go through the page cache: what is measured depends on what lies in it",
            finding.advice,
        )
    work = check_up.inspection.work
    if work.direct_io.works is not True and work.dir.path != check_up.inspection.model.dir.path:
        reason = work.direct_io.reason or "not tried"
        yield Sign(
            "note",
            "direct reads",
            f"{work.dir.path}: no direct reads there ({reason})",
            "nothing is lost: only results are written there",
        )


def _kind_of(check_up: CheckUp) -> str:
    model = check_up.model
    if model is None:
        return ""
    # a virtual disk says so too, whatever is behind it
    kind = ", rotational by its own account" if model.rotational else ""
    return f" ({model.filesystem or 'unknown filesystem'} on {model.device or '?'}{kind})"


def _page_cache(check_up: CheckUp, config: Config, needs: Needs, quick: bool) -> Iterable[Sign]:
    about, evicted = "page cache", check_up.evicted
    if quick:
        yield Sign("note", about, _NOT_TRIED, "not known", _TRY)
        return
    if evicted is None or evicted.before_bytes is None or evicted.after_bytes is None:
        yield Sign(
            "note" if needs.direct_io else "warning",
            about,
            "how much of the model lies in it is not shown",
            "whether all cells begin with an equal page cache cannot be told"
            + ("; direct reads pass it by" if needs.direct_io else ""),
            "make the model's file your own (owner, writable), or use cell.engine.direct_io=true",
        )
    elif evicted.before_bytes == 0:
        yield Sign(
            "note", about, "what was just read of the model was not in it", "nothing to be evicted"
        )
    elif evicted.after_bytes > 0:
        stays = f"{evicted.after_bytes / 2**20:.1f} of {evicted.before_bytes / 2**20:.1f} MiB"
        yield Sign(
            "warning",
            about,
            f"{stays} of the model stay in it when evicted",
            "cells begin with unequal page caches: mapped weights come from memory in some of them",
            "end the program that has the model open or mapped",
        )
    elif not config.schedule.drop_page_cache:
        yield Sign(
            "note",
            about,
            "the model can be evicted, but schedule.drop_page_cache is false",
            "the first cell reads from the storage what later ones find in memory",
            "schedule.drop_page_cache=true",
        )
    else:
        yield Sign(
            "ok", about, "the model is evicted whole", "all cells begin with an equal page cache"
        )


def _limits(check_up: CheckUp, config: Config) -> Iterable[Sign]:
    about, limits = "memory limits", check_up.limits
    if limits is None:
        yield Sign("note", about, _NOT_TRIED, "not known", _TRY)
        return
    wanted = config.memory.limits
    if limits.data_enforced:
        yield Sign(
            "ok",
            about,
            f"RLIMIT_DATA holds: {limits.data_reason}",
            "memory.limit_mb, memory=half and design=levels can be enforced",
        )
    else:
        yield Sign(
            "failure" if wanted else "warning",
            about,
            f"RLIMIT_DATA does not hold: {limits.data_reason or 'no reason given'}",
            "memory.limit_mb, memory=half and design=levels refuse to run here",
            "use a Linux kernel of 4.7 or later, without a user-space kernel such as gVisor",
        )
    version = "" if limits.cgroup_version is None else f" (version {limits.cgroup_version})"
    if limits.cgroup_available:
        yield Sign(
            "ok",
            "cgroup",
            f"a memory cgroup can be had{version}",
            "memory.cgroup=wanted or required also limits the page cache",
        )
    else:
        yield Sign(
            "failure" if wanted and config.memory.cgroup == "required" else "note",
            "cgroup",
            f"no memory cgroup can be had{version}: {limits.cgroup_reason or 'no reason given'}",
            "memory.cgroup=required refuses to run; limits hold for anonymous memory alone, and "
            "mapped weights may fill the page cache",
            "run as root, or with systemd-run --user --scope -p Delegate=yes"
            if config.target.get("kind") != "adb"
            else None,
        )


# --- neighbours ----------------------------------------------------------------------------------


def _neighbours(check_up: CheckUp, state: DeviceState) -> Iterable[Sign]:
    blind = []
    if state.cpu_busy_share is None:
        blind.append("neighbour_cpu_pct (/proc/stat)")
    if check_up.counts_waiting is False:
        blind.append("cpu_wait_pct (/proc/PID/schedstat)")
    if check_up.counts_steal is False:
        blind.append("steal_cpu_pct (/proc/stat)")
    if blind:
        yield Sign(
            "note",
            "neighbours",
            f"not counted here: {', '.join(blind)}",
            "these rules of contamination are blind: others show in traces and probes alone",
        )
    else:
        yield Sign(
            "ok",
            "neighbours",
            "time of other programs, waiting for a core and steal are counted",
            "cells that others disturbed are found",
        )
    if check_up.virtual:
        yield Sign(
            "note",
            "virtual machine",
            "its processor says so",
            "the host's load, heat and clocks are not seen from here, but for steal",
            "measure on the host, where you can",
        )
    if state.psi is None:
        yield Sign(
            "note",
            "pressure",
            "no /proc/pressure",
            "stalls for memory and reads are not in the records; no rule needs them",
        )
    else:
        yield Sign("ok", "pressure", "/proc/pressure is shown", "it is recorded with every cell")
