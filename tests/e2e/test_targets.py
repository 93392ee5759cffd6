"""One experiment on this machine, over ssh and over adb: the same work, the same record."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from adb_device import AdbDevice, why_unavailable
from adb_device_parts import Adb, host
from ports import free_port
from ssh_parts import Sshd, needs_sshd

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2700)]

REPO = Path(__file__).resolve().parents[2]
KINDS = ("local", "ssh", "adb")
SHORT = (
    "+experiment=matched_pair",
    "cell.n_predict=192",
    "schedule.spacing_s=0.5",
    "schedule.probe_s=0.3",
)
# of which no value can be equal, or not where the machine is another
OF_ITS_OWN = {"target", "argv"}
BATTERIES = {"entry.", "exit."}
# the made-up phone shows no cgroups, so no quota can be seen there
NOT_ON_A_PHONE = {"metrics.cpu_throttled_share."}


@dataclass(frozen=True)
class Bench:
    """How the harness is called to measure on one kind of target."""

    overrides: list[str]
    environment: dict[str, str]

    def run(self, *args: str, timeout: float = 900) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "harness", *args, *self.overrides],
            cwd=REPO,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )


@pytest.fixture(scope="module")
def benches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Bench]]:
    needs_sshd()
    if reason := why_unavailable():
        pytest.skip(f"no made-up adb device: {reason}")
    base = tmp_path_factory.mktemp("targets")
    own = dict(os.environ)
    sshd = Sshd(base / "sshd")
    sshd.start()
    (base / "home").mkdir()
    with AdbDevice() as device, host(base / "home", free_port()) as adb:
        adb.connect(device.serial)
        # its HOME and server for the adb client, the engine's cache as everywhere
        over_adb = {**own, **adb_environment(adb)}
        yield {
            "local": Bench([], own),
            "ssh": Bench(sshd.overrides(), own),
            "adb": Bench(["target=adb", f"target.serial={device.serial}"], over_adb),
        }
    sshd.stop()


def adb_environment(adb: Adb) -> dict[str, str]:
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return {
        "HOME": str(adb.home),
        "ANDROID_ADB_SERVER_PORT": str(adb.port),
        "XDG_CACHE_HOME": cache,
    }


@pytest.fixture(scope="module")
def campaigns(
    benches: dict[str, Bench], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[dict[str, Any]]]:
    """The records of each target's campaign."""
    found = {}
    for kind in KINDS:
        runs = tmp_path_factory.mktemp(f"runs-{kind}")
        done = benches[kind].run(*SHORT, f"runs_dir={runs}")
        assert done.returncode == 0, (kind, done.stdout, done.stderr)
        paths = sorted(runs.glob("*/cells/*/record.json"))
        found[kind] = [json.loads(path.read_text()) for path in paths]
        assert len(found[kind]) == 4, (kind, done.stdout, done.stderr)
    return found


@pytest.mark.parametrize("kind", ["ssh", "adb"])
def test_the_same_work_and_output(campaigns: dict[str, list[dict[str, Any]]], kind: str) -> None:
    """Of the baseline and the sentinel; what is read ahead, and so dropped, depends on timing."""
    for here, there in zip(campaigns["local"], campaigns[kind], strict=True):
        assert there["status"] == here["status"] == "ok"
        assert there["target"]["kind"] == kind
        if there["role"] != "candidate":
            assert there["output_sha256"] == here["output_sha256"] is not None
            assert there["counters"] == here["counters"]
            assert there["identity"] == here["identity"]
            assert there["metrics"]["nll"] == here["metrics"]["nll"]


@pytest.mark.parametrize("kind", ["ssh", "adb"])
def test_the_same_fields_are_measured(
    campaigns: dict[str, list[dict[str, Any]]], kind: str
) -> None:
    for here, there in zip(campaigns["local"], campaigns[kind], strict=True):
        assert there.keys() == here.keys()
        # a phone has a battery besides
        assert not fields(here) - fields(there)
        assert {f.partition("battery.")[0] for f in fields(there) - fields(here)} <= BATTERIES
        # whatever this machine could tell of itself the device told, too
        missing = told(here) - told(there) - {f"{name}." for name in OF_ITS_OWN}
        assert missing <= (NOT_ON_A_PHONE if kind == "adb" else set())


def fields(value: Any, path: str = "") -> set[str]:
    """Every key with its path, lists left out: how many sensors there are is the device's."""
    if not isinstance(value, dict):
        return set()
    found = {f"{path}{key}." for key in value if value[key] is None or key not in OF_ITS_OWN}
    return found | {f for key in value for f in fields(value[key], f"{path}{key}.")}


def told(value: Any, path: str = "") -> set[str]:
    """Every key that has a value."""
    if not isinstance(value, dict):
        return set() if value is None else {path}
    return {f for key in value for f in told(value[key], f"{path}{key}.")}


def quoted(text: str) -> str:
    """As Hydra reads it: backslashes count only before a quote."""
    inside = re.sub(r'(\\*)("|$)', lambda m: m[1] * 2 + ("\\" + m[2] if m[2] else ""), text)
    return f'"{inside}"'


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_and_paths_of_any_kind_arrive_unchanged(
    benches: dict[str, Bench], tmp_path: Path, kind: str
) -> None:
    nasty = "a b'c\"d$(touch PWNED)`touch PWNED`\\ü;&|<>*"
    runs, text = tmp_path / nasty, tmp_path / f"text {nasty}.txt"
    text.write_text("And God said, Let there be light: and there was light. " * 20)
    prompt = "In the $(touch PWNED) \"beginning\"\n'God' `touch PWNED` \\ created é"
    done = benches[kind].run(
        "+experiment=matched_pair",
        f"cell.prompt={quoted(prompt)}",
        "cell.n_predict=64",
        "schedule.spacing_s=0",
        "schedule.probe_s=0.1",
        "tracking=off",
        f"cell.text={quoted(str(text))}",
        f"runs_dir={quoted(str(runs))}",
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    (campaign,) = [p for p in runs.iterdir() if (p / "journal.jsonl").is_file()]
    plan = json.loads((campaign / "plan.json").read_text())
    assert {arm["prompt"] for arm in plan["arms"].values()} == {prompt}
    for cell in sorted(campaign.glob("cells/*")):
        assert (cell / "prompt.txt").read_text() == prompt
        assert json.loads((cell / "record.json").read_text())["status"] == "ok"
    assert not list(tmp_path.rglob("PWNED"))
    assert not (REPO / "PWNED").exists()
