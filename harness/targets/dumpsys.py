"""What Android says of its battery and of heat, as `dumpsys` prints it. Pure.

The texts are for people, and differ between versions and makers: what is not found, or makes no
sense, is None or left out.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

# As Android numbers them.
BATTERY_STATUS = {1: "unknown", 2: "charging", 3: "discharging", 4: "not charging", 5: "full"}
THERMAL_STATUS = ("none", "light", "moderate", "severe", "critical", "emergency", "shutdown")
_KINDS = (
    "cpu",
    "gpu",
    "battery",
    "skin",
    "usb_port",
    "power_amplifier",
    "bcl_voltage",
    "bcl_current",
    "bcl_percentage",
    "npu",
    "tpu",
    "display",
    "modem",
    "soc",
    "wifi",
    "camera",
    "flashlight",
    "speaker",
    "ambient",
    "pogo",
)
# Of a battery's protection: volts, amperes and a share.
_NO_TEMPERATURES = ("bcl_voltage", "bcl_current", "bcl_percentage")
# Outside of it a sensor is absent (0.0, -99.9), or its unit another: as the launcher has it.
_LOWEST_C, _HIGHEST_C = 1.0, 150.0


@dataclass(frozen=True)
class Battery:
    """`plugged`: what feeds it now, such as `USB`; empty: nothing, None: not said.

    `made_up`: somebody overrode these values (`dumpsys battery set`), so they are not the
    battery's.
    """

    level_pct: float | None
    temp_c: float | None
    status: str | None
    plugged: tuple[str, ...] | None
    made_up: bool


@dataclass(frozen=True)
class Temperature:
    """`status`: how far this sensor alone throttles, 0 to 6."""

    name: str
    kind: str
    temp_c: float | None
    status: int | None


@dataclass(frozen=True)
class Thermal:
    """`status`: 0 none, 1 light, 2 moderate, 3 severe, 4 critical, 5 emergency, 6 shutdown.

    `made_up`: somebody overrode the status, so it does not tell of heat.
    """

    status: int | None
    made_up: bool
    temperatures: tuple[Temperature, ...]


def parse_battery(text: str) -> Battery | None:
    """What `dumpsys battery` prints; None when nothing of it is about a battery."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip().lower(), value.strip())
    feeds = {k.removesuffix(" powered"): v for k, v in fields.items() if k.endswith(" powered")}
    level, scale = _number(fields.get("level")), _number(fields.get("scale")) or 100.0
    tenths = _number(fields.get("temperature"))
    status = _number(fields.get("status"))
    found = Battery(
        level_pct=_within(None if level is None else 100 * level / scale, 0.0, 100.0),
        temp_c=_within(None if tenths is None else tenths / 10, _LOWEST_C, _HIGHEST_C),
        status=None if status is None else BATTERY_STATUS.get(int(status)),
        plugged=tuple(_feed(k) for k, v in feeds.items() if v == "true") if feeds else None,
        made_up="UPDATES STOPPED" in text,
    )
    nothing = (found.level_pct, found.temp_c, found.status, found.plugged) == (None,) * 4
    return None if nothing else found


def parse_thermal(text: str) -> Thermal | None:
    """What `dumpsys thermalservice` prints; None when it holds neither status nor temperature.

    The sensors' present values are preferred to those that Android heard of last.
    """
    status = re.search(r"^\s*Thermal Status:\s*(\d+)\s*$", text, re.MULTILINE)
    number = int(status[1]) if status and len(status[1]) == 1 else None
    sections = _sections(text)
    present = sections.get("current temperatures from hal") or sections.get("cached temperatures")
    temperatures = tuple(t for t in map(_temperature, present or ()) if t is not None)
    if number is None and not temperatures:
        return None
    return Thermal(
        status=_status(number),
        made_up=re.search(r"IsStatusOverride:\s*true", text) is not None,
        temperatures=temperatures,
    )


def _sections(text: str) -> dict[str, list[str]]:
    """Lines about temperatures by the line above them that ends with a colon."""
    found: dict[str, list[str]] = {}
    heading = ""
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("Temperature{"):
            found.setdefault(heading, []).append(stripped)
        elif stripped.endswith(":"):
            heading = stripped[:-1].lower()
    return found


def _temperature(line: str) -> Temperature | None:
    inner = line.removeprefix("Temperature{").rpartition("}")[0]
    fields = dict(
        pair.split("=", 1) for pair in re.split(r", (?=m[A-Z]\w*=)", inner) if "=" in pair
    )
    name, kind = fields.get("mName"), _kind(fields.get("mName"), fields.get("mType"))
    if not name or kind in _NO_TEMPERATURES:
        return None
    status = _number(fields.get("mStatus"))
    return Temperature(
        name=name,
        kind=kind,
        temp_c=_within(_number(fields.get("mValue")), _LOWEST_C, _HIGHEST_C),
        status=_status(None if status is None else int(status)),
    )


def _kind(name: str | None, number: str | None) -> str:
    """Some makers number them their own way, and then say the kind in the name."""
    if name is not None and name.startswith("TYPE_"):
        said = name.removeprefix("TYPE_").lower()
        if said in _KINDS:
            return said
    if number is not None and re.fullmatch(r"\d{1,3}", number) and int(number) < len(_KINDS):
        return _KINDS[int(number)]
    return "unknown"


def _feed(word: str) -> str:
    return word.upper() if word in ("ac", "usb") else word


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None and len(text) < 40 else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _within(value: float | None, low: float, high: float) -> float | None:
    return value if value is not None and low <= value <= high else None


def _status(number: int | None) -> int | None:
    return number if number is not None and 0 <= number < len(THERMAL_STATUS) else None
