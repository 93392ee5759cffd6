"""Settings of a phone that a measurement wants otherwise, and what it says of battery and heat.

Touches the device through `call` alone. What was there before is written to a file on the device
before anything is changed, so that any later process can put it back.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from harness.errors import DeviceError
from harness.jsonable import from_json, to_json
from harness.targets.dumpsys import Battery, Thermal, parse_battery, parse_thermal
from harness.targets.link import Call, Finished

RECORD = "settings-before.json"
# Android's services answer in a second or two; a phone that has just started takes longer.
_TIMEOUT_S = 30.0
# From adb's answer to that of all services; a phone with many apps, and one that was updated.
_BOOT_S = 120.0
_BOOT_LOOK_S = 1.0
# The power HAL acts after the command has returned.
_SETTLE_S = 2.0
_LOOK_S = 0.2


@dataclass(frozen=True)
class SettingOutcome:
    """What became of one setting. `before`, `now`: as the device says, None where it does not.

    `took`: is it as wanted? None: the device accepted it and shows nothing of it.
    """

    setting: str
    wanted: str
    before: str | None
    now: str | None
    took: bool | None
    reason: str | None


@dataclass(frozen=True)
class _Kept:
    """What to put back; `set` is what we changed it to."""

    setting: str
    before: str | None
    set: str


@dataclass(frozen=True)
class _Record:
    settings: tuple[_Kept, ...]


class Restore:
    """The phone is prepared: `settings` says how far. `put_back` undoes it."""

    def __init__(self, call: Call, directory: str, settings: tuple[SettingOutcome, ...]) -> None:
        """Made by `prepare`."""
        self._call, self._directory = call, directory
        self.settings = settings

    def put_back(self) -> tuple[SettingOutcome, ...]:
        """See `put_back`."""
        return put_back(self._call, self._directory)


class Setting(Protocol):
    """A value of the phone's. All of it through `call`; nothing raises but for the link."""

    name: str

    def read(self, call: Call) -> str | None:
        """As the device says, or None."""

    def write(self, call: Call, value: str | None) -> str | None:
        """Set it; why it could not be, or None. `value` None: it was not known before."""

    def wanted(self, before: str | None) -> str:
        """What it shall be for measuring."""


class StayAwake:
    """Does the screen stay on while the phone is fed? Bits: 1 AC, 2 USB, 4 wireless, 8 dock."""

    name = "stay_awake"
    _KEY = "stay_on_while_plugged_in"

    def read(self, call: Call) -> str | None:
        """`null`: it was never set."""
        answer = call(["settings", "get", "global", self._KEY], timeout_s=_TIMEOUT_S)
        text = _text(answer.stdout)
        return text if answer.code == 0 and re.fullmatch(r"\d+|null", text) else None

    def write(self, call: Call, value: str | None) -> str | None:
        """See `Setting`."""
        if value is None or value == "null":
            argv = ["settings", "delete", "global", self._KEY]
        else:
            argv = ["settings", "put", "global", self._KEY, value]
        return _refusal(call(argv, timeout_s=_TIMEOUT_S), argv)

    def wanted(self, before: str | None) -> str:
        """All feeds that were chosen, and the three that every version knows."""
        return str((int(before) if before and before.isdigit() else 0) | 7)


class FixedPerformance:
    """Clocks that the phone can keep up for long, instead of short bursts (Android 11 and later).

    No documented command reads it, so it is off before us unless the phone shows otherwise.
    """

    name = "fixed_performance"

    def read(self, call: Call) -> str | None:
        """Some makers' `dumpsys power` show it."""
        answer = call(["dumpsys", "power"], timeout_s=_TIMEOUT_S)
        found = re.search(rb"mFixedPerformanceModeEnabled\s*[=:]\s*(true|false)", answer.stdout)
        return found[1].decode() if found else None

    def write(self, call: Call, value: str | None) -> str | None:
        """See `Setting`."""
        argv = ["cmd", "power", "set-fixed-performance-mode-enabled", value or "false"]
        return _refusal(call(argv, timeout_s=_TIMEOUT_S), argv)

    def wanted(self, before: str | None) -> str:
        """On."""
        return "true"


SETTINGS: tuple[Setting, ...] = (FixedPerformance(), StayAwake())


def prepare(call: Call, directory: str, *, fixed_performance: bool, stay_awake: bool) -> Restore:
    """Switch the settings on, where the phone allows it, and see whether they took.

    What a run that was killed left changed is put back first. Raises DeviceError when what was
    there before cannot be written to `directory`, an existing directory of the device: nothing is
    changed then.
    """
    put_back(call, directory)
    asked = {"fixed_performance": fixed_performance, "stay_awake": stay_awake}
    chosen = [s for s in SETTINGS if asked[s.name]]
    before = {s.name: s.read(call) for s in chosen}
    changes = [s for s in chosen if before[s.name] != s.wanted(before[s.name])]
    if changes:
        kept = [_Kept(s.name, before[s.name], s.wanted(before[s.name])) for s in changes]
        _write_record(call, directory, _Record(tuple(kept)))
    outcomes = tuple(_switch(call, s, before[s.name], s in changes) for s in chosen)
    return Restore(call, directory, outcomes)


def put_back(call: Call, directory: str) -> tuple[SettingOutcome, ...]:
    """Put back what `prepare` changed, whoever called it; () when there is nothing to do.

    A setting that somebody else changed meanwhile is left alone. Raises DeviceError when the
    record of it cannot be read.
    """
    record = _read_record(call, directory)
    if record is None:
        return ()
    known = {s.name: s for s in SETTINGS}
    outcomes = tuple(
        _undo(call, known[kept.setting], kept) for kept in record.settings if kept.setting in known
    )
    if all(o.took is not False for o in outcomes):
        call(["rm", "-f", f"{directory}/{RECORD}"], timeout_s=_TIMEOUT_S)
    return outcomes


def await_services(call: Call, nap: Callable[[float], None]) -> None:
    """On a phone that restarts adb is there long before what answers for its settings.

    Waits through `nap`, and not for ever: a phone may not tell.
    """
    deadline = time.monotonic() + _BOOT_S
    while time.monotonic() < deadline:
        answer = call(["getprop", "sys.boot_completed"], timeout_s=_TIMEOUT_S)
        if answer.code != 0 or _text(answer.stdout) == "1":
            return
        nap(_BOOT_LOOK_S)


def read_battery(call: Call) -> Battery | None:
    """None where the device has no such service."""
    answer = call(["dumpsys", "battery"], timeout_s=_TIMEOUT_S)
    return parse_battery(_text(answer.stdout)) if answer.code == 0 else None


def read_thermal(call: Call) -> Thermal | None:
    """None where the device has no such service (before Android 10)."""
    answer = call(["dumpsys", "thermalservice"], timeout_s=_TIMEOUT_S)
    return parse_thermal(_text(answer.stdout)) if answer.code == 0 else None


def _switch(call: Call, setting: Setting, before: str | None, change: bool) -> SettingOutcome:
    wanted = setting.wanted(before)
    if not change:
        return SettingOutcome(setting.name, wanted, before, before, True, "it was so already")
    limits = _clock_limits(call)
    refusal = setting.write(call, wanted)
    now = setting.read(call)
    took: bool | None = now == wanted
    reason = None if took else refusal or f"it says {now}"
    if refusal is None and now is None:
        took, reason = None, "the device accepted it and does not tell whether it holds"
    if setting.name == FixedPerformance.name and refusal is None:
        changed = _limits_that_changed(call, limits, wait=took is None)
        if changed:
            took, reason = True if took is None else took, f"clock limits changed: {changed}"
        elif took is None:
            reason = f"{reason}; no clock limit changed"
    if setting.name == StayAwake.name and took:
        battery = read_battery(call)
        if battery is not None and battery.plugged == ():
            reason = "it acts only while the device is fed, and nothing feeds it now"
    return SettingOutcome(setting.name, wanted, before, now, took, reason)


def _undo(call: Call, setting: Setting, kept: _Kept) -> SettingOutcome:
    wanted = kept.before if kept.before is not None else "as after a restart"
    now = setting.read(call)
    if now is not None and now != kept.set:
        reason = None if now == kept.before else "somebody changed it meanwhile; left alone"
        return SettingOutcome(
            setting.name, wanted, kept.set, now, now == kept.before or None, reason
        )
    refusal = setting.write(call, kept.before)
    found = setting.read(call)
    if refusal is not None:
        return SettingOutcome(setting.name, wanted, kept.set, found, False, refusal)
    if found is None or kept.before is None:
        reason = "the device accepted it and does not tell whether it holds"
        return SettingOutcome(setting.name, wanted, kept.set, found, None, reason)
    took = found == kept.before
    return SettingOutcome(
        setting.name, wanted, kept.set, found, took, None if took else f"it says {found}"
    )


def _clock_limits(call: Call) -> dict[str, str]:
    """`600000-1800000` (kHz) of each group of cores."""
    script = (
        "for p in /sys/devices/system/cpu/cpufreq/policy*; do "
        'echo "${p##*/} $(cat $p/scaling_min_freq)-$(cat $p/scaling_max_freq)"; done 2>/dev/null'
    )
    answer = call(["sh", "-c", script], timeout_s=_TIMEOUT_S)
    found = re.findall(r"^(policy\d+) (\d+-\d+)$", _text(answer.stdout), re.MULTILINE)
    return dict(found)


def _limits_that_changed(call: Call, before: dict[str, str], *, wait: bool) -> str:
    deadline = time.monotonic() + (_SETTLE_S if wait else 0)
    while True:
        now = _clock_limits(call)
        changed = [f"{p} {v} to {now[p]} kHz" for p, v in before.items() if now.get(p, v) != v]
        if changed or time.monotonic() > deadline:
            return ", ".join(changed)
        time.sleep(_LOOK_S)


def _write_record(call: Call, directory: str, record: _Record) -> None:
    path = f"{directory}/{RECORD}"
    script = 'cat > "$1.new" && sync && mv -f "$1.new" "$1"'
    text = json.dumps(to_json(record)).encode() + b"\n"
    answer = call(["sh", "-c", script, "sh", path], timeout_s=_TIMEOUT_S, stdin=text)
    if answer.code != 0:
        raise DeviceError(
            f"cannot note the phone's settings in {path}, so they are left as they are: "
            f"{_first_line(answer) or 'the device does not say why'}"
        )


def _read_record(call: Call, directory: str) -> _Record | None:
    path = f"{directory}/{RECORD}"
    script = '[ -e "$1" ] || exit 66; cat "$1"'
    answer = call(["sh", "-c", script, "sh", path], timeout_s=_TIMEOUT_S)
    if answer.code == 66:
        return None
    try:
        if answer.code != 0:
            raise ValueError(_first_line(answer))
        return from_json(_Record, json.loads(answer.stdout))
    except ValueError as e:
        raise DeviceError(
            f"what to put back of the phone's settings cannot be read from {path}: {e}; put back "
            "fixed-performance mode and 'stay awake' by hand, and remove the file"
        ) from e


def _refusal(answer: Finished, argv: Sequence[str]) -> str | None:
    """Android's commands may fail with words only."""
    line = _first_line(answer)
    if answer.code == 127:
        return f"the device has no program {argv[0]!r}"
    if answer.code != 0:
        return line or f"{argv[0]!r} ended with {answer.code}"
    failed = re.search(r"fail|exception|denial|unknown command|error|not supported", line, re.I)
    return line if failed else None


def _first_line(answer: Finished) -> str:
    lines = [li.strip() for li in (_text(answer.stderr) + "\n" + _text(answer.stdout)).splitlines()]
    return next((li for li in lines if li), "")[:200]


def _text(data: bytes) -> str:
    return data.decode(errors="replace").strip()
