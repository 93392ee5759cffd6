"""Cells that score a text instead of decoding: configured, planned, asked for, read, shown."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cell_parts import PLAIN, make_arm, with_engine
from record_parts import plain

from harness.analysis import tables
from harness.configure import check, compose
from harness.engines.native import Outcome, read_telemetry, understand
from harness.engines.native_argv import engine_argv, plan_memory_argv
from harness.errors import UsageError
from harness.events import CellFinished
from harness.plan import make_plan
from harness.planned import Arm, GivenText, PlannedCell
from harness.records import Metrics, Perplexity
from harness.report.tables import settings_of
from harness.report.terminal import Terminal
from harness.tracking_cells import cell_points

TEXT = GivenText("/t.txt", "e" * 64)
SCORED = Perplexity(30.84, 3.43, 72_136, 284, 512, 0.31)
SURVEY = ("+experiment=predictor_accuracy", "cell.engine.predict_log=false",
          "cells.probed.engine.predict_log=false", "cell.text=null")  # fmt: skip


def scoring_arm(**engine: Any) -> Arm:
    return replace(with_engine(make_arm(), **engine), perplexity=TEXT)


def configured(*overrides: str) -> Any:
    return check(compose([*SURVEY, "cell.perplexity=heldout", *overrides]))


# --- configuration and plan ---


def test_a_cell_scores_the_text_that_it_names() -> None:
    # n_predict does not act, so it need not fit
    config = configured("cell.n_predict=9999", "cell.perplexity_chunks=3")
    plan = make_plan(config, None, 2, {"heldout": TEXT})
    (arm,) = plan.arms.values()
    assert (arm.perplexity, arm.perplexity_chunks, arm.text) == (TEXT, 3, None)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["cell.perplexity=''"], ["cells.probed.perplexity", "empty", "heldout"]),
        (["cell.text=heldout"], ["perplexity", "text='heldout'", "exclude", "null"]),
        (["cell.perplexity=null", "cell.perplexity_chunks=2"], ["perplexity_chunks: 2", "null"]),
        (["cell.perplexity_chunks=0"], ["perplexity_chunks: 0", "1 or more"]),
        (["cell.n_ctx=2"], ["cells.probed.n_ctx: 2", "3 or more"]),
        (["cell.engine.prefetch=1"], ["engine.prefetch: 1", "scored", "set it to null"]),
        (["cell.engine.predict_prefetch=true"], ["predict_prefetch: true", "set it to false"]),
        (["cells.probed.engine.predict_log=true"], ["predict_log: true", "scored"]),
        (["cell.engine.drop_cold_experts=0.5"], ["drop_cold_experts: 0.5", "drop_in_prefill"]),
    ],
)
def test_what_cannot_act_on_a_scored_text_is_refused(
    overrides: list[str], words: list[str]
) -> None:
    with pytest.raises(UsageError) as e:
        configured(*overrides)
    line = str(e.value)
    assert "\n" not in line
    for word in words:
        assert word in line, line


def test_what_reads_nothing_ahead_may_stay() -> None:
    assert configured("cell.engine.prefetch=0").cells["probed"].engine.prefetch == 0


def test_a_scored_text_has_no_speed_to_compare() -> None:
    with pytest.raises(UsageError, match=r"speeds are compared.*design=survey"):
        check(compose(["+experiment=matched_pair", "cell.text=null", "cell.perplexity=heldout"]))


# --- the engine ---


def test_the_engine_is_given_the_text_and_nothing_of_decoding() -> None:
    arm = scoring_arm(cache_mb=8, expert_used=2, route_trace=True)
    argv = engine_argv(Path("/e"), Path("/m.gguf"), Path("/o/prompt.txt"), arm, Path("/o"))
    assert " ".join(argv) == (
        "/e -m /m.gguf --ppl-file /t.txt -c 64 -b 16 -t 1 --temp 0 --seed 0 --moe-stream "
        "--cache-mb 8 --io-threads 2 --expert-used 2 --route-trace /o/route_trace.csv "
        "--telemetry /o/telemetry.jsonl"
    )
    arm = replace(arm, perplexity_chunks=4)
    argv = engine_argv(Path("/e"), Path("/m.gguf"), Path("/o/prompt.txt"), arm, Path("/o"))
    assert " --ppl-chunks 4 " in " ".join(argv)
    plan = plan_memory_argv(Path("/e"), Path("/m.gguf"), Path("/o/prompt.txt"), arm)
    assert " --ppl-file /t.txt " in " ".join(plan)
    assert not {"-f", "-n", "--ppl-chunks"} & set(plan)


def telemetry(**changes: Any) -> bytes:
    """A plain run that scored a text, as docs/engine.md says."""
    config = {"n_predict": None, "n_ctx": 64, "n_batch": 16, "threads": 1, "ppl_file": "/t.txt",
              "given_text": None}  # fmt: skip
    start = {"type": "start", "mode": "plain", "config": config | changes.pop("config", {})}
    summary = {
        "type": "summary",
        "tokens": 0,
        "tok_s": None,
        "prefill_tok_s": 900.0,
        "ids_sha256": None,
        "perplexity": {
            "value": 30.84, "nll": 3.43, "tokens": 72_136, "chunks": 284, "n_ctx": 512,
            "stderr": 0.31,
        },
    }  # fmt: skip
    return b"\n".join(json.dumps(e).encode() for e in (start, summary | changes)) + b"\n"


def understood(content: bytes, arm: Arm | None = None) -> Outcome:
    own = replace(make_arm(), engine=PLAIN, perplexity=TEXT)
    return understand(arm or own, read_telemetry(content), [])


def test_perplexity_is_read_and_no_speed_is_missed() -> None:
    outcome = understood(telemetry())
    assert outcome.problems == ()
    assert outcome.perplexity == SCORED
    assert (outcome.metrics.tok_s, outcome.metrics.prefill_tok_s) == (None, 900.0)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (telemetry(perplexity=None), "asked for the perplexity of a text"),
        (telemetry(perplexity={"value": 3.0}), "perplexity.nll: missing"),
        (telemetry(config={"ppl_file": "/other"}), "asked for perplexity of /t.txt"),
        (telemetry(config={"n_ctx": 128}), "asked for n_ctx 64"),
        (telemetry().split(b"\n")[0], "no summary"),
    ],
)
def test_another_run_than_the_one_asked_for_is_a_problem(content: bytes, words: str) -> None:
    assert any(words in problem for problem in understood(content).problems)


def test_a_cell_that_should_decode_and_scored_instead_is_a_problem() -> None:
    problems = understood(telemetry(), replace(make_arm(), engine=PLAIN)).problems
    assert any("perplexity of nothing" in problem for problem in problems)


# --- shown and stored ---


def test_the_result_of_a_scoring_cell_is_its_perplexity() -> None:
    record = replace(plain("--ppl-file", "t"), perplexity=SCORED)
    data = tables.results([record])
    named = dict(zip([c.key for c in data.columns], data.rows[0], strict=True))
    assert (named["perplexity"], named["tok_s"]) == (30.84, None)
    points = {p.key: p.value for p in cell_points(record, [], 0)}
    assert points["perplexity"] == 30.84
    assert points["work/perplexity_stderr"] == 0.31
    assert points["work/scored_tokens"] == 72_136
    assert points["work/perplexity_nll"] == 3.43
    assert not {"given_perplexity", "work/nll"} & (points.keys() | named.keys())


def test_what_a_given_text_cost_is_not_called_perplexity() -> None:
    record = replace(plain("--given-text", "t"), metrics=Metrics(nll=3.0))
    both = tables.results([record, replace(plain("--ppl-file", "t"), perplexity=SCORED)])
    titles = {c.key: c.title for c in both.columns}
    assert titles["given_perplexity"] == "given ppl"
    first, second = (dict(zip(titles, row, strict=True)) for row in both.rows)
    assert (first["given_perplexity"], first["perplexity"]) == (math.exp(3.0), None)
    assert (second["given_perplexity"], second["perplexity"]) == (None, 30.84)
    points = {p.key: p.value for p in cell_points(record, [], 0)}
    assert points["given_perplexity"] == math.exp(3.0)
    assert "perplexity" not in points


def test_a_finished_scoring_cell_is_told_in_one_line() -> None:
    record = replace(plain("--ppl-file", "t"), perplexity=SCORED)
    out = io.StringIO()
    Terminal(out).event(CellFinished(PlannedCell(0, "ppl_4", "ppl_4", "candidate", 0), 1, record))
    assert out.getvalue() == ("cell 1 of 1 ppl_4: perplexity 30.8400 +- 0.3100 of 72136 tokens\n")


def test_the_plan_says_what_is_scored() -> None:
    settings = settings_of(scoring_arm())
    assert (settings["text"], settings["tokens"]) == ("scored t.txt", "-")
    assert settings_of(replace(make_arm(), text=TEXT))["text"] == "t.txt"
    assert settings_of(make_arm())["text"] == "-"
