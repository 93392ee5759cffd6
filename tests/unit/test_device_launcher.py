"""The launcher's command line, its result file, and what a cell's files say of the cell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cell_parts import make_arm, make_plan

from harness.collect import UNCHARGED_ALLOWED_BYTES, collect_cell, judge
from harness.device.launcher import LauncherResult, Sampling, launcher_argv, read_result
from harness.errors import DeviceError
from harness.jsonable import from_json, to_json
from harness.readings import ThermalState
from harness.records import CellRecord, CgroupMemory, TargetId, Wait

RESULT: dict[str, Any] = {
    "launcher_version": "1",
    "argv": ["/e"],
    "started_unix_s": 10,
    "ended_unix_s": 11.5,
    "wall_s": 1.5,
    "status": "ok",
    "status_detail": None,
    "exit_code": 0,
    "signal": None,
    "timed_out": False,
    "interrupted": False,
    "data_limit_bytes": None,
    "data_limit_enforced": None,
    "anon_peak_bytes": 1000,
    "rss_peak_bytes": 2000,
    "sampler_cpu_share": 0.001,
    "entry": {
        "unix_s": 10,
        "mem_available_bytes": 5,
        "cpufreq": [],
        "thermal": [{"zone": "thermal_zone0", "type": "cpu", "temp_c": 40}],
        "battery": None,
        "psi": None,
    },
    "exit": None,
    "probe": {"before": {"compute_ms": 1.25, "compute_reps": 9, "read_ms": None}, "after": None},
    "news": "from a newer launcher",
}


def argv_of(**changes: Any) -> list[str]:
    options: dict[str, Any] = {
        "sampling": Sampling(),
        "probe_file": Path("/m.gguf"),
        "data_limit_bytes": None,
        "cgroup_limit_bytes": None,
        "cgroup_mode": "wanted",
        "time_limit_s": 3600.0,
    }
    return launcher_argv(Path("/l"), Path("/w"), ["/e", "-m", "x"], **(options | changes))


def collect(cell_dir: Path, **limits: Any) -> CellRecord:
    arm = make_arm()
    return collect_cell(
        cell_dir,
        make_plan(arm).cells[0],
        make_arm() if not limits else type(arm)(**{**vars(arm), **limits}),
        engine_argv=["/e"],
        target=TargetId("local", "here"),
        model_sha256="m",
        wait=Wait(0.0, "first cell"),
    )


def test_the_command_line_of_an_uncapped_cell() -> None:
    assert " ".join(argv_of()) == (
        "/l run --dir /w --cwd /w --time-limit-s 3600.000 --sample-ms 20 --device-ms 250 "
        "--probe-s 1.000 --probe-file /m.gguf -- /e -m x"
    )


def test_a_cap_is_passed_on_and_no_probe_needs_no_file() -> None:
    argv = argv_of(data_limit_bytes=1 << 30, sampling=Sampling(probe_s=0))
    assert argv[argv.index("--data-limit-bytes") + 1] == str(1 << 30)
    assert "--probe-file" not in argv


@pytest.mark.parametrize("mode", ["wanted", "required"])
def test_a_cgroup_is_asked_for_with_how_much_it_is_wanted(mode: str) -> None:
    argv = argv_of(cgroup_limit_bytes=1 << 30, cgroup_mode=mode)
    at = argv.index("--cgroup-limit-bytes")
    assert argv[at : at + 4] == ["--cgroup-limit-bytes", str(1 << 30), "--cgroup-mode", mode]


def test_a_result_is_read_with_its_nulls_and_unknown_keys(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps(RESULT))
    result = read_result(tmp_path)
    assert result is not None
    assert result.entry is not None
    assert result.entry.thermal == (ThermalState("thermal_zone0", "cpu", 40.0),)
    assert result.entry.battery is None
    assert result.exit is None
    assert result.probe.before is not None
    assert result.probe.before.read_ms is None
    assert result.probe.after is None


def test_no_result_is_none_and_a_broken_one_an_error(tmp_path: Path) -> None:
    assert read_result(tmp_path) is None
    for content in ("{", "[]", '{"status": "fine"}', "{}"):
        (tmp_path / "result.json").write_text(content)
        with pytest.raises(DeviceError, match=r"result\.json"):
            read_result(tmp_path)


@pytest.mark.parametrize(
    ("changes", "complaint", "status", "words"),
    [
        ({}, None, "ok", None),
        ({"status": "failed", "exit_code": 4}, "needs 9, allowed 8", "refused", "needs 9"),
        ({"status": "failed", "exit_code": 3}, "not a GGUF", "failed", "exit 3: not a GGUF"),
        ({"status": "failed", "exit_code": None, "signal": 11}, None, "failed", "exit 3"),
        ({"status": "failed", "exit_code": None, "signal": 9}, None, "killed", "exit 3"),
        ({"status": "killed", "exit_code": None}, None, "killed", "exit 3"),
        ({"status": "spawn_failed", "exit_code": None}, None, "failed", "exit 3"),
        ({"status": "limit_not_enforced", "exit_code": None}, None, "failed", "exit 3"),
        ({"status": "cgroup_unavailable", "exit_code": None}, None, "failed", "exit 3"),
    ],
)
def test_every_end_has_its_status(
    changes: dict[str, Any], complaint: str | None, status: str, words: str | None
) -> None:
    detail = None if not changes else "exit 3"
    result = LauncherResult(**{"status": "ok", "exit_code": 0, "status_detail": detail} | changes)
    assert judge(result, (), complaint)[0] == status
    if words is not None:
        assert words in str(judge(result, (), complaint)[1])


def test_a_run_that_ended_well_but_was_another_failed() -> None:
    result = LauncherResult("ok", exit_code=0)
    assert judge(result, ("asked for this", "and that"), None) == (
        "failed",
        "asked for this; and that",
    )


def test_a_launcher_that_died_leaves_a_failed_record_with_its_last_word(tmp_path: Path) -> None:
    (tmp_path / "launcher.txt").write_text("x\nmoe-launcher: unknown option\n")
    record = collect(tmp_path)
    assert record.status == "failed"
    assert record.exit_code is None
    assert record.status_detail == ("the launcher wrote no result: moe-launcher: unknown option")


@pytest.mark.parametrize(
    ("limit", "peak", "within"),
    [(None, 1000, None), (1000, 1000, True), (999, 1000, False), (999, None, None)],
)
def test_the_cap_is_judged_by_what_the_launcher_saw(
    tmp_path: Path, limit: int | None, peak: int | None, within: bool | None
) -> None:
    (tmp_path / "result.json").write_text(json.dumps(RESULT | {"anon_peak_bytes": peak}))
    record = collect(tmp_path, data_limit_bytes=limit)
    assert record.metrics.anon_within_limit is within
    assert record.metrics.anon_peak_bytes == peak
    assert record.metrics.sampler_cpu_share == 0.001
    assert record.data_limit_bytes == limit
    assert record.identity.model_sha256 == "m"


CONTENTION = {
    "cpu_wait_s": 0.3,
    "cpu_throttled_s": 0.0,
    "neighbour_cpu_s": 2.25,
    "steal_cpu_s": None,
}


@pytest.mark.parametrize(
    ("wall_s", "shares"),
    [
        (1.5, (pytest.approx(0.2), 0.0, 1.5, None)),  # two cores: others may have more than one
        (0.0, (None,) * 4),
        (None, (None,) * 4),
    ],
)
def test_contention_is_told_as_shares_of_one_core(
    tmp_path: Path, wall_s: float | None, shares: tuple[float | None, ...]
) -> None:
    found = RESULT | CONTENTION | {"wall_s": wall_s}
    (tmp_path / "result.json").write_text(json.dumps(found))
    metrics = collect(tmp_path).metrics
    assert (
        metrics.cpu_wait_share,
        metrics.cpu_throttled_share,
        metrics.neighbour_cpu_share,
        metrics.steal_cpu_share,
    ) == shares


def test_an_older_launcher_leaves_contention_unknown(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps(RESULT))
    assert collect(tmp_path).metrics.neighbour_cpu_share is None


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({}, None),
        ({"cgroup": None}, None),
        (
            {
                "cgroup": {
                    "mode": "wanted",
                    "reason": None,
                    "version": 1,
                    "path": "/sys/fs/cgroup/memory/moe-launcher-7",
                    "limit_bytes": 4096,
                    "swap_limited": True,
                    "peak_bytes": 4096,
                    "failcnt": 3,
                    "oom_kills": 1,
                    "oom_killed": True,
                    "uncharged_bytes": 7,
                    "removed": True,
                }
            },
            CgroupMemory(4096, True, 4096, 3, 1, oom_killed=True, uncharged_bytes=7),
        ),
        (
            {"cgroup": {"mode": "wanted", "reason": "none here", "limit_bytes": None}},
            CgroupMemory(reason="none here"),
        ),
    ],
)
def test_what_became_of_the_cgroup_is_in_the_record(
    tmp_path: Path, found: dict[str, Any], expected: CgroupMemory | None
) -> None:
    (tmp_path / "result.json").write_text(json.dumps(RESULT | found))
    record = collect(tmp_path, cgroup_limit_bytes=4100)
    assert record.cgroup == expected
    assert from_json(CellRecord, to_json(record)) == record


@pytest.mark.parametrize(
    ("mode", "uncharged", "failed"),
    [
        ("required", UNCHARGED_ALLOWED_BYTES + 1, True),
        ("required", UNCHARGED_ALLOWED_BYTES, False),
        ("required", None, False),
        ("wanted", UNCHARGED_ALLOWED_BYTES + 1, False),
    ],
)
def test_a_required_limit_that_page_cache_got_round_fails_the_cell(
    tmp_path: Path, mode: str, uncharged: int | None, failed: bool
) -> None:
    found = {"cgroup": {"limit_bytes": 4096, "uncharged_bytes": uncharged}}
    (tmp_path / "result.json").write_text(json.dumps(RESULT | found))
    record = collect(tmp_path, cgroup_limit_bytes=4100, cgroup_mode=mode)
    assert record.status == "failed"  # no telemetry
    assert ("drop_page_cache" in str(record.status_detail)) is failed
