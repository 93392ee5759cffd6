"""`python -m harness doctor` as a user runs it: the real engine here, over ssh, on a phone."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from adb_campaigns import Phone, phone
from adb_device import why_unavailable
from ssh_parts import Sshd, needs_sshd

from harness.build import ensure_engine
from harness.power.source import read_source

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

REPO = Path(__file__).resolve().parents[2]
# four cells of half a second: nothing here asks how good the figures are
SHORT = (
    "--cells=4",
    "--minutes=30",  # however slow a busy machine is
    "cell.n_predict=96",
    "schedule.spacing_s=0",
    "schedule.probe_s=0.1",
    "tracking=off",
)


def start(*args: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        # what CI's shell may have ignored would stay ignored
        ["env", "--default-signal=INT", sys.executable, "-m", "harness", "doctor", *args],
        cwd=REPO,
        env=None if environment is None else dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def doctor(
    *args: str, code: int = 0, environment: Mapping[str, str] | None = None
) -> tuple[str, str]:
    """What it says on stdout and stderr."""
    process = start(*args, environment=environment)
    out, err = process.communicate(timeout=1500)
    assert process.returncode == code, (out, err)
    assert "Traceback" not in err, err
    return out, err


def diagnosis(*args: str, code: int = 0, **of_process: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(doctor(*args, "--json", code=code, **of_process)[0])
    return found


def about(found: dict[str, Any], name: str) -> dict[str, Any]:
    """The first finding of a name."""
    return next(f for f in found["findings"] if f["about"] == name)


def is_free(lock: str) -> bool:
    with Path(lock).open("r+b") as f:
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


# --- this machine --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Eight cells: the least that can be simulated from."""
    return diagnosis(*SHORT[1:], "--cells=8", f"runs_dir={tmp_path_factory.mktemp('runs')}")


def test_the_short_aa_is_a_campaign_like_any_other(here: dict[str, Any]) -> None:
    campaign = Path(here["campaign_dir"])
    assert "-doctor-" in campaign.name
    stored = {"config.yaml", "plan.json", "journal.jsonl", "environment.json", "verdict.json"}
    assert stored <= {p.name for p in campaign.iterdir()}
    records = [json.loads(p.read_text()) for p in sorted(campaign.glob("cells/*/record.json"))]
    assert [r["status"] for r in records] == ["ok"] * 8
    assert sorted({r["arm"] for r in records}) == ["baseline", "same"]
    report = subprocess.run(
        [sys.executable, "-m", "harness", "report", str(campaign)],
        cwd=REPO,
        capture_output=True,
        text=True,
        check=False,
    )
    assert report.returncode == 0 and "the same as" in report.stdout
    speeds = sorted(r["metrics"]["tok_s"] for r in records)
    assert here["noise"]["tok_s"] == pytest.approx((speeds[3] + speeds[4]) / 2)
    assert here["noise"]["cells"] == 8
    environment = json.loads((campaign / "environment.json").read_text())
    assert environment["preflight"] and environment["page_bytes"]


def test_a_password_is_neither_stored_nor_said(tmp_path: Path) -> None:
    words = [w for w in SHORT if w != "tracking=off"]
    uri = "tracking.uri=http://joe:hunter2@127.0.0.1:9/"  # where nothing listens
    out, err = doctor(*words, uri, f"runs_dir={tmp_path}", "--json")
    stored = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert {"config.yaml", "journal.jsonl"} <= {p.name for p in stored}
    assert [p for p in stored if b"hunter2" in p.read_bytes()] == []
    assert "hunter2" not in out + err


def test_power_reads_it_and_means_the_same_noise(here: dict[str, Any]) -> None:
    campaign = Path(here["campaign_dir"])
    source = read_source(str(campaign), campaign.parent)
    assert source.aa and len(source.device.records) == 8
    assert here["noise"]["spread"]["log_sd"] == pytest.approx(source.device.between_cells_log_sd)
    assert here["pairs"]["cell_s"] == pytest.approx(source.device.cell_s)
    assert here["pairs"]["budget_pairs"] == 18
    if here["pairs"]["method"] == "rough":  # on a machine that is too busy to simulate
        assert "not done in 30 s" in here["pairs"]["why_rough"]
    else:
        assert here["pairs"]["campaigns"] == 40
        assert 0 <= here["pairs"]["false_share"] < 0.5


def test_what_this_machine_shows_is_what_the_system_says(here: dict[str, Any]) -> None:
    zones = list(Path("/sys/class/thermal").glob("thermal_zone*/temp"))
    policies = list(Path("/sys/devices/system/cpu/cpufreq").glob("policy*/scaling_max_freq"))
    seen_by = here["throttling_seen_by"]
    assert seen_by["caps"] == bool(policies)
    if not zones:
        assert seen_by["temperatures"] is False
        assert about(here, "temperatures")["level"] == "warning"
    assert seen_by["probes"] is True
    if not zones and not policies:
        words = "throttling cannot be seen by caps or temperatures, only by probes."
        assert here["conclusion"].endswith(words)
    assert about(here, "memory limits")["level"] == "ok"
    assert about(here, "page cache")["level"] in ("ok", "warning")
    assert about(here, "engine")["seen"].startswith("moe-engine ")
    pressure = "ok" if Path("/proc/pressure/cpu").exists() else "note"
    assert about(here, "pressure")["level"] == pressure
    assert all(f["level"] in ("ok", "note", "warning") for f in here["findings"])
    assert all(f["means"] for f in here["findings"])
    assert all(f["do"] for f in here["findings"] if f["level"] == "warning")


def test_few_short_cells_are_called_what_they_are(here: dict[str, Any]) -> None:
    low, high = here["noise"]["spread"]["interval"]
    assert low < here["noise"]["spread"]["log_sd"] < high
    length = about(here, "length of cells")
    if here["noise"]["decode_s"] < 1:
        assert length["level"] == "warning" and "cell.n_predict=" in length["do"]
    assert here["noise"]["four_cell"]["sessions"] == 5
    assert here["noise"]["four_cell"]["candidates"] == 10


def test_a_device_where_a_campaign_measures_is_left_alone_but_for_a_glance(tmp_path: Path) -> None:
    lock, runs = tmp_path / "device.lock", f"runs_dir={tmp_path / 'runs'}"
    with lock.open("w+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        where = (f"target.device_lock={lock}", runs, "tracking=off")
        out, err = doctor("--no-noise", *where, code=1)
        assert out == ""
        assert err.count("\n") == 1 and "another campaign measures there" in err
        found = diagnosis("--quick", *where)
    assert found["noise"] is None and found["not_measured_because"] == "--quick"
    assert about(found, "direct reads")["seen"].startswith("not tried")
    assert about(found, "memory")["level"] == "ok"
    assert not (tmp_path / "runs").exists()  # nothing was measured, nothing is left


def test_without_noise_all_else_is_looked_at_and_nothing_left(tmp_path: Path) -> None:
    lock, runs = tmp_path / "device.lock", tmp_path / "runs"
    out, _ = doctor("--no-noise", f"runs_dir={runs}", f"target.device_lock={lock}")
    first = out.strip().splitlines()[0]
    assert first.startswith("How small a difference this device can tell is not known (--no-noise)")
    for words in ("direct reads", "page cache", "cgroup", "mlflow.db: not there yet"):
        assert words in " ".join(out.split())
    assert not runs.exists() and is_free(str(lock))


def test_a_limit_that_cannot_be_kept_is_a_failure_and_nothing_is_measured(tmp_path: Path) -> None:
    found = diagnosis(*SHORT, f"runs_dir={tmp_path}", "memory.limit_mb=10", code=1)
    assert found["exit_code"] == 1
    first = found["findings"][0]
    assert (first["level"], first["about"]) == ("failure", "engine")
    assert "memory.limit_mb=" in first["do"]
    assert found["campaign_dir"] is None
    assert "cannot be measured on as it is" in found["conclusion"]


def test_ctrl_c_keeps_what_was_measured_and_says_what_can_be_said(tmp_path: Path) -> None:
    process = start(*SHORT[1:], "--cells=24", f"runs_dir={tmp_path}", "--json")
    deadline = time.monotonic() + 600
    while len(list(tmp_path.glob("*/cells/*/record.json"))) < 4:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130, (out, err)
    assert "Traceback" not in err, err
    found = json.loads(out)
    assert found["interrupted"] is True
    assert 4 <= found["noise"]["cells"] < 24
    assert found["noise"]["spread"] is not None
    assert "as far as the cells before the interruption show" in found["conclusion"]


def test_what_is_missing_is_told_with_all_that_can_be_told_without(tmp_path: Path) -> None:
    where = (f"runs_dir={tmp_path}", f"target.device_lock={tmp_path / 'lock'}")
    found = diagnosis(*where, code=1, environment={**os.environ, "CXX": "/no/such"})
    first, second = found["findings"][:2]
    assert (first["about"], first["do"]) == ("engine", "correct CXX or unset it")
    assert (second["about"], second["level"]) == ("compiler", "warning")
    assert about(found, "MLflow")["level"] == "ok"
    assert found["noise"] is None
    out, err = doctor(*where, "engine.binary=/no/such", code=2)  # a setting that is wrong
    assert out == "" and err.startswith("harness: error: engine.binary: /no/such")


@pytest.fixture
def sensors(tmp_path: Path) -> Path:
    """A launcher that sees a made-up device: two CPU sensors, one of them a set point; one cap."""
    device = tmp_path / "device"
    files = {
        "thermal/thermal_zone0/type": "cpu-0-0",
        "thermal/thermal_zone0/temp": "45600",
        "thermal/thermal_zone1/type": "cpu-crit",
        "thermal/thermal_zone1/temp": "99600",
        "thermal/thermal_zone2/type": "battery",
        "thermal/thermal_zone2/temp": "31000",
    }
    made = {f"sys/class/{name}": text for name, text in files.items()}
    policy = "sys/devices/system/cpu/cpufreq/policy0"
    made |= {
        f"{policy}/related_cpus": "0 1",
        f"{policy}/scaling_max_freq": "1800000",
        f"{policy}/cpuinfo_max_freq": "2400000",
        f"{policy}/scaling_governor": "schedutil",
    }
    for name, text in made.items():
        (device / name).parent.mkdir(parents=True, exist_ok=True)
        (device / name).write_text(text + "\n")
    launcher = ensure_engine().launcher
    wrapper = tmp_path / "moe-launcher"
    root = f"--sys-root {device / 'sys'}"
    # it warms up a little with every look, as what is looked at does
    warmer = f"echo $(( $(cat {device}/sys/class/thermal/thermal_zone0/temp) + 10 ))"
    wrapper.write_text(
        f'#!/bin/sh\ncase "$1" in\n'
        f"run|state|inspect|selftest) t=$({warmer}); "
        f"echo $t > {device}/sys/class/thermal/thermal_zone0/temp; "
        f'v=$1; shift; exec "{launcher}" "$v" {root} "$@";;\n'
        f'*) exec "{launcher}" "$@";;\nesac\n'
    )
    wrapper.chmod(0o755)
    return wrapper


def test_a_device_with_sensors_shows_which_is_used_and_which_is_none(
    sensors: Path, tmp_path: Path
) -> None:
    found = diagnosis(*SHORT, f"engine.launcher={sensors}", f"runs_dir={tmp_path / 'runs'}")
    assert found["throttling_seen_by"]["sensor"] == "thermal_zone0.cpu-0-0"
    assert found["conclusion"].endswith("throttling is seen by frequency caps and temperatures.")
    of = [f for f in found["findings"] if f["about"] == "temperatures"]
    assert {f["level"] for f in of} == {"ok", "note"}
    assert "thermal_zone0.cpu-0-0 is used" in next(f["seen"] for f in of if f["level"] == "ok")
    set_point = next(f["seen"] for f in of if f["level"] == "note")
    assert "thermal_zone1 (cpu-crit) reads 99.6 °C" in set_point
    caps = about(found, "frequency caps")
    assert caps["level"] == "warning" and "policy0 is capped at 1.80 GHz, 75% of" in caps["seen"]
    assert about(found, "governor")["seen"] == "schedutil"
    # once they were seen under load they are not told twice
    assert len(of) == 2


# --- other devices -------------------------------------------------------------------------------


def test_over_ssh(tmp_path: Path) -> None:
    needs_sshd()
    sshd = Sshd(tmp_path / "sshd")
    sshd.start()
    try:
        where = [*sshd.overrides(), f"target.device_lock={tmp_path / 'lock'}"]
        found = diagnosis(*SHORT, *where, f"runs_dir={tmp_path / 'runs'}")
    finally:
        sshd.stop()
    assert found["target"]["kind"] == "ssh"
    assert found["noise"]["cells"] == 4
    assert found["pairs"]["method"] == "rough" and "too few" in found["pairs"]["why_rough"]
    assert about(found, "engine")["level"] == "ok"
    there = Path(next(w.partition("=")[2] for w in where if w.startswith("target.dir=")))
    assert str(there) in about(found, "direct reads")["seen"]
    assert [p.name for p in there.iterdir() if p.name != "files"] in ([], ["campaigns"])
    assert not list((there / "campaigns").glob("*"))
    assert is_free(str(tmp_path / "lock"))


@pytest.mark.skipif(
    why_unavailable() is not None, reason=f"no made-up adb device: {why_unavailable()}"
)
def test_on_a_phone(tmp_path: Path) -> None:
    with phone(tmp_path) as there:
        found = on_phone(there, *SHORT, "target.fixed_performance=false")
        there.is_as_before()
    assert found["target"]["kind"] == "adb"
    assert found["noise"]["cells"] == 4
    assert found["throttling_seen_by"]["caps"] is True
    assert found["throttling_seen_by"]["temperatures"] is True
    assert "thermal status is none" in about(found, "heat status")["seen"]
    assert about(found, "battery")["seen"].startswith("battery at ")
    assert about(found, "governor")["do"].startswith("target.fixed_performance=true")


def on_phone(there: Phone, *args: str) -> dict[str, Any]:
    where = ["target=adb", f"target.serial={there.device.serial}", f"runs_dir={there.runs}"]
    return diagnosis(*where, *args, environment=there.environment)
