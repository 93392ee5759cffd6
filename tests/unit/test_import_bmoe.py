"""`import bmoe`: the other engine's sessions into campaign directories."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from shared_data import DATA

from harness.collect import read_series
from harness.errors import UsageError
from harness.importers import cli
from harness.importers.bmoe import read_sessions
from harness.importers.bmoe_tokens import read_token_file
from harness.importers.measures import tok_s
from harness.importers.write import Imported
from harness.journal import load_records
from harness.records import CellRecord

SAMPLES = Path(__file__).parents[1] / "data" / "bmoe"
ARCHIVE = DATA


def sessions(path: Path, baseline: str | None = None, design: str | None = None) -> list[Imported]:
    return read_sessions(path, name=None, baseline=baseline, design=design)


def session(path: Path, **more: str) -> Imported:
    (only,) = sessions(path, **more)
    return only


def records(imported: Imported) -> dict[str, CellRecord]:
    return {c.record.cell: c.record for c in imported.cells}


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def run_file(n: int = 3, wall_ms: float = 100.0, preamble: str = "") -> str:
    """A v0 file of `n` tokens, whole."""
    rows = "".join(f"{i + 1},{n},{wall_ms:.3f},40.000,60.000,1000,50.00,0.000\n" for i in range(n))
    header = "step,steps,wall_ms,io_ms,compute_ms,read_bytes,cache_hit_pct,stall_ms\n"
    summary = f"# summary tokens={n} tok/s={1e3 / wall_ms:.3f} n_prompt=34 load_s=2.0\n"
    return preamble + header + rows + summary


# --- generations of the header -------------------------------------------------------------------


def test_v0_serial_reading_is_waiting_and_a_log_with_bom_is_read() -> None:
    imported = session(SAMPLES / "v0")
    r = records(imported)["qwen_c4000_l4"]
    # the file was cut for this test: the whole run's log says so
    assert r.status == "failed"
    assert r.status_detail == "its log says 256 tokens, the file has 5 rows"
    assert r.counters.tokens == 5
    assert r.counters.read_bytes == 679403520 + 442269696 + 530202624 + 286691328 + 283385856
    assert r.identity.mode == "stream" and r.identity.prompt_tokens == 34
    assert r.identity.direct_io is None and r.identity.threads is None and r.argv == ()
    assert r.metrics.load_s == 18.009 and r.metrics.prefill_tok_s == pytest.approx(34 / 10.845)
    assert r.entry is not None and r.entry.mem_available_bytes is not None
    assert [(t.zone, t.temp_c) for t in r.entry.thermal] == [("cpu", 48.2)]
    assert r.entry.battery is not None and r.entry.battery.temp_c == 39.4
    assert r.entry.cpufreq == () and r.entry.unix_s is None
    assert r.peaks.cpu_temp_max_c == 73.7
    first = imported.cells[[c.record.cell for c in imported.cells].index("qwen_c4000_l4")].rows[0]
    # without overlap compute waits for every read; cache management was not told apart
    assert (first["wall_ms"], first["io_ms"], first["stall_ms"]) == (740.703, 415.09, 415.09)
    assert "manage_ms" not in first and "majflt" not in first


def test_v0_a_mapped_run_has_no_reading_at_all() -> None:
    imported = session(SAMPLES / "v0")
    r = records(imported)["qwen_mmap"]
    assert r.identity.mode == "plain"
    assert r.counters.read_bytes is None and r.metrics.bytes_per_token is None
    assert r.metrics.hit_rate_total is None and r.metrics.stall_ms_per_token is None
    rows = next(c.rows for c in imported.cells if c.record.cell == "qwen_mmap")
    assert all(set(row) == {"wall_ms", "compute_ms"} for row in rows)


def test_v0_overlap_keeps_the_stall_that_was_measured() -> None:
    rows = next(
        c.rows for c in session(SAMPLES / "v0").cells if c.record.cell == "qwen_c4000_l4_ov"
    )
    assert rows[0]["stall_ms"] == 157.22
    # the sum over lanes, beyond the wall time of 483 ms: not the time with a read in flight
    assert "io_ms" not in rows[0] and rows[0]["lane_busy_ms"] == 806.741


def test_seven_columns_without_a_stall_are_serial_where_they_add_up(tmp_path: Path) -> None:
    header = "step,steps,wall_ms,io_ms,compute_ms,read_bytes,cache_hit_pct\n"
    end = "# summary tokens=2 tok/s=10.000\n"
    write(tmp_path / "s" / "a.csv", header + "1,2,100,40,60,1,9\n2,2,100,30,70,1,9\n" + end)
    write(tmp_path / "s" / "b.csv", header + "1,2,100,40,80,1,9\n2,2,100,30,70,1,9\n" + end)
    a, b = session(tmp_path / "s").cells
    assert [row["stall_ms"] for row in a.rows] == [40, 30]
    assert all("stall_ms" not in row and row["io_ms"] for row in b.rows)


def test_v1_the_removed_speculation_is_not_counted_where_it_was_off() -> None:
    r = records(session(SAMPLES / "v1"))["gemma_sg_ov"]
    assert r.counters.spec_read_bytes is None and r.counters.spec_experts is None
    assert r.metrics.prefill_tok_s == pytest.approx(42 / 5.635)
    assert r.peaks.cpu_temp_max_c == 84.5  # of the copy of the sidecar in the log


def test_v1b_in_a_file_named_metrics_with_its_state() -> None:
    r = records(session(SAMPLES / "v1b"))["gptoss"]
    assert r.counters.tokens == 5
    assert r.metrics.majflt_per_token == pytest.approx((710 + 219 + 287 + 150 + 219) / 5)
    assert r.entry is not None and r.exit is not None
    caps = {c.policy: (c.scaling_max_khz, c.cpuinfo_max_khz) for c in r.entry.cpufreq}
    assert caps == {"policy0": (1900800, 3321600), "policy6": (1651200, 3801600)}
    assert [c.scaling_max_khz for c in r.exit.cpufreq] == [1747200, 1651200]
    assert r.entry.thermal == () and r.entry.battery is None  # trip points; no permission
    assert "do not vary" in r.notes[0]
    assert r.started_unix_s == 1784099388.0  # 09:09:48 CEST
    assert r.ended_unix_s == r.started_unix_s + 225


def test_v2_settings_of_the_preamble_are_the_identity() -> None:
    imported = session(SAMPLES / "v2")
    r = records(imported)["qwen-lru_a"]
    i = r.identity
    assert (i.model, i.cache_mb, i.expert_used, i.threads, i.dense_weights, i.evict) == (
        "Qwen3-30B-A3B-Q4_K_M.gguf",
        3000,
        6,
        4,
        "anon",
        "lru",
    )
    assert i.direct_io is True and i.capacity_bytes == 3000 * 2**20 and i.model_sha256 is None
    assert r.argv[:4] == ("bmoe", "--moe-stream", "--cache-mb", "3000")
    assert "--prefetch" not in r.argv and "-n" not in r.argv
    assert r.metrics.rss_peak_bytes == round(4868.1 * 2**20)
    row = next(c.rows for c in imported.cells if c.record.cell == "qwen-lru_a")[0]
    assert row["swap_bytes"] == round(92.5 * 2**20)
    assert row["mem_available_bytes"] == round(2812.8 * 2**20)
    assert row["majflt"] == 2721 and row["manage_ms"] == 64.553


def test_v2_rows_that_do_not_bear_out_the_summary_are_told() -> None:
    r = records(session(SAMPLES / "v2"))["qwen-lru_a"]
    assert r.status == "failed"
    assert r.status_detail == "the summary says 256 tokens, the file has 4 rows"
    assert any("tok/s from the rows is" in n and "the summary says 5.31" in n for n in r.notes)


def test_v3_session_of_two_turns_is_one_run_and_a_group_of_tokens_shares_its_decode() -> None:
    imported = session(SAMPLES / "v3")
    (cell,) = imported.cells
    r, rows = cell.record, cell.rows
    assert r.status == "ok" and r.status_detail is None
    assert r.identity.model == "My Model Q4 K M.gguf"
    assert r.identity.engine_build_id == "0.19.0+abc1234"
    assert r.identity.cache_mb is None and r.identity.direct_io is False
    assert r.identity.capacity_bytes == round(5280.8 * 2**20)
    assert r.identity.prompt_tokens == 25
    assert "--no-odirect" not in r.argv and "auto" in r.argv and "0.75" in r.argv
    assert [row["wall_ms"] for row in rows] == [pytest.approx(200 / 3)] * 3 + [100, 50, 50]
    assert [row["read_bytes"] for row in rows[:3]] == [333334, 333334, 333333]
    assert r.counters.tokens == 6 and r.counters.read_bytes == 2000001
    assert r.metrics.tok_s == pytest.approx(6 / 0.4)
    assert rows[0]["stall_ms"] == pytest.approx(80 / 3)  # overlap=0
    assert [row["turn"] for row in rows] == [0, 0, 0, 0, 1, 1]
    assert rows[0]["swap_bytes"] == 0  # measured: the process has memory
    assert r.metrics.hit_rate_total == pytest.approx(0.61)
    assert any("session of 2 turns" in n for n in r.notes)
    assert any("1 decode gave several tokens" in n for n in r.notes)


def test_one_turn_has_its_dropping_and_speculation(tmp_path: Path) -> None:
    text = (SAMPLES / "v3" / "session.csv").read_text()
    first = text[: text.index("# summary tokens=2")].splitlines()
    write(tmp_path / "s" / "one.csv", "\n".join(first[:10] + first[10:11]) + "\n")
    r = records(session(tmp_path / "s"))["one"]
    assert (r.counters.routed, r.counters.dropped) == (1000, 142)
    assert r.metrics.dropped_share == pytest.approx(0.142)
    assert (r.counters.spec_experts, r.counters.spec_useful) == (10, 8)
    assert r.counters.evictions == 12 and r.counters.spec_read_bytes == 2**19


def test_zeros_of_a_system_that_counts_nothing_are_not_measured(tmp_path: Path) -> None:
    text = (
        "step,steps,wall_ms,io_ms,compute_ms,read_bytes,cache_hit_pct,stall_ms,mgmt_ms,majflt,"
        "cpu_ms,rss_mib,swap_mib,mem_available_mib\n"
        "1,2,100.0,10,80,5,1.0,5,5,0,0.000,0.0,0.0,2000.0\n"
        "2,2,100.0,10,80,5,1.0,5,5,0,0.000,0.0,0.0,2000.0\n"
        "# summary tokens=2 tok/s=10.000 majflt/tok=0.00 cpu_s/tok=0.0000\n"
    )
    write(tmp_path / "s" / "win.csv", text)
    (cell,) = session(tmp_path / "s").cells
    assert not {"majflt", "cpu_ms", "rss_bytes", "swap_bytes"} & set(cell.rows[0])
    assert cell.rows[0]["mem_available_bytes"] == 2000 * 2**20
    assert cell.record.metrics.majflt_per_token is None
    # the same zeros beside CPU time are a run without a fault
    write(tmp_path / "t" / "linux.csv", text.replace(",0,0.000,", ",0,7.000,"))
    (cell,) = session(tmp_path / "t").cells
    assert cell.record.metrics.majflt_per_token == 0.0


# --- damage --------------------------------------------------------------------------------------


def test_a_cut_run_keeps_its_whole_rows_and_is_no_success(tmp_path: Path) -> None:
    whole = run_file(4)
    cut = whole[: whole.index("4,4,100") + 9]
    write(tmp_path / "s" / "killed.csv", cut)
    r = records(session(tmp_path / "s"))["killed"]
    assert r.status == "failed" and r.counters.tokens == 3
    assert "line 5 is cut and is left out" in (r.status_detail or "")
    assert "3 rows without a summary" in (r.status_detail or "")


def test_bytes_that_are_no_utf8_lose_their_line_only(tmp_path: Path) -> None:
    data = run_file(3).encode().replace(b"2,3,100.000", b"2,3,1\xff\xfe0.000")
    path = write(tmp_path / "s" / "bad.csv", "")
    path.write_bytes(data)
    r = records(session(tmp_path / "s"))["bad"]
    assert r.counters.tokens == 2 and r.status == "failed"
    assert "line 3 has no wall time and is left out" in (r.status_detail or "")


def test_a_run_whose_csv_lacks_the_summary_that_its_log_has_is_whole(tmp_path: Path) -> None:
    text = run_file(3)
    write(tmp_path / "s" / "a.csv", text[: text.index("# summary")])
    write(tmp_path / "s" / "a.log", "\ufeffgeneration: 3 tokens, 0.100 s/token (10.000 tok/s)\n")
    r = records(session(tmp_path / "s"))["a"]
    assert r.status == "ok" and r.status_detail is None and r.notes == ()


def test_logs_of_a_windows_shell_in_utf_16(tmp_path: Path) -> None:
    write(tmp_path / "s" / "a.csv", run_file(3))
    log = "compute: 50.0% CPU occupancy (0.2 cpu-s/token over 8 threads), 0.00 major faults/token\n"
    log = "generation: 3 tokens, 0.100 s/token (10.000 tok/s)\r\n" + log
    (tmp_path / "s" / "a.out.txt").write_bytes(log.encode("utf-16"))
    r = records(session(tmp_path / "s"))["a"]
    assert r.identity.threads == 8


def test_tok_s_that_the_rows_do_not_give_is_told(tmp_path: Path) -> None:
    write(tmp_path / "s" / "a.csv", run_file(3).replace("tok/s=10.000", "tok/s=10.001"))
    r = records(session(tmp_path / "s"))["a"]
    assert r.notes == ("tok/s from the rows is 10.000, the summary says 10.001",)


def test_a_log_of_another_run_is_not_believed(tmp_path: Path) -> None:
    write(tmp_path / "s" / "a.csv", run_file(3))
    write(tmp_path / "s" / "a.log", "generation: 3 tokens, 0.500 s/token (2.000 tok/s)\n")
    imported = session(tmp_path / "s")
    (over,) = imported.passed_over
    assert over.file == "a.log" and "is not that of a.csv" in over.reason
    assert not any("2.0" in n for n in records(imported)["a"].notes)


def test_a_log_without_a_run_is_a_cell_without_tokens(tmp_path: Path) -> None:
    shutil.copy(SAMPLES / "v1" / "gemma_sg_ov.log", write(tmp_path / "s" / "x.log", ""))
    (cell,) = session(tmp_path / "s").cells
    r = cell.record
    assert r.status == "ok" and cell.rows == () and r.cell == "x"
    assert r.metrics.tok_s == 2.926 and r.counters.tokens == 256
    assert r.metrics.bytes_per_token == pytest.approx(93695.5 * 2**20 / 256)
    assert r.metrics.wall_ms_median is None and r.metrics.majflt_per_token is None


# --- logs ----------------------------------------------------------------------------------------


def test_drivers_logs_give_the_order_and_the_state_at_entry_and_exit() -> None:
    imported = session(SAMPLES / "v2")
    assert [c.record.cell for c in imported.cells] == [
        "qwen-lru_a",
        "qwen-lfu_a",
        "qwen-lfu_b",
        "qwen-lru_b",
    ]
    found = records(imported)
    a, b = found["qwen-lru_a"], found["qwen-lfu_a"]
    assert a.entry is not None and a.exit is not None and b.exit is not None
    # the battery's level breaks the line
    assert [c.scaling_max_khz for c in a.entry.cpufreq] == [2265600]
    assert [c.scaling_max_khz for c in b.exit.cpufreq] == [1900800]
    assert a.entry.mem_available_bytes == 6044032 * 1024
    assert a.entry.thermal[0].temp_c == 42.0 and a.exit.thermal[0].temp_c == 56.7
    assert a.entry.battery is not None and a.entry.battery.temp_c == 35.4
    assert a.entry.battery.capacity_pct is None
    # inside a log the order is known, between the two logs it is not
    assert [bool(r.notes and "guess" in r.notes[-1]) for r in found.values()] == [
        False,
        False,
        True,
        False,
    ]
    assert imported.plan.design == "survey"
    assert [p.file for p in imported.passed_over] == ["qwen-curve.csv"]


DRIVER = """=============== one ===============
ENTRY STATE: batt=420 dC, memavail=6837980 kB, freq=1555200, waited=180s
bmoe: expert streaming ON  n_expert=128 o_direct=1 io_threads=8 cache=2000 MiB shards=4
=== answer ===
Fine.
=== perf ===
generation: 3 tokens, 0.100 s/token (10.000 tok/s)
moe-cache: 32.0% hit, resident 1991.9 MiB, budget 2000 MiB (auto, resized 0×)
moe-cache: 12 evictions, 3 re-reads (1.0/token)
EXIT: batt=42.3 C cpu=46.7 mem=6000000 kB
=============== two ===============
freq_cap=1900800/1651200 thermal=1
generation: 3 tokens, 0.200 s/token (5.000 tok/s)
freq_cap=1747200/1651200 thermal=2
=============== three ===============
ENTRY: batt=430 dC cpu=45000 mC mem=1 kB freq=100
=============== DONE ===============
"""


def test_a_drivers_log_alone_is_a_session(tmp_path: Path) -> None:
    write(tmp_path / "s" / "driver.log", DRIVER)
    imported = session(tmp_path / "s")
    one, two, three = (c.record for c in imported.cells)
    assert (one.cell, two.cell, three.cell) == ("one", "two", "three")
    assert one.wait is not None and one.wait.seconds == 180
    assert one.metrics.hit_rate_total == 0.32 and one.counters.evictions == 12
    assert one.identity.capacity_bytes == 2000 * 2**20 and one.identity.direct_io is True
    assert one.exit is not None and one.exit.thermal[0].temp_c == 46.7
    assert one.exit.battery is not None and one.exit.battery.temp_c == 42.3
    assert two.entry is not None and two.exit is not None
    assert [c.scaling_max_khz for c in two.entry.cpufreq] == [1900800, 1651200]
    assert [c.scaling_max_khz for c in two.exit.cpufreq] == [1747200, 1651200]
    assert three.status == "failed" and three.metrics.tok_s is None
    assert not [n for r in (one, two, three) for n in r.notes]
    assert "driver.log" in imported.files


def test_a_block_called_otherwise_is_found_by_its_numbers(tmp_path: Path) -> None:
    summary = "tokens=3 s/tok=0.100 tok/s=10.000 read_MiB=1.5"
    text = run_file(3)
    write(tmp_path / "s" / "run-x.csv", text[: text.index("# summary")] + f"# summary {summary}\n")
    write(
        tmp_path / "s" / "driver.log",
        "=== [10:01] first (again) ===\nENTRY: freq=100\n"
        "generation: 3 tokens, 0.100 s/token (10.000 tok/s)\n"
        "moe-stream: read 1.5 MiB (0.5 MiB/token), decode 0.100 s/token\n",
    )
    (cell,) = session(tmp_path / "s").cells
    assert cell.record.cell == "run-x" and cell.record.entry is not None
    assert "found by its numbers" in cell.record.notes[0]


def test_a_block_may_say_more_than_its_cells_name(tmp_path: Path) -> None:
    for i, name in enumerate(("a1", "a2")):
        write(tmp_path / "s" / f"qw-{name}.csv", run_file(3, 100 + i))
    write(
        tmp_path / "s" / "driver.log",
        "=== cell 1: qw-a2 (cold) ===\nENTRY: freq=200\n=== cell 2: qw-a1 ===\nENTRY: freq=100\n",
    )
    second, first = (c.record for c in session(tmp_path / "s").cells)
    assert (second.cell, first.cell) == ("qw-a2", "qw-a1")
    assert second.entry is not None and second.entry.cpufreq[0].scaling_max_khz == 200


def test_an_answer_that_quotes_a_summary_is_not_one(tmp_path: Path) -> None:
    write(
        tmp_path / "s" / "a.out",
        "generation: 9 tokens, 1.000 s/token (1.000 tok/s)\nis what it prints.\n=== perf ===\n"
        "generation: 3 tokens, 0.100 s/token (10.000 tok/s)\n",
    )
    assert records(session(tmp_path / "s"))["a"].metrics.tok_s == 10.0


# --- sessions, arms, designs ---------------------------------------------------------------------


def test_several_sessions_are_several_campaigns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("2026-01-01", "2026-01-02-more"):
        write(tmp_path / "all" / name / "a.csv", run_file(3))
    code = cli.main(["bmoe", str(tmp_path / "all"), "--runs-dir", str(tmp_path / "r"), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == 0 and found["campaign_dir"] is None and len(found["campaign_dirs"]) == 2
    assert "2026-01-02-more" in found["campaign_dirs"][1]
    assert "same bytes as a run of 2026-01-01" in " ".join(found["campaigns"][1]["notes"])
    # what was imported is not a session to import
    again = cli.main(["bmoe", str(tmp_path), "--runs-dir", str(tmp_path / "r"), "--json"])
    assert again == 0
    assert len(json.loads(capsys.readouterr().out)["campaign_dirs"]) == 2


def test_dated_directories_are_sessions_wherever_they_lie(tmp_path: Path) -> None:
    for i, place in enumerate((".", "part", "old/2026-01-01", "2026-01-02", "2026-01-02/logs")):
        write(tmp_path / "s" / place / f"r{i}.csv", run_file(3, 100 + i))
    found = {i.name: sorted(records(i)) for i in sessions(tmp_path / "s")}
    assert found == {"s": ["r0", "r1"], "2026-01-01": ["r2"], "2026-01-02": ["r3", "r4"]}


@pytest.mark.parametrize("layout", [("csv", "logs", "metrics"), ("", "logs", ""), ("x", "y", "z")])
def test_files_of_one_session_may_lie_apart_by_kind(
    tmp_path: Path, layout: tuple[str, str, str]
) -> None:
    runs, logs, metrics = layout
    write(tmp_path / "s" / runs / "a.csv", run_file(3))
    write(tmp_path / "s" / runs / "b.csv", run_file(4))
    for name, n in (("a", 3), ("b", 4)):
        text = f"generation: {n} tokens, 0.100 s/token (10.000 tok/s)\n"
        write(tmp_path / "s" / logs / f"{name}.log", text)
        write(tmp_path / "s" / metrics / f"{name}.metrics", f"batt_temp_before_dC={400 + n}\n")
    found = records(session(tmp_path / "s"))
    assert list(found) == ["a", "b"]
    assert [r.entry and r.entry.battery and r.entry.battery.temp_c for r in found.values()] == [
        40.3,
        40.4,
    ]


def test_the_order_is_that_of_times_in_names_never_of_files(tmp_path: Path) -> None:
    for name in ("z-20260721-090406", "a-20260721-101543", "m-20260720-212009"):
        write(tmp_path / "s" / f"{name}.csv", run_file(3, 100 + len(list(tmp_path.rglob("*")))))
    imported = session(tmp_path / "s")
    assert [c.record.cell[0] for c in imported.cells] == ["m", "z", "a"]
    assert not any(c.record.notes for c in imported.cells)


PREAMBLE = "# bmoe_metrics v1\n# model=m.gguf n_expert_used=8 threads=4 n_ctx=2048\n# moe_stream=1 "


def settings(**more: str) -> str:
    said = {"cache_mb": "2000", "cache_auto": "0", "dense_weights": "anon", "o_direct": "1"} | more
    return PREAMBLE + " ".join(f"{k}={v}" for k, v in said.items()) + "\n"


def test_cells_of_equal_settings_and_prompt_are_of_one_arm(tmp_path: Path) -> None:
    s = tmp_path / "s"
    for i, cache in enumerate(("2000", "3000", "3000", "2000")):
        name = f"base_{i}" if cache == "2000" else f"big_{i}"
        time = f"20260101-10000{i}"
        write(s / f"{name}-{time}.csv", run_file(3, 100 + i, settings(cache_mb=cache)))
    other = run_file(3, 110, settings()).replace("n_prompt=34", "n_prompt=99")
    write(s / "other-20260101-110000.csv", other)
    imported = session(s)
    arms = [c.record.arm for c in imported.cells]
    assert arms[0] == arms[3] != arms[1] == arms[2] and arms[4] not in arms[:4]


def test_a_known_order_of_repeated_arms_is_compared(tmp_path: Path) -> None:
    s = tmp_path / "s"
    blocks = ""
    for i, (name, cache) in enumerate(
        (("lru_a", "1"), ("lfu_a", "2"), ("lfu_b", "2"), ("lru_b", "1"))
    ):
        write(s / f"q-{name}.csv", run_file(3, 100 + i, settings(cache_mb=f"{cache}000")))
        blocks += (
            f"=== {name} ===\ngeneration: 3 tokens, 0.1 s/token ({1e3 / (100 + i):.3f} tok/s)\n"
        )
    write(s / "driver.log", blocks)
    imported = session(s)
    assert imported.plan.design == "pairs" and imported.plan.baseline == "q-lru"
    assert [(c.arm, c.block, c.role) for c in imported.plan.cells] == [
        ("q-lru", 0, "baseline"),
        ("q-lfu", 0, "candidate"),
        ("q-lfu", 1, "candidate"),
        ("q-lru", 1, "baseline"),
    ]
    named = session(s, baseline="q-lfu_b")
    assert named.plan.baseline == "q-lfu" and named.plan.design == "pairs"
    assert session(s, design="survey").plan.baseline is None


def test_repeats_without_settings_need_equal_work(tmp_path: Path) -> None:
    s = tmp_path / "s"
    write(s / "x_a.csv", run_file(3))
    write(s / "x_b.csv", run_file(3, 101))
    write(s / "x_c.csv", run_file(3, 102).replace(",1000,", ",2000,"))
    write(s / "x_l2.csv", run_file(3, 103))
    arms = {c.record.cell: c.record.arm for c in session(s).cells}
    assert arms == {"x_a": "x", "x_b": "x", "x_c": "x_c", "x_l2": "x_l2"}


def test_a_baseline_is_compared_with_what_lies_next_to_it(tmp_path: Path) -> None:
    for i, name in enumerate(("base", "one", "two")):
        write(tmp_path / "s" / f"{name}-20260101-10000{i}.csv", run_file(3, 100 + i))
    plan = session(tmp_path / "s", baseline="base-20260101-100000").plan
    assert plan.design == "four_cell" and plan.baseline == "base-20260101-100000"
    assert len(plan.candidates) == 2
    with pytest.raises(UsageError, match=r"no cell is called --baseline 'bas'; cells: base-2026"):
        sessions(tmp_path / "s", baseline="bas")


# --- what is refused, what is passed over --------------------------------------------------------


@pytest.mark.parametrize("fill", [lambda p: None, lambda p: write(p / "notes.txt", "hello\n")])
def test_a_directory_without_a_cell_is_one_line_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fill: Callable[[Path], object]
) -> None:
    (tmp_path / "s").mkdir()
    fill(tmp_path / "s")
    assert cli.main(["bmoe", str(tmp_path / "s"), "--runs-dir", str(tmp_path / "r")]) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1 and "no cell in it" in shown
    assert not (tmp_path / "r").exists()
    assert cli.main(["bmoe", str(tmp_path / "none"), "--runs-dir", str(tmp_path / "r")]) == 2
    assert "there is no such directory" in capsys.readouterr().err


def test_what_is_no_cell_is_passed_over_with_its_reason(tmp_path: Path) -> None:
    s = tmp_path / "s"
    write(s / "a.csv", run_file(3))
    write(s / "copy.csv", run_file(3))
    write(s / "truth.csv", run_file(3))
    write(s / "README.md", "generation: 3 tokens, 0.1 s/token (10.0 tok/s)\n")
    write(s / "a.route.csv", "# route_trace v1\nturn,phase\n")
    write(s / "lost.metrics", "peak_rss_kb=1\n")
    (s / "image.png").write_bytes(b"\x89PNG\0\0")
    write(s / "empty.log", "")
    imported = session(s)
    assert [c.record.cell for c in imported.cells] == ["a"]
    reasons = {p.file: p.reason for p in imported.passed_over}
    assert "same bytes as a.csv" in reasons["copy.csv"]
    assert "ground truth" in reasons["truth.csv"] and "document" in reasons["README.md"]
    assert reasons["a.route.csv"] == "a trace, not a cell"
    assert records(imported)["a"].notes[0].startswith("traced while it ran (a.route.csv)")
    assert "no run of this name" in reasons["lost.metrics"]
    assert reasons["image.png"] == "not text" and reasons["empty.log"] == "empty"


# --- all of it -----------------------------------------------------------------------------------

archive = pytest.mark.skipif(not ARCHIVE.is_dir(), reason=f"needs the archive in {ARCHIVE}")


@archive
def test_tok_s_is_rows_over_wall_time_in_every_file_of_the_archive() -> None:
    files = [*ARCHIVE.glob("campaigns/*/*.csv"), *ARCHIVE.glob("routes/*.metrics")]
    checked = 0
    for path in files:
        content = path.read_bytes()
        if b"step," not in content[:4000]:
            continue
        found = read_token_file(content)
        assert found.problems == () and found.notes == (), path
        (turn,) = found.turns
        assert tok_s(found.rows) == pytest.approx(float(turn.summary["tok/s"]), abs=5.1e-4), path
        checked += 1
    assert checked == 60


@archive
def test_every_run_of_the_archive_is_a_cell_with_the_speed_its_manifest_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = cli.main(["bmoe", str(ARCHIVE / "campaigns"), "--runs-dir", str(tmp_path), "--json"])
    assert code == 0
    found = {}
    for directory in map(Path, json.loads(capsys.readouterr().out)["campaign_dirs"]):
        for r in load_records(directory):
            found[directory.name.split("Z-", 1)[1].rsplit("-", 1)[0], r.cell] = r
            series = read_series(directory / "cells" / f"{r.index:02d}-{r.cell}")
            assert r.status == "ok" and series is not None and len(series) == r.counters.tokens
    with (ARCHIVE / "MANIFEST.csv").open(newline="") as stream:
        rows = [r for r in csv.DictReader(stream) if r["kind"] == "per_token_csv"]
    assert len(found) == len(rows) == 58
    for row in rows:
        r = found[row["session"], row["cell"]]
        assert r.metrics.tok_s == pytest.approx(float(row["csv_mean_tok_s"]), abs=6e-4)
        assert r.counters.tokens == int(row["csv_rows"])
