"""Devices that adb lists, told apart, with what to do; its texts as they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import DeviceError
from harness.targets.adb_client import complaint, find_client, without_chatter
from harness.targets.adb_devices import (
    Device,
    Trouble,
    connected,
    is_address,
    parse_devices,
    pick,
)
from harness.targets.adb_storage import why_not_real

LISTING = """\
* daemon not running; starting now at tcp:5037
* daemon started successfully
List of devices attached
0A041FDD4003BV         device usb:1-2 product:shiba model:Pixel_8 device:shiba transport_id:1
127.0.0.1:5555         offline product:sdk model:Emu_lator device:emu transport_id:2
R5CT123ABC             unauthorized usb:1-4 transport_id:3
????????????           no permissions (user in plugdev group; are your udev rules wrong?); see \
[http://developer.android.com/tools/device.html] usb:1-5 transport_id:4
XYZ                    no permissions usb:1-6 transport_id:5
adb-R5CT-a1 (2)._adb-tls-connect._tcp device product:p model:m device:d transport_id:6
emulator-5554          sideload transport_id:7

"""


def test_a_listing_is_read_line_by_line() -> None:
    devices = parse_devices(LISTING)
    assert [(d.serial, d.state, d.model) for d in devices] == [
        ("0A041FDD4003BV", "device", "Pixel 8"),
        ("127.0.0.1:5555", "offline", "Emu lator"),
        ("R5CT123ABC", "unauthorized", None),
        ("????????????", "no permissions", None),
        ("XYZ", "no permissions", None),
        ("adb-R5CT-a1 (2)._adb-tls-connect._tcp", "device", "m"),
        ("emulator-5554", "sideload", None),
    ]
    assert parse_devices("List of devices attached\n\n") == []
    assert parse_devices("") == []


@given(st.text())
def test_any_text_is_a_listing(text: str) -> None:
    for device in parse_devices("List of devices attached\n" + text):
        assert device.serial.strip() == device.serial != ""
    connected(text)
    complaint(text)


SERIALS = st.from_regex(r"[A-Za-z0-9?][A-Za-z0-9.:_-]{0,20}", fullmatch=True)
STATES = st.sampled_from(["device", "offline", "unauthorized", "authorizing", "host", "recovery"])


@given(st.lists(st.tuples(SERIALS, STATES, st.booleans()), max_size=5))
def test_what_is_listed_is_found_again(devices: list[tuple[str, str, bool]]) -> None:
    listing = "List of devices attached\n" + "".join(
        f"{serial:22} {state}{' model:A_B transport_id:1' if more else ''}\n"
        for serial, state, more in devices
    )
    found = [(d.serial, d.state, d.model is not None) for d in parse_devices(listing + "\n")]
    assert found == devices


def test_the_one_that_is_meant_is_picked() -> None:
    phone = Device("A", "device", ("usb:1-2", "model:P"))
    other = Device("B", "device")
    assert pick([phone], None) is phone
    assert pick([other, phone], "A") is phone
    assert pick([other, phone], "usb:1-2") is phone


def trouble(devices: list[Device], serial: str | None) -> Trouble:
    found = pick(devices, serial)
    assert isinstance(found, Trouble)
    assert "\n" not in found.text
    assert "http" not in found.text
    return found


def test_the_wrong_number_of_devices_is_said_with_their_names() -> None:
    two = [Device("A", "device", ("model:Pixel_8",)), Device("B", "unauthorized")]
    several = trouble(two, None)
    assert several.text == (
        "2 devices are connected; say which with target.serial=: A (Pixel 8), B (unauthorized)"
    )
    assert (several.wait, several.may_end) == ("no", False)
    assert "no device C; connected: A (Pixel 8), B (unauthorized)" in trouble(two, "C").text
    assert trouble([], "C").text == "adb sees no device C; no device is connected"
    none = trouble([], None)
    assert "USB debugging" in none.text
    assert (none.wait, none.may_end) == ("moment", True)


@pytest.mark.parametrize(
    ("state", "words", "wait", "may_end"),
    [
        ("offline", "adb -s A reconnect", "long", True),
        ("unauthorized", "unlock its screen, and accept", "moment", False),
        ("authorizing", "unlock", "long", True),
        ("connecting", "still connecting", "long", True),
        ("no permissions", "udev", "moment", False),
        ("recovery", "adb -s A reboot", "moment", True),
        ("sideload", "adb -s A reboot", "moment", True),
        ("rescue", "adb -s A reboot", "moment", True),
        ("bootloader", "fastboot reboot", "moment", True),
        ("host", "another computer", "no", False),
        ("detached", "adb -s A attach", "no", False),
        ("sleeping", "the state 'sleeping'", "moment", True),
    ],
)
def test_every_state_has_its_advice(state: str, words: str, wait: str, may_end: bool) -> None:
    for serial in (None, "A"):
        found = trouble([Device("A", state)], serial)
        assert found.text.startswith("device A ")
        assert words in found.text
        assert (found.wait, found.may_end) == (wait, may_end)


def test_a_device_that_is_offline_on_the_network_may_want_another_adb() -> None:
    assert "adb pair" in trouble([Device("10.0.0.9:40001", "offline")], None).text
    assert "adb pair" not in trouble([Device("A", "offline")], None).text


def test_addresses_are_told_from_serials() -> None:
    for serial in ("127.0.0.1:5555", "phone.local:40001", "[fe80::1%wlan0]:5555", "[::1]:1"):
        assert is_address(serial), serial
    for serial in ("emulator-5554", "0A041FDD4003BV", "usb:1", "usb:1-2", "phone:0", "phone:70000",
                   "phone", "a b:5555", "fe80::1", "vsock:3"):  # fmt: skip
        assert not is_address(serial), serial


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("failed to connect to '127.0.0.1:1': Connection refused\n", "Connection refused; nothing"),
        ("failed to connect to 127.0.0.1:1: Connection refused", "Connection refused; nothing"),
        ("failed to connect to '10.0.0.9:5555': No route to host", "No route to host; is it on"),
        (
            "failed to connect to '10.0.0.9:5555': Connection timed out",
            "Connection timed out; is it on",
        ),
        (
            "failed to resolve host: 'nohost.invalid': Name or service not known",
            "Name or service not known; is the host's name",
        ),
        ("failed to connect to 127.0.0.1:46815\n", "what listens there does not answer: is the"),
        ("failed to connect to '127.0.0.1:46815'\n", "what listens there does not answer: is"),
        ("failed to connect to phone.lan:33217\n", "what listens there does not answer: is the"),
        ("failed to connect to [fe80::1%wlan0]:33217\n", "what listens there does not answer: is"),
        ("failed to connect to [::1]:33217: Connection refused", "Connection refused; nothing"),
        ("", "adb does not say why"),
    ],
)
def test_a_refused_connection_says_why(answer: str, words: str) -> None:
    found = connected("* daemon started successfully\n" + answer)
    assert found is not None
    assert found.text.startswith(f"cannot connect: {words}")
    assert found.may_end


@pytest.mark.parametrize(
    "answer",
    [
        "connected to 127.0.0.1:5555\n",
        "already connected to 127.0.0.1:5555\n",
        "* daemon not running; starting now at tcp:5037\nconnected to a:5555\n",
        "failed to authenticate to 127.0.0.1:5555\n",
    ],
)
def test_a_connection_that_was_made_is_none(answer: str) -> None:
    assert connected(answer) is None


def test_the_clients_news_are_no_complaint() -> None:
    news = "* daemon not running; starting now at tcp:5037\n* daemon started successfully\n"
    log = "adb W 11-30 10:15:54  7645  7645 network.cpp:150] failed to connect to 'x': refused\n"
    assert without_chatter(news + log).strip() == ""
    assert complaint(news) == ""
    assert complaint(news + "error: device 'X' not found\n") == "device 'X' not found"
    assert complaint("error: closed") == "closed"
    unauthorized = "error: device unauthorized.\nThis adb server's $ADB_VENDOR_KEYS is not set\n"
    assert complaint(unauthorized) == "device unauthorized."
    assert complaint("adb: error: failed to get feature set: closed") == (
        "failed to get feature set: closed"
    )


def test_two_versions_of_adb_are_named() -> None:
    text = complaint(
        "adb server version (40) doesn't match this client (41); killing...\n"
        "* daemon started successfully\nerror: device 'X' not found\n"
    )
    assert "two versions of adb" in text
    assert "40" in text
    assert "41" in text
    assert "target.adb=" in text


def test_an_absent_client_comes_with_where_to_get_it() -> None:
    with pytest.raises(DeviceError, match=r"target\.adb: .*'no-such-adb'.*apt-get install adb"):
        find_client("no-such-adb")


@pytest.mark.parametrize(
    ("directory", "magic", "fault"),
    [
        ("/data/local/tmp", "ef53", None),
        ("/data/local/tmp", "f2f52010", None),
        ("/data/media/0", "65735546", "FUSE"),
        ("/storage/emulated/0/Android/data/x", "f2f52010", None),  # mounted past FUSE
        ("/storage/emulated/0", "5dca2df5", "sdcardfs"),
        ("/storage/emulated/0", "unknown", "emulated storage"),
        ("/sdcard", "", "emulated storage"),
        ("/sdcardiac", "", None),
        ("/mnt/user/0/primary/x", "unknown", "emulated storage"),
        ("/data/local/tmp", "unknown", None),
    ],
)
def test_storage_that_is_not_real_is_known(directory: str, magic: str, fault: str | None) -> None:
    found = why_not_real(directory, magic)
    assert (found is None) == (fault is None)
    assert fault is None or fault in str(found)
