"""What users of phones meet: full storage, two campaigns, odd names, one that is not ready."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from adb_campaigns import LONG, SURVEY, Campaign, Phone, phone, quoted
from adb_device import AdbDevice, why_unavailable
from ports import free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        why_unavailable() is not None, reason=f"no made-up adb device: {why_unavailable()}"
    ),
]
TWO = (*SURVEY, "~cells.spec2")
ONE = (*TWO, "~cells.retention")
NASTY = "a b'c\"d$(touch PWNED)`touch PWNED`\\ü;&|<>*\nz"


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="a phone with little storage needs root")


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Phone]:
    with phone(tmp_path) as made:
        yield made


# --- full storage --------------------------------------------------------------------------------


@needs_root
def test_a_phone_that_is_full_says_so_before_anything_is_sent(tmp_path: Path) -> None:
    with phone(tmp_path, data_bytes=24 << 20) as there:
        refused = there.start(*ONE)
        assert refused.ended() == 1
        line = refused.one_line()
        assert "reference-q4_k_m.gguf needs 30 MiB in /data/local/tmp/moe-harness/files" in line
        assert "MiB are free; make room there, or choose another directory with" in line
        assert there.sent("reference-q4_k_m.gguf.part") == 0
        there.is_as_before()


def test_a_phone_that_gets_full_while_it_is_sent_something_says_so(there: Phone) -> None:
    there.device.fail_sync_write(20, of="/moe-engine.part")
    campaign = there.start(*ONE)
    assert campaign.ended() == 1
    assert there.sent("moe-launcher")
    line = campaign.one_line()
    for words in (there.device.serial, "moe-engine.part", "No space left on device", "target.dir="):
        assert words in line
    assert there.sent("*.part") == 0
    there.is_as_before()


@needs_root
def test_a_phone_that_fills_up_during_a_cell_ends_the_campaign_which_can_be_resumed(
    tmp_path: Path,
) -> None:
    with phone(tmp_path, data_bytes=96 << 20) as there:
        campaign = there.start(*TWO, f"cells.retention={LONG}")
        campaign.until_in_cell(1)
        fill = there.device.path("/data/local/tmp/fill")
        with fill.open("wb") as file:
            for piece in (1 << 20, 1 << 12):
                with pytest.raises(OSError, match="No space"):
                    while True:
                        os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), piece)
        assert campaign.ended() == 1
        line = campaign.one_line()
        assert f"harness: error: {there.device.serial}: " in line  # not this machine
        assert "no space left on device" in line.lower()
        assert "resume with:" in line
        assert [r["cell"] for r in campaign.records] == ["baseline"]
        fill.unlink()
        there.is_as_before()
        again = there.resume(campaign)
        again.ended_well()
        there.is_as_before()


# --- two at once ---------------------------------------------------------------------------------


def test_a_second_campaign_is_refused_or_waits(there: Phone) -> None:
    # it has the phone, and waits for it to cool until the others have come to it
    there.device.set_temperature("thermal_zone2", 84.0)
    cool = ("schedule.gate.cpu_temp_max_c=60", "schedule.gate.wait_max_s=600")
    first = there.start(*TWO, *cool)
    first.until_said("waiting at most")
    second, third = (there.start(*ONE, *more) for more in ((), ("session.wait_for_device_s=300",)))
    assert second.ended() == 1
    for words in ("another campaign measures there", first.directory.name, "wait_for_device_s"):
        assert words in second.one_line()
    third.until_said("waiting for it, 5 min")
    there.device.set_temperature("thermal_zone2", 39.1)
    first.ended_well()
    third.ended_well()
    assert "is free after" in third.out
    there.is_as_before()


# --- names ---------------------------------------------------------------------------------------


def test_odd_names_arrive_unchanged_and_execute_nothing(there: Phone, tmp_path: Path) -> None:
    runs, text = tmp_path / NASTY, tmp_path / f"text {NASTY}.txt"
    text.write_text("And God said, Let there be light: and there was light. " * 20)
    prompt = "In the $(touch PWNED) \"beginning\"\n'God' `touch PWNED` \\ created é"
    there.runs = runs
    campaign = there.start(
        *TWO,
        "cell.n_predict=64",
        f"target.dir={quoted(f'/data/local/tmp/{NASTY}/moe')}",
        f"target.name={quoted('my $(phone)')}",
        f"cell.prompt={quoted(prompt)}",
        f"cell.text={quoted(str(text))}",
        f"runs_dir={quoted(str(runs))}",
    )
    campaign.ended_well()
    plan = json.loads((campaign.directory / "plan.json").read_text())
    assert {arm["prompt"] for arm in plan["arms"].values()} == {prompt}
    for cell in campaign.directory.glob("cells/*"):
        assert (cell / "prompt.txt").read_text() == prompt
    assert {r["target"]["name"] for r in campaign.records} == {"my $(phone)"}
    installed = there.device.path(f"/data/local/tmp/{NASTY}/moe/files")
    assert any(path.name == text.name for path in installed.glob("*/*"))
    assert there.adb.shell("find / -name PWNED 2>/dev/null") == ""
    assert not list(tmp_path.rglob("PWNED"))
    there.has_its_settings()
    assert there.processes() == {}


# --- a phone that is not ready -------------------------------------------------------------------


def asked(there: Phone, *overrides: str, target: bool = True) -> Campaign:
    return there.start(*ONE, *overrides, target=target)


def refused(there: Phone, *campaigns: Campaign) -> list[str]:
    """What each says, having started nothing."""
    codes = [campaign.ended() for campaign in campaigns]
    assert set(codes) <= {1, 2}
    there.until_no_client()
    assert not list(there.runs.glob("*"))
    return [campaign.one_line() for campaign in campaigns]


def test_what_is_said_of_a_phone_that_cannot_be_used(there: Phone) -> None:
    nowhere = f"target.serial=127.0.0.1:{free_port()}"
    no_adb, no_phone, *fuse, system = refused(
        there,
        asked(there, "target=adb", "target.adb=/nowhere/adb", target=False),
        asked(there, "target=adb", nowhere, target=False),
        asked(there, "target.dir=/sdcard/moe"),
        asked(there, "target.dir=/storage/emulated/0/moe"),
        asked(there, "target.dir=/system/moe"),
    )
    assert "no program '/nowhere/adb'" in no_adb
    assert "apt-get install adb" in no_adb
    assert "nothing listens there" in no_phone
    assert len(fuse) == 2
    for said in fuse:
        assert "FUSE" in said
        assert "/data/local/tmp" in said
    assert "target.dir" in system


def test_what_is_said_where_there_is_no_phone_or_too_many(there: Phone) -> None:
    with AdbDevice() as other:
        there.server.connect(other.serial)
        (said,) = refused(there, asked(there, "target=adb", target=False))
        assert "2 devices are connected; say which with target.serial=" in said
        assert other.serial in said
        there.server.run("disconnect", other.serial)
    there.server.run("disconnect", there.device.serial)
    (said,) = refused(there, asked(there, "target=adb", target=False))
    assert "adb sees no device" in said
    assert "USB debugging" in said


def test_what_is_said_of_a_phone_that_does_not_let_us_in(tmp_path: Path) -> None:
    with phone(tmp_path) as there:
        there.device.unauthorize()
        (said,) = refused(there, asked(there))
        assert "has not accepted this computer's key: unlock its screen" in said
        there.device.change(auth="open")
        there.device.go_offline()
        (said,) = refused(there, asked(there, "target.connect_timeout_s=3"))
        assert "(is it on this network, and awake?) has not answered for 3 s" in said
