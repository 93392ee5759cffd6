"""moe-engine's command line is spelt out; its output is read whatever state it is in."""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cell_parts import FAKE_ENGINE, PLAIN, make_arm, with_engine
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from harness.engines.native import (
    Done,
    Outcome,
    complaint,
    how_far,
    read_telemetry,
    read_tokens,
    understand,
)
from harness.engines.native_argv import engine_argv, plan_memory_argv
from harness.errors import UsageError
from harness.planned import Arm, GivenText
from harness.records import (
    Counters,
    ForcedRoutes,
    LayerScores,
    Metrics,
    PredictorDisarmed,
    PredictorScore,
)

TEXT = GivenText("/t.txt", "e" * 64)


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
        "--no-odirect --cache-mb 0 --io-threads 2 --dense-weights anon --expert-used 2 --no-eog "
        "--csv /o/tokens.csv --telemetry /o/telemetry.jsonl"
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"overlap": True}, "--overlap"),
        ({"cache_mb": "auto", "cache_floor_mb": 9}, "--cache-mb auto --cache-floor-mb 9"),
        ({"cache_mb": "auto", "cache_ceil_mb": 9}, "--cache-mb auto --cache-ceil-mb 9"),
        ({"force_cache": True}, "--force-cache"),
        ({"cache_mb": 0, "load_all": True}, "--load-all"),
        ({"cache_mb": None, "ram_budget_mb": 512}, "--ram-budget-mb 512"),
        (
            {"cache_mb": None, "ram_budget_mb": 512, "reserve_mb": 64},
            "--ram-budget-mb 512 --reserve-mb 64",
        ),
        ({"evict": "ls_pos"}, "--evict ls_pos"),
        ({"dense_weights": "warm"}, "--dense-weights warm"),
        ({"prefetch": 2}, "--prefetch 2"),
        ({"predict_prefetch": True, "predict_spec_max": 0}, "--predict-spec-max 0"),
        ({"predict_prefetch": True, "predict_horizon": 1}, "--predict-horizon 1"),
        ({"drop_cold_experts": 0.75}, "--drop-cold-experts 0.75"),
        ({"drop_cold_experts": 1.0, "drop_renorm": False}, "--drop-no-renorm"),
        ({"drop_cold_experts": 1.0, "drop_in_prefill": True}, "--drop-in-prefill"),
        ({"forced_routes": "/r.csv"}, "--forced-routes /r.csv"),
    ],
)
def test_every_mechanism_has_its_flag_in_the_run_and_in_its_memory_plan(
    settings: dict[str, Any], words: str
) -> None:
    arm = with_engine(make_arm(), **settings)
    plan = plan_memory_argv(Path("/e"), Path("/m.gguf"), Path("/o/prompt.txt"), arm)
    for argv in (argv_of(arm), plan):
        assert f" {words} " in " ".join(argv) + " "
    assert f" {words} " not in " ".join(argv_of(make_arm())) + " "


def test_traces_and_scores_are_of_a_run_and_not_of_its_memory_plan() -> None:
    settings = {"route_trace": True, "io_trace": True, "compute_trace": "layer", "stats": True}
    arm = with_engine(make_arm(), predict_log=True, **settings)
    argv = argv_of(arm)
    assert (
        "--predict-log --route-trace /o/route_trace.csv --io-trace /o/io_trace.csv "
        "--compute-trace /o/compute_trace.csv --compute-trace-by layer --stats /o/stats.jsonl --csv"
    ) in " ".join(argv)
    plan = plan_memory_argv(Path("/e"), Path("/m.gguf"), Path("/o/prompt.txt"), arm)
    assert plan[:-1] == argv[: len(plan) - 1]


def test_a_text_is_given_to_a_run_and_not_to_its_memory_plan() -> None:
    arm = replace(make_arm(), text=TEXT)
    assert " --given-text /t.txt " in " ".join(argv_of(arm))
    assert "--given-text" not in argv_of(make_arm())
    plan = plan_memory_argv(Path("/e"), Path("/m.gguf"), Path("/o/prompt.txt"), arm)
    assert "--given-text" not in plan


def test_a_recorded_trace_is_named_so_that_the_cells_directory_does_not_matter() -> None:
    argv = argv_of(with_engine(make_arm(), forced_routes="routes/a.csv"))
    assert argv[argv.index("--forced-routes") + 1] == str(Path.cwd() / "routes/a.csv")


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
        *(4, 5 * 4096, 30, 10, 5, 40),
        evict_stale_left=0,
        evict_stale_right=5,
        evict_current_left=0,
        evict_current_right=0,
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


# --- mechanisms that are armed, and those that are not ---


def test_what_was_not_armed_is_none_and_never_zero(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path, make_arm())
    c, m = outcome.counters, outcome.metrics
    assert {c.spec_read_bytes, c.spec_experts, c.spec_useful, c.retained} == {None}
    assert {c.routed, c.dropped} == {None}
    assert {m.spec_bytes_per_token, m.spec_useful_share, m.dropped_share} == {None}
    assert {m.nll, m.agreement, m.given_perplexity} == {None}
    assert {outcome.prediction, outcome.predictor_disarmed, outcome.forced_routes} == {None}


def test_an_older_engine_without_the_columns_is_read_as_not_armed() -> None:
    start = {"type": "start", "mode": "stream", "config": {}}
    counters = {"read_bytes": 8, "requests": 4, "hits": 3, "misses": 1, "evictions": 0}
    summary = {"type": "summary", "tokens": 1, "total": counters}
    telemetry = b"".join(json.dumps(line).encode() + b"\n" for line in (start, summary))
    rows = read_tokens(b"token,wall_ms,read_bytes,requests,hits\n0,2.5,8,4,3\n")
    outcome = understand(make_arm(), read_telemetry(telemetry), rows)
    assert outcome.counters == Counters(1, 8, 3, 1, 0, 4)
    assert outcome.metrics.hit_rate == 0.75
    assert outcome.metrics.spec_bytes_per_token is None


def test_speculation_and_dropping_are_counted(tmp_path: Path) -> None:
    arm = with_engine(make_arm(n_predict=4), predict_prefetch=True, drop_cold_experts=0.75)
    outcome = outcome_of(tmp_path, arm)
    assert outcome.problems == ()
    c, m = outcome.counters, outcome.metrics
    assert (c.spec_read_bytes, c.spec_experts, c.spec_useful) == (5 * 1024, 20, 15)
    assert (c.retained, c.routed, c.dropped) == (10, 40, 5)
    assert (m.spec_bytes_per_token, m.spec_useful_share, m.dropped_share) == (1024, 0.75, 0.125)


def test_speculation_that_read_nothing_has_no_useful_share(tmp_path: Path) -> None:
    arm = with_engine(make_arm(), predict_prefetch=True, predict_spec_max=0)
    telemetry, tokens = run_fake(tmp_path, arm)
    rows = [
        {**row, "spec_read_bytes": 0, "spec_experts": 0, "spec_useful": 0}
        for row in read_tokens(tokens)
    ]
    metrics = understand(arm, read_telemetry(telemetry), rows).metrics
    assert metrics.spec_bytes_per_token == 0
    assert metrics.spec_useful_share is None


def test_a_predictors_scores_are_taken_over_whole(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path, with_engine(make_arm(), predict_log=True))
    assert outcome.problems == ()
    assert outcome.prediction is not None
    assert outcome.prediction.predictors["stale_gate"] == PredictorScore(10, 3, 40, 30)
    assert outcome.prediction.unscored_routings == 3
    assert outcome.prediction.layers[0] == LayerScores(1, 5, 0.75, None, 0.3, 1.0)


def test_a_disarmed_predictor_and_a_mapped_trace_are_told(tmp_path: Path) -> None:
    disarmed = {"predictor_disarmed": {"after_slots": 2048, "control": 0.5}}
    arm = with_engine(make_arm(summary=disarmed), predict_prefetch=True)
    outcome = outcome_of(tmp_path, arm)
    assert outcome.predictor_disarmed == PredictorDisarmed(2048, 0.5)
    outcome = outcome_of(tmp_path, with_engine(make_arm(), forced_routes="/r.csv"))
    assert outcome.forced_routes == ForcedRoutes("/r.csv", 48, 128, 8, exact=False)
    assert outcome.problems == ()


def test_a_given_text_is_scored(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path, replace(make_arm(n_predict=8), text=TEXT))
    assert outcome.problems == ()
    assert (outcome.metrics.nll, outcome.metrics.agreement) == (3.5, 0.25)
    assert outcome.metrics.given_perplexity == pytest.approx(math.exp(3.5))


def test_a_text_that_was_not_scored_or_not_given_makes_the_cell_fail(tmp_path: Path) -> None:
    silent = replace(make_arm(summary={"given": None}), text=TEXT)
    assert outcome_of(tmp_path, silent).problems == (
        "asked for a given text, the engine did not say how likely it is",
    )
    greedy = outcome_of(tmp_path, make_arm(), as_if=replace(make_arm(), text=TEXT))
    assert greedy.problems[0] == "asked for text /t.txt, the engine ran with greedy"
    other = outcome_of(tmp_path, replace(make_arm(), text=TEXT), as_if=make_arm())
    assert other.problems == ("asked for text greedy, the engine ran with /t.txt",)


def test_a_likelihood_beyond_all_numbers_has_no_perplexity() -> None:
    assert Metrics(nll=0.0).given_perplexity == 1.0
    assert Metrics(nll=1e6).given_perplexity is None


def test_scores_that_were_asked_for_and_are_not_there_make_the_cell_fail(tmp_path: Path) -> None:
    arm = with_engine(make_arm(summary={"prediction": None}), predict_log=True)
    assert outcome_of(tmp_path, arm).problems == (
        "asked for predict_log, the engine scored no predictor",
    )
    arm = with_engine(make_arm(summary={"prediction": {"predictors": 3}}), predict_log=True)
    outcome = outcome_of(tmp_path, arm)
    assert outcome.prediction is None
    assert "prediction.predictors" in outcome.problems[0]


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
        ({"overlap": True}, "asked for overlap True, the engine ran with False"),
        ({"cache_mb": "auto"}, "asked for cache_auto True, the engine ran with False"),
        ({"prefetch": 1}, "asked for prefetch 1, the engine ran with nothing"),
        ({"predict_prefetch": True}, "asked for predict_prefetch True, the engine ran with False"),
        (
            {"drop_cold_experts": 0.5},
            "asked for drop_cold_experts 0.5, the engine ran with nothing",
        ),
    ],
)
def test_an_engine_that_ran_otherwise_than_asked_is_found_out(
    tmp_path: Path, settings: dict[str, Any], words: str
) -> None:
    arm = make_arm()
    outcome = outcome_of(tmp_path, arm, as_if=with_engine(arm, **settings))
    assert outcome.problems == (words,)


def test_a_mechanism_that_nobody_asked_for_is_found_out(tmp_path: Path) -> None:
    ran = with_engine(make_arm(), overlap=True, predict_prefetch=True)
    outcome = outcome_of(tmp_path, ran, as_if=make_arm())
    assert outcome.problems == (
        "asked for overlap False, the engine ran with True",
        "asked for predict_prefetch False, the engine ran with True",
    )


@pytest.mark.parametrize(("said", "fine"), [(0.1, True), (0.10000000149011612, True), (0.2, False)])
def test_a_fraction_may_come_back_as_a_float_of_32_bits(
    tmp_path: Path, said: float, fine: bool
) -> None:
    arm = make_arm(start={"config": {"drop_cold_experts": said}})
    outcome = outcome_of(tmp_path, with_engine(arm, drop_cold_experts=0.1))
    assert (outcome.problems == ()) is fine


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
    how_far(telemetry)
    complaint(telemetry)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
KEYS = st.sampled_from(
    [
        *("config", "arena", "direct_io", "mode", "forced_routes", "given"),
        *("tokens", "total", "tok_s", "load_s", "ids_sha256", "prediction", "predictor_disarmed"),
    ]
)


@example({}, {"tok_s": float("inf"), "load_s": 10**400, "tokens": True})
@settings(suppress_health_check=[HealthCheck.too_slow])  # a busy machine
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
    assert how_far(tokens[-1100:]).tokens == 4
    assert how_far(tokens[-1100:-20]).tokens == 3
    assert how_far(b"") == Done()


def test_the_complaint_is_the_engines_own_last_word() -> None:
    stderr = b"loading\nmoe-engine: error: needs 9 bytes, allowed 8\nbye\xff\n"
    assert complaint(stderr) == "needs 9 bytes, allowed 8"
    assert complaint(b"all is well\n") is None
