"""A phone's settings: switched on, seen to hold, and put back by whoever comes next.

The phone is a directory of small programs in place of Android's own, run by a real shell.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.errors import DeviceError
from harness.jsonable import to_json
from harness.targets import android
from harness.targets.link import Finished, LinkLost

SETTINGS = """#!/bin/sh
# settings get|put|delete NAMESPACE KEY [VALUE]
file=$PHONE/$3
case $1 in
get) cat $file 2>/dev/null || echo null;;
put) [ -e $PHONE/deny ] && { echo "java.lang.SecurityException: Permission denial" >&2; exit 255; }
     [ -e $PHONE/deaf ] || echo $4 > $file;;
delete) rm -f $file; echo "Deleted 1 rows";;
esac
"""
CMD = """#!/bin/sh
[ "$1 $2" = "power set-fixed-performance-mode-enabled" ] || { echo "Unknown command"; exit 255; }
[ -e $PHONE/no-hal ] && { echo "Failed to set FIXED_PERFORMANCE mode"; exit 255; }
echo $3 > $PHONE/fixed
"""
DUMPSYS = """#!/bin/sh
case $1 in
power) [ -e $PHONE/tells ] && echo "  mFixedPerformanceModeEnabled=$(cat $PHONE/fixed)"; exit 0;;
battery) echo "  USB powered: $(cat $PHONE/fed)"; echo "  level: 50";;
*) echo "Can't find service: $1"; exit 20;;
esac
"""


class Phone:
    """`Link.call` of a phone that is a directory; the link breaks before its n-th call."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bin = root / "bin"
        self.dir = root / "a phone's $(dir)"
        self.breaks_at: int | None = None
        self.calls = 0
        self.bin.mkdir(parents=True)
        self.dir.mkdir()
        for name, text in (("settings", SETTINGS), ("cmd", CMD), ("dumpsys", DUMPSYS)):
            (self.bin / name).write_text(text)
            (self.bin / name).chmod(0o755)
        self.write("fixed", "false")
        self.write("fed", "true")
        self.write("stay_on_while_plugged_in", "2")

    def write(self, name: str, text: str = "") -> None:
        (self.root / name).write_text(text + "\n")

    def value(self, name: str) -> str | None:
        file = self.root / name
        return file.read_text().strip() if file.exists() else None

    @property
    def settings(self) -> tuple[str | None, str | None]:
        return self.value("fixed"), self.value("stay_on_while_plugged_in")

    def __call__(self, argv: Sequence[str], *, timeout_s: float, stdin: bytes = b"") -> Finished:
        self.calls += 1
        if self.calls == self.breaks_at:
            raise LinkLost("gone")
        try:
            done = subprocess.run(
                list(argv),
                input=stdin,
                capture_output=True,
                timeout=timeout_s,
                env={"PATH": f"{self.bin}:{os.environ['PATH']}", "PHONE": str(self.root)},
                check=False,
            )
        except FileNotFoundError:
            return Finished(127, b"", f"sh: {argv[0]}: not found".encode())
        return Finished(done.returncode, done.stdout, done.stderr)

    def prepare(self, fixed_performance: bool = True, stay_awake: bool = True) -> android.Restore:
        return android.prepare(
            self, str(self.dir), fixed_performance=fixed_performance, stay_awake=stay_awake
        )


@pytest.fixture
def phone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Phone:
    monkeypatch.setattr(android, "_SETTLE_S", 0.0)
    return Phone(tmp_path / "phone")


def test_settings_are_switched_on_and_put_back(phone: Phone) -> None:
    phone.write("tells")
    restore = phone.prepare()
    fixed, awake = restore.settings
    assert (fixed.before, fixed.now, fixed.took) == ("false", "true", True)
    assert (awake.before, awake.now, awake.took, awake.reason) == ("2", "7", True, None)
    assert phone.settings == ("true", "7")
    assert json.loads(json.dumps(to_json(restore.settings)))[1]["setting"] == "stay_awake"
    back = restore.put_back()
    assert [(o.setting, o.now, o.took) for o in back] == [
        ("fixed_performance", "false", True),
        ("stay_awake", "2", True),
    ]
    assert phone.settings == ("false", "2")
    assert list(phone.dir.iterdir()) == []
    assert restore.put_back() == ()


def test_a_later_process_puts_back_what_a_killed_one_left(phone: Phone) -> None:
    phone.write("tells")
    phone.prepare()
    assert phone.settings == ("true", "7")
    # as if by another process: all it has is the directory on the phone
    restore = phone.prepare()
    assert [o.before for o in restore.settings] == ["false", "2"]
    assert phone.settings == ("true", "7")
    android.put_back(phone, str(phone.dir))
    assert phone.settings == ("false", "2")


@pytest.mark.parametrize("tells", [True, False])
def test_whenever_the_link_breaks_the_first_values_come_back(phone: Phone, tells: bool) -> None:
    if tells:
        phone.write("tells")
    for n in range(1, 60):
        phone.calls, phone.breaks_at = 0, n
        try:
            phone.prepare()
            android.put_back(phone, str(phone.dir))
            assert n > 10
            break
        except LinkLost:
            phone.breaks_at = None
            android.put_back(phone, str(phone.dir))
        assert phone.settings == ("false", "2"), n
    else:
        pytest.fail("it never came to its end")


def test_a_value_that_was_never_set_is_unset_again(phone: Phone) -> None:
    (phone.root / "stay_on_while_plugged_in").unlink()
    restore = phone.prepare(fixed_performance=False)
    assert [(o.setting, o.before, o.now) for o in restore.settings] == [("stay_awake", "null", "7")]
    restore.put_back()
    assert phone.settings == ("false", None)


def test_what_is_so_already_is_left_alone(phone: Phone) -> None:
    phone.write("stay_on_while_plugged_in", "15")
    restore = phone.prepare(fixed_performance=False)
    assert [(o.now, o.took, o.reason) for o in restore.settings] == [
        ("15", True, "it was so already")
    ]
    assert list(phone.dir.iterdir()) == []
    assert restore.put_back() == ()
    assert phone.prepare(fixed_performance=False, stay_awake=False).settings == ()


def test_what_somebody_else_changed_is_left_alone(phone: Phone) -> None:
    restore = phone.prepare(fixed_performance=False)
    phone.write("stay_on_while_plugged_in", "1")
    back = restore.put_back()
    assert [(o.now, o.took) for o in back] == [("1", None)]
    assert "somebody" in str(back[0].reason)
    assert phone.settings == ("false", "1")


def test_a_mode_that_the_phone_does_not_show_is_not_said_to_hold(phone: Phone) -> None:
    restore = phone.prepare(stay_awake=False)
    (fixed,) = restore.settings
    assert (fixed.before, fixed.now, fixed.took) == (None, None, None)
    assert "no clock limit changed" in str(fixed.reason)
    assert phone.settings == ("true", "2")
    restore.put_back()
    assert phone.settings == ("false", "2")
    assert list(phone.dir.iterdir()) == []


def test_a_refusal_is_told_with_the_phones_words(phone: Phone) -> None:
    for name in ("deny", "no-hal"):
        phone.write(name)
    fixed, awake = phone.prepare().settings
    assert (fixed.took, fixed.reason) == (False, "Failed to set FIXED_PERFORMANCE mode")
    assert (awake.took, awake.now) == (False, "2")
    assert "Permission denial" in str(awake.reason)


def test_a_setting_that_is_accepted_and_does_not_take_is_found_out(phone: Phone) -> None:
    phone.write("deaf")
    (awake,) = phone.prepare(fixed_performance=False).settings
    assert (awake.took, awake.now, awake.reason) == (False, "2", "it says 2")


def test_staying_awake_without_a_charger_is_said_to_be_idle(phone: Phone) -> None:
    phone.write("fed", "false")
    (awake,) = phone.prepare(fixed_performance=False).settings
    assert awake.took
    assert "nothing feeds it" in str(awake.reason)


def test_a_device_without_these_programs_says_so(phone: Phone) -> None:
    for name in ("settings", "cmd", "dumpsys"):
        (phone.bin / name).unlink()
    fixed, awake = phone.prepare().settings
    assert (fixed.took, fixed.reason) == (False, "the device has no program 'cmd'")
    assert (awake.took, awake.reason) == (False, "the device has no program 'settings'")
    assert android.read_battery(phone) is None
    assert android.read_thermal(phone) is None


def test_nothing_is_changed_when_it_cannot_be_noted(phone: Phone) -> None:
    phone.dir.rmdir()
    with pytest.raises(DeviceError, match="cannot note the phone's settings"):
        phone.prepare()
    assert phone.settings == ("false", "2")


def test_a_broken_note_is_refused_with_what_to_do(phone: Phone) -> None:
    (phone.dir / android.RECORD).write_text('{"settings": [{"setting": ')
    with pytest.raises(DeviceError, match=r"by hand, and remove the file"):
        phone.prepare()


def test_services_of_a_phone_that_restarts_are_waited_for() -> None:
    said = ["", "0", "1"]
    naps: list[float] = []

    def call(argv: Sequence[str], *, timeout_s: float, stdin: bytes = b"") -> Finished:
        assert list(argv) == ["getprop", "sys.boot_completed"]
        return Finished(0, said.pop(0).encode() + b"\n", b"")

    android.await_services(call, naps.append)
    assert said == []
    assert len(naps) == 2


def test_services_are_not_waited_for_where_nobody_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(argv: Sequence[str], *, timeout_s: float, stdin: bytes = b"") -> Finished:
        return Finished(127, b"", b"getprop: inaccessible or not found\n")

    def silent(argv: Sequence[str], *, timeout_s: float, stdin: bytes = b"") -> Finished:
        return Finished(0, b"\n", b"")

    naps: list[float] = []
    android.await_services(without, naps.append)
    assert naps == []
    monkeypatch.setattr(android, "_BOOT_S", 0.05)
    android.await_services(silent, lambda _seconds: time.sleep(0.02))


def test_battery_and_heat_are_asked_for(phone: Phone) -> None:
    battery = android.read_battery(phone)
    assert battery is not None
    assert (battery.level_pct, battery.plugged) == (50.0, ("USB",))
    assert android.read_thermal(phone) is None
