"""Which devices adb knows, which one is meant, and what to do when it cannot be used. Pure.

All texts are for a user who may never have used adb.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

# The state of a device that is ready.
READY = "device"

# `adb connect` is for these; "usb:1-2" and the like are adb's own ways of naming a device.
_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\s:\[\]]+):(?P<port>\d{1,5})")
_QUALIFIERS = ("usb", "product", "model", "device", "vsock", "local", "localfilesystem")

_LINE = re.compile(
    r"(?P<serial>\S.*?)\s+"
    r"(?P<state>no permissions.*?(?:see \[[^\]]*\])?|[a-z]+)"
    r"(?P<more>(?:\s+[a-z_]+:\S*)*)\s*"
)


@dataclass(frozen=True)
class Device:
    """One line of `adb devices -l`; `more` are its words like `model:Pixel_8`."""

    serial: str
    state: str
    more: tuple[str, ...] = ()

    @property
    def model(self) -> str | None:
        """As the device calls itself; None where adb does not know it yet."""
        named = [word[len("model:") :] for word in self.more if word.startswith("model:")]
        return named[0].replace("_", " ") if named else None

    def is_called(self, serial: str) -> bool:
        """Does `-s serial` mean this device?"""
        return self.serial == serial or serial in self.more


@dataclass(frozen=True)
class Trouble:
    """Why no device can be used now, in a line.

    `wait`: how long it is worth to look again (`moment`: it is seen while a device appears, and
    is settled after that). `may_end`: a later attempt may find it gone.
    """

    text: str
    wait: Literal["no", "moment", "long"]
    may_end: bool


def parse_devices(text: str) -> list[Device]:
    """What `adb devices -l` lists; lines that are not devices are left out."""
    _, _, listed = text.partition("List of devices attached\n")
    found = [_LINE.fullmatch(line) for line in listed.splitlines()]
    return [Device(m["serial"], _state(m["state"]), tuple(m["more"].split())) for m in found if m]


def is_address(serial: str) -> bool:
    """Is it host:port, for `adb connect`?"""
    found = _ADDRESS.fullmatch(serial)
    if found is None or found["host"] in _QUALIFIERS:
        return False
    return 0 < int(found["port"]) < 65536


def pick(devices: Sequence[Device], serial: str | None) -> Device | Trouble:
    """The device that is meant, when it can be used."""
    if serial is None:
        if len(devices) > 1:
            return Trouble(
                f"{len(devices)} devices are connected; say which with target.serial=: "
                + _list(devices),
                wait="no",
                may_end=False,
            )
        if not devices:
            return Trouble(
                "adb sees no device: connect one by USB and switch on USB debugging in its "
                "developer options, or give target.serial=HOST:PORT for one on the network",
                wait="moment",
                may_end=True,
            )
        return _usable(devices[0])
    for device in devices:
        if device.is_called(serial):
            return _usable(device)
    there = f"connected: {_list(devices)}" if devices else "no device is connected"
    return Trouble(f"adb sees no device {serial}; {there}", wait="moment", may_end=True)


def connected(answer: str) -> Trouble | None:
    """What `adb connect` says: None when it is connected, or will be once its key is accepted."""
    line = next((li.strip() for li in answer.splitlines() if not li.startswith("* ")), "")
    if line.startswith(("connected to", "already connected", "failed to authenticate")):
        return None  # the list of devices says whether it is authorized
    reason = _WHAT_FAILED.sub("", line)
    advice = next((text for word, text in _CONNECT_ADVICE if word in line.lower()), "")
    text = f"cannot connect: {reason or (_NO_ANSWER if line else 'adb does not say why')}{advice}"
    return Trouble(text, wait="no", may_end=True)


# Up to the reason; the address has colons of its own, and may be quoted.
_WHAT_FAILED = re.compile(
    r"^.*?'[^']*'(?::\s+|$)|^.*? to (?:\[[^\]\s]*\]|[^\s:]+)(?::\d+)?(?::\s+|$)"
)
# The client says nothing of a reason when the connection was taken, and then ended or not answered.
_NO_ANSWER = "what listens there does not answer: is the phone awake, and is this its port?"
_CONNECT_ADVICE = (
    (
        "refused",
        "; nothing listens there: is its wireless debugging on, with this port (or `adb tcpip "
        "5555` given over USB)?",
    ),
    ("no route", "; is it on this network, and awake?"),
    ("unreachable", "; is it on this network, and awake?"),
    ("timed out", "; is it on this network, and awake?"),
    ("resolve", "; is the host's name right?"),
)


def _state(text: str) -> str:
    """adb adds its own guess and an address of a page to this one."""
    return "no permissions" if text.startswith("no permissions") else text


def _list(devices: Sequence[Device]) -> str:
    return ", ".join(f"{d.serial} ({_about(d)})" for d in devices)


def _about(device: Device) -> str:
    if device.model is None:
        return device.state
    return device.model if device.state == READY else f"{device.model}, {device.state}"


def _usable(device: Device) -> Device | Trouble:
    if device.state == READY:
        return device
    known = _STATES.get(device.state)
    if known is None:
        text = f"is in the state {device.state!r}, in which adb runs no programs"
        known = Trouble(text, "moment", True)
    text = known.text.replace("SERIAL", device.serial)
    if device.state == "offline" and is_address(device.serial):
        text += _OFFLINE_ON_THE_NETWORK
    return Trouble(f"device {device.serial} {text}", known.wait, known.may_end)


_OFFLINE_ON_THE_NETWORK = (
    " (Android's wireless debugging wants `adb pair` first, of adb 30 and later; with an older "
    "one: adb tcpip 5555 over USB)"
)


_STATES = {
    "offline": Trouble(
        "is offline: it is connected and does not answer; wake it up, or plug it in again, or "
        "run: adb -s SERIAL reconnect",
        "long",
        True,
    ),
    "unauthorized": Trouble(
        "has not accepted this computer's key: unlock its screen, and accept the question about "
        "USB debugging",
        "moment",
        False,
    ),
    "authorizing": Trouble(
        "is still checking this computer's key: unlock its screen, and accept the question about "
        "USB debugging if there is one",
        "long",
        True,
    ),
    "connecting": Trouble("is still connecting", "long", True),
    "no permissions": Trouble(
        "may not be opened by this user: it needs a udev rule (Debian: apt-get install "
        "android-sdk-platform-tools-common) and this user in the group plugdev; then log in "
        "again and plug it in again",
        "moment",
        False,
    ),
    "recovery": Trouble(
        "runs its recovery system; start Android: adb -s SERIAL reboot", "moment", True
    ),
    "rescue": Trouble("is in rescue mode; start Android: adb -s SERIAL reboot", "moment", True),
    "sideload": Trouble(
        "waits for a system update (sideload); start Android: adb -s SERIAL reboot", "moment", True
    ),
    "bootloader": Trouble("is in its bootloader; start Android: fastboot reboot", "moment", True),
    "host": Trouble("is no device but another computer's adb server", "no", False),
    "detached": Trouble("was let go by adb; run: adb -s SERIAL attach", "no", False),
}
