"""moe-engine's command line is spelt out; its output is read whatever state it is in."""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cell_parts import FAKE_ENGINE, PLAIN, make_arm, with_engine
from hypothesis import example, given
from hypothesis import strategies as st

from harness.engines.native import (
    Outcome,
    complaint,
    engine_argv,
    plan_memory_argv,
    read_telemetry,
    read_tokens,
    tokens_done,
    understand,
)
from harness.errors import UsageError
from harness.records import Arm, Counters, Metrics


def argv_of(arm: Arm) -> list[str]:
    return engine_argv(Path("/e"), Path("/m.gguf"), Path("/o/prompt.txt"), arm, Path("/o"))


def run_fake(tmp_path: Path, arm: Arm) -> tuple[bytes, bytes]:
    """Telemetry and tokens.csv of the fake engine run as `arm` asks."""
    prompt = tmp_path / "prompt.txt"
    prompt.write_text(arm.prompt)
    argv = engine_argv(FAKE_ENGINE, Path("/m.gguf"), prompt, arm, tmp_path)
    subprocess.run([sys.executable, *argv], check=False, stdout=subprocess.DEVNULL)
    return (tmp_path / "telemetry.jsonl").read_bytes(), (tmp_path / "tokens.csv").read_bytes()


def outcome_of(tmp_path: Path, arm: Arm, as_if: Arm | None = None) -> Outcome:
    telemetry, tokens = run_fake(tmp_path, arm)
    return understand(as_if or arm, read_telemetry(telemetry), read_tokens(tokens))


# --- command line ---


def test_every_setting_that_is_not_none_is_spelt_out() -> None:
    arm = with_engine(make_arm(), cache_mb=0, dense_weights="anon", expert_used=2, direct_io=False)
    assert " ".join(argv_of(arm)) == (
        "/e -m /m.gguf -f /o/prompt.txt -n 4 -c 64 -b 16 -t 1 --temp 0 --seed 0 --moe-stream "
        "--cache-mb 0 --io-threads 2 --dense-weights anon --expert-used 2 --no-odirect --no-eog "
        "--csv /o/tokens.csv --telemetry /o/telemetry.jsonl"
    )


def test_the_memory_plan_is_asked_for_the_same_cell_without_its_outputs() -> None:
    argv = plan_memory_argv(Path("/e"), Path("/m.gguf"), Path("/o/prompt.txt"), make_arm())
    assert argv[-1] == "--plan-memory"
    assert [*argv[:-1], *argv_of(make_arm())[len(argv) - 1 :]] == argv_of(make_arm())
    assert not {"--csv", "--telemetry", "--no-eog"} & set(argv)


def test_plain_mode_passes_no_flag_of_the_streaming_mode() -> None:
    arm = Arm("plain", PLAIN, "text", 4)
    assert not {"--moe-stream", "--cache-mb", "--io-threads", "--no-odirect"} & set(argv_of(arm))
    assert "--repack" in argv_of(with_engine(arm, repack=True))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cache_mb": 0}, "cache_mb"),
        ({"direct_io": True}, "direct_io"),
        ({"io_threads": 4}, "io_threads"),
        ({"dense_weights": "anon"}, "dense_weights"),
    ],
)
def test_streaming_settings_without_streaming_are_refused(
    settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=f"arm plain: {words}"):
        argv_of(with_engine(Arm("plain", PLAIN, "text", 4), **settings))


def test_repacking_while_streaming_is_refused() -> None:
    with pytest.raises(UsageError, match="repack"):
        argv_of(with_engine(make_arm(), repack=True))


# --- a run that went well ---


def test_counters_are_totals_and_metrics_are_of_decoding(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path, make_arm(n_predict=4))
    assert outcome.problems == ()
    assert outcome.counters == Counters(
        tokens=4, read_bytes=5 * 4096, hits=30, misses=10, evictions=5, requests=40, dropped=None
    )
    walls = [2.0, 3.0, 4.0, 2.0]
    assert outcome.metrics == Metrics(
        tok_s=pytest.approx(4 / sum(walls) * 1e3),
        wall_ms_median=2.5,
        hit_rate=0.75,
        hit_rate_total=0.75,
        bytes_per_token=4096,
        prefill_tok_s=50.0,
        load_s=0.01,
        majflt_per_token=1,
        stall_ms_per_token=0.25,
        invol_ctx_per_token=0,
    )
    assert outcome.output_sha256 == hashlib.sha256(b"0\n1\n2\n3\n").hexdigest()
    assert outcome.identity.mode == "stream"
    assert outcome.identity.direct_io is True
    assert outcome.identity.arena_bytes == 8 << 20
    assert outcome.identity.threads == 1


def test_what_plain_mode_does_not_measure_is_none(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path, Arm("plain", PLAIN, "{}", 4))
    assert outcome.problems == ()
    assert outcome.counters == Counters(tokens=4)
    assert outcome.metrics.tok_s is not None
    assert outcome.metrics.majflt_per_token == 1
    for name in ("hit_rate", "hit_rate_total", "bytes_per_token", "stall_ms_per_token"):
        assert getattr(outcome.metrics, name) is None
    assert outcome.identity.direct_io is None
    assert outcome.identity.arena_bytes is None


def test_the_models_own_top_k_is_the_same_arm_as_asking_for_it(tmp_path: Path) -> None:
    own = outcome_of(tmp_path, make_arm()).identity
    asked = outcome_of(tmp_path, with_engine(make_arm(), expert_used=4)).identity
    assert own == asked
    assert own.expert_used == 4
    assert outcome_of(tmp_path, with_engine(make_arm(), expert_used=2)).identity.expert_used == 2


def test_direct_io_that_did_not_take_effect_is_identity_and_no_failure(tmp_path: Path) -> None:
    arm = make_arm(start={"direct_io": {"effective": False, "reason": "EINVAL"}})
    outcome = outcome_of(tmp_path, arm)
    assert outcome.problems == ()
    assert outcome.identity.direct_io is False


# --- a run that is not the one asked for ---


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"threads": 2}, "asked for threads 2, the engine ran with 1"),
        ({"cache_mb": 16}, "asked for cache_mb 16, the engine ran with 8"),
        ({"dense_weights": "anon"}, "asked for dense_weights anon, the engine ran with mmap"),
        ({"expert_used": 2}, "asked for expert_used 2, the engine ran with nothing"),
        ({"io_threads": 1}, "asked for io_threads 1, the engine ran with 2"),
        ({"direct_io": False}, "asked for direct_io False, the engine ran with True"),
    ],
)
def test_an_engine_that_ran_otherwise_than_asked_is_found_out(
    tmp_path: Path, settings: dict[str, Any], words: str
) -> None:
    arm = make_arm()
    outcome = outcome_of(tmp_path, arm, as_if=with_engine(arm, **settings))
    assert outcome.problems == (words,)


def test_a_plain_run_never_passes_for_a_streaming_one(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path, make_arm(start={"mode": "plain"}))
    assert outcome.problems == ("asked for mode stream, the engine ran with plain",)
    silent = outcome_of(tmp_path, make_arm(start={"mode": None}))
    assert silent.problems == ("asked for mode stream, the engine ran with nothing",)


@pytest.mark.parametrize(("factor", "fine"), [(1.0009, True), (1.0011, False), (0.998, False)])
def test_two_rates_that_disagree_make_the_cell_fail(
    tmp_path: Path, factor: float, fine: bool
) -> None:
    rate = 4 / 11 * 1e3 * factor
    outcome = outcome_of(tmp_path, make_arm(summary={"tok_s": rate}))
    assert (outcome.problems == ()) is fine
    if not fine:
        assert "tok/s from tokens.csv is 363.636, from the engine's summary" in outcome.problems[0]


def test_rows_tokens_and_request_must_agree(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path, make_arm(summary={"tokens": 3}))
    assert outcome.problems == (
        "tokens.csv has 4 rows, the engine's summary 3 tokens",
        "asked for 4 tokens, the engine made 3",
    )


# --- a run that ended anywhere ---


def test_without_a_summary_the_run_did_not_end(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path, make_arm(die_after=2))
    assert "no summary" in outcome.problems[0]
    assert outcome.counters == Counters(tokens=2)
    assert outcome.output_sha256 is None
    assert outcome.metrics.load_s == 0.01


def test_without_anything_nothing_is_known() -> None:
    outcome = understand(make_arm(), read_telemetry(b""), read_tokens(b""))
    assert outcome.counters == Counters()
    assert outcome.metrics == Metrics()
    assert outcome.problems == ("the engine did not say how it was configured",)


@pytest.fixture(scope="module")
def good_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    return run_fake(tmp_path_factory.mktemp("run"), make_arm())


@given(data=st.data())
def test_any_prefix_of_both_files_is_readable(
    good_run: tuple[bytes, bytes], data: st.DataObject
) -> None:
    telemetry, tokens = (part[: data.draw(st.integers(0, len(part)))] for part in good_run)
    rows = read_tokens(tokens)
    outcome = understand(make_arm(), read_telemetry(telemetry), rows)
    assert len(rows) == max(0, tokens.count(b"\n") - 1)
    if telemetry.rstrip() != good_run[0].rstrip():
        assert outcome.problems
    for row in rows:
        assert row["hits"] == 6


@example(b"", b"a,b\n1\r2,3\n")
@example(b"", b"wall_ms\n1_0\nnan\ninf\n")
@given(st.binary(max_size=200), st.binary(max_size=200))
def test_no_bytes_whatever_make_the_reader_fail(telemetry: bytes, tokens: bytes) -> None:
    outcome = understand(make_arm(), read_telemetry(telemetry), read_tokens(tokens))
    assert outcome.problems
    tokens_done(telemetry)
    complaint(telemetry)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
KEYS = st.sampled_from(
    ["config", "arena", "direct_io", "mode", "tokens", "total", "tok_s", "load_s", "ids_sha256"]
)


@example({}, {"tok_s": float("inf"), "load_s": 10**400, "tokens": True})
@given(st.dictionaries(KEYS, JSON), st.dictionaries(KEYS, JSON))
def test_keys_of_the_wrong_type_are_not_measured(
    start: dict[str, Any], summary: dict[str, Any]
) -> None:
    content = b"".join(
        json.dumps({**data, "type": kind}).encode() + b"\n"
        for kind, data in (("start", start), ("summary", summary))
    )
    outcome = understand(make_arm(), read_telemetry(content), [])
    assert outcome.problems
    assert outcome.metrics.load_s is None or math.isfinite(outcome.metrics.load_s)
    assert outcome.counters.tokens is None or isinstance(outcome.counters.tokens, int)


def test_unknown_keys_lines_and_columns_are_passed_over(good_run: tuple[bytes, bytes]) -> None:
    telemetry = b'{"type": "news"}\n' + good_run[0].replace(b'{"type"', b'{"novel": [1], "type"')
    header, *rows = good_run[1].decode().splitlines()
    tokens = "\n".join([header + ",novel", *(row + ",x" for row in rows), ""]).encode()
    assert understand(make_arm(), read_telemetry(telemetry), read_tokens(tokens)).problems == ()


def test_an_empty_field_is_not_zero(good_run: tuple[bytes, bytes]) -> None:
    tokens = good_run[1].replace(b",6,", b",,", 1)  # one field of one row
    outcome = understand(make_arm(), read_telemetry(good_run[0]), read_tokens(tokens))
    assert outcome.metrics.hit_rate is None
    assert outcome.metrics.bytes_per_token == 4096


def test_progress_is_read_from_the_tail_alone(good_run: tuple[bytes, bytes]) -> None:
    telemetry = good_run[0]
    tokens = telemetry[: telemetry.index(b'{"type": "summary"')]
    assert tokens_done(tokens[-700:]) == 4
    assert tokens_done(tokens[-700:-20]) == 3
    assert tokens_done(b"") is None


def test_the_complaint_is_the_engines_own_last_word() -> None:
    stderr = b"loading\nmoe-engine: error: needs 9 bytes, allowed 8\nbye\xff\n"
    assert complaint(stderr) == "needs 9 bytes, allowed 8"
    assert complaint(b"all is well\n") is None
