"""What a campaign looks like in a terminal and in a log file."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pyte
import pytest
from cell_parts import PLAIN, make_arm, make_plan, with_engine

from harness.analysis.tables import Column, Data
from harness.analysis.verdict_labels import DRIFT_WORDS, OUTCOME_WORDS
from harness.events import CellFinished, CellProgress, CellStarted, Waiting
from harness.findings import EvictionRow, IdentityRow, TopKRow
from harness.planned import Arm, GivenText, PlannedCell
from harness.records import (
    CellRecord,
    Counters,
    ForcedRoutes,
    LayerScores,
    Metrics,
    Prediction,
    PredictorScore,
    TargetId,
)
from harness.report.terminal import Terminal
from harness.verdicts import CampaignVerdict, CandidateVerdict, Drift

CELL = PlannedCell(1, "cache_half", "cache_half", "candidate", 30.0)
RECORD = CellRecord(
    cell="cache_half",
    arm="cache_half",
    role="candidate",
    index=1,
    status="ok",
    exit_code=0,
    argv=(),
    target=TargetId("local", "here"),
    counters=Counters(tokens=128),
    metrics=Metrics(
        tok_s=12.345, hit_rate=0.5, bytes_per_token=3 * 2**20, anon_peak_bytes=64 * 2**20
    ),
)


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(*calls: tuple[str, object], stream: io.StringIO | None = None) -> str:
    out = stream or io.StringIO()
    view = Terminal(out)
    for name, argument in calls:
        getattr(view, name)(argument)
    view.close()
    return out.getvalue()


def plan_text(*arms: Arm, **seconds: float) -> str:
    out = io.StringIO()
    Terminal(out).plan(make_plan(*arms, wait_s=30.0), "tiny", seconds)
    return out.getvalue()


def test_the_plan_shows_what_differs_in_rows_and_the_rest_once() -> None:
    base = make_arm("baseline")
    text = plan_text(base, with_engine(make_arm("small"), cache_mb=4))
    header, *rows = text.splitlines()
    assert " ".join(header.split()) == "cell arm role wait s cache MiB expected s"
    assert " ".join(rows[0].split()) == "0 baseline baseline baseline 0 8 unknown"
    assert " ".join(rows[1].split()) == "1 small small candidate 30 4 unknown"
    assert " ".join(rows[2].split()) == "2 sentinel baseline sentinel 30 8 unknown"
    assert "in all cells: io threads 2, direct io yes" in text
    assert "time expected: 1 min of waits; 3 cells unknown, at most 3 h" in text


def test_the_time_expected_is_what_was_measured_before_and_no_guess() -> None:
    arms = make_arm("baseline"), make_arm("small")
    text = plan_text(*arms, baseline=10.2, small=20.0)
    assert "time expected: 1 min 40 s, by earlier campaigns" in text
    assert [r.split()[-1] for r in text.splitlines()[1:4]] == ["10", "20", "10"]
    text = plan_text(*arms, small=20.0)
    assert "1 min 20 s of waits and cells that ran before; 2 cells unknown, at most 2 h" in text


def test_without_a_baseline_arms_and_roles_say_nothing() -> None:
    plan = replace(
        make_plan(make_arm("lru"), with_engine(make_arm("ls"), evict="ls")), baseline=None
    )
    out = io.StringIO()
    Terminal(out).plan(plan, "tiny", {})
    header = out.getvalue().splitlines()[0]
    assert " ".join(header.split()) == "cell wait s evict expected s"


def test_what_a_plain_arm_cannot_have_is_no_difference() -> None:
    paging, plain = make_arm("lru"), replace(make_arm("plain"), engine=PLAIN)
    text = plan_text(plain, paging)
    assert " ".join(text.splitlines()[0].split()) == "cell arm role wait s cache MiB expected s"
    assert "io threads 2 (paging), direct io yes (paging)" in text
    text = plan_text(plain, paging, with_engine(make_arm("four"), io_threads=4))
    assert "io threads" in text.splitlines()[0]


def test_findings_are_tables_before_the_verdict() -> None:
    mib = 2**20
    verdict = CampaignVerdict(
        "c",
        Drift("unknown", None),
        (),
        topk=(
            TopKRow("top_4", "ok", 4, 96 * mib, 0.215, tok_s=20.0, perplexity=30.8427),
            TopKRow("top_2", "ok", 2, 96 * mib, tok_s=40.0, greedy_tokens=64, parts_at=9),
        ),
        eviction=(EvictionRow("ls", "ok", "ls", 96 * mib, read_vs_lru=1.25, current_left=7),),
        identity=(IdentityRow("ls", "ls", 96 * mib, "not shown", detail="ls left no output"),),
    )
    text = shown(("verdict", verdict))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "96 4 21.5% 20.00 - - - - 30.8427 - - ok" in lines
    assert "96 2 - 40.00 - - - - - - at token 9 of 64 ok" in lines
    assert "96 ls ls - - 1.250 - - - 7 - - ok" in lines
    assert "96 ls ls not shown - - - - ls left no output" in lines
    assert "greedy output: 0 of 1 cell identical to plain, 1 not shown" in lines
    assert text.index("eviction policies") < text.index("drift:")
    assert "top-k" not in shown(("verdict", replace(verdict, topk=())))


def test_a_limit_is_shown_in_mib() -> None:
    arm = replace(make_arm("baseline"), data_limit_bytes=24 * 2**20)
    assert "limit MiB 24" in plan_text(arm)
    assert "limit MiB -" in plan_text(make_arm("baseline"))


def test_a_log_gets_few_plain_lines() -> None:
    text = shown(
        ("event", Waiting(CELL, 4, 29.7, "spacing")),
        ("event", Waiting(CELL, 4, 28.7, "spacing")),
        ("event", CellStarted(CELL, 4)),
        ("event", CellProgress(CELL, 4, 5, 128, 4.9)),
        ("event", CellFinished(CELL, 4, RECORD)),
    )
    assert text.splitlines() == [
        "cell 2 of 4 cache_half: waiting 30 s (spacing)",
        "cell 2 of 4 cache_half: running",
        "cell 2 of 4 cache_half: 12.35 tok/s, 128 tokens",
    ]


def test_a_terminal_counts_down_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = shown(
        ("event", Waiting(CELL, 4, 29.7, "spacing")),
        ("event", Waiting(CELL, 4, 28.7, "spacing")),
        ("event", CellProgress(CELL, 4, 5, 128, 4.9)),
        ("event", CellProgress(CELL, 4, 128, 128, 0.9)),
        ("event", CellFinished(CELL, 4, RECORD)),
        stream=Tty(),
    )
    for words in ("waiting 30 s", "waiting 29 s", "token 5 of 128", "4.9 tok/s", "last probe"):
        assert words in text
    left = pyte.Screen(80, 10)
    pyte.Stream(left).feed(text.replace("\n", "\r\n"))
    assert [line.rstrip() for line in left.display if line.strip()] == [
        "cell 2 of 4 cache_half: 12.35 tok/s, 128 tokens"
    ]
    assert (left.cursor.x, left.cursor.y, left.cursor.hidden) == (0, 1, False)


SENTENCES = Data(
    (Column("index", "", "d"), Column("cell", "cell"), Column("reasons", "reasons")),
    ((3, "spec2", "its threads waited for a core for 136% of its time"), (4, "sentinel", None)),
)


@pytest.mark.parametrize(("columns", "beside"), [(80, True), (46, True), (30, False)])
def test_sentences_that_a_terminal_has_no_room_for_come_below_their_table(
    monkeypatch: pytest.MonkeyPatch, columns: int, beside: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    text = re.sub(r"\x1b\[[\d;]*m", "", shown(("table", SENTENCES), stream=Tty()))
    header, *rows = (" ".join(line.split()) for line in text.splitlines())
    sentence = str(SENTENCES.rows[0][2])
    assert ("reasons" in header) is beside
    if beside:
        assert " ".join(rows) == f"3 spec2 {sentence} 4 sentinel -"
    else:
        assert rows == ["3 spec2", "4 sentinel", f"3 reasons: {sentence}"]


def test_numbers_are_never_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    text = shown(("results", [replace(RECORD, status="failed"), RECORD]), stream=Tty())
    assert "…" not in text
    row = "cell 1 cache_half, tok/s 12.35, hit rate 50.0%, MiB/token 3.00, anon MiB 64.0, status"
    assert text.splitlines()[1:] == [f"{row} failed", f"{row} ok"]


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    verdict = ("verdict", CampaignVerdict("x", Drift("stable", 0.1), ()))
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[1;32m" in shown(verdict, stream=Tty())
    monkeypatch.setenv("NO_COLOR", "1")
    assert "32m" not in shown(verdict, stream=Tty())


def test_what_was_not_measured_is_a_dash() -> None:
    bare = replace(RECORD, metrics=Metrics(), status="failed")
    header, *rows = shown(("results", [RECORD, bare])).strip().splitlines()
    assert "MiB/token" in header
    assert "anon MiB" in header
    assert rows[0].split() == ["1", "cache_half", "12.35", "50.0%", "3.00", "64.0", "ok"]
    assert rows[1].split() == ["1", "cache_half", "-", "-", "-", "-", "failed"]


def test_speculation_and_dropping_have_columns_where_they_were_measured() -> None:
    armed = Metrics(spec_bytes_per_token=2**19, spec_useful_share=0.75, dropped_share=0.0)
    records = [RECORD, replace(RECORD, metrics=replace(RECORD.metrics, **set_only(armed)))]
    header, *rows = shown(("results", records)).strip().splitlines()
    assert header.split()[-7:] == ["it", "spec", "useful", "dropped", "anon", *END]
    assert rows[0].split()[4:] == ["3.00", "-", "-", "-", "64.0", "ok"]
    assert rows[1].split()[4:] == ["3.00", "0.50", "75.0%", "0.0%", "64.0", "ok"]
    header = shown(("results", [RECORD])).strip().splitlines()[0]
    for word in ("spec", "useful", "dropped", "ppl", "perplexity"):
        assert word not in header


END = ("MiB", "status")


def test_the_perplexity_of_a_given_text_has_a_column_where_it_was_measured() -> None:
    scored = replace(RECORD, metrics=replace(RECORD.metrics, nll=3.45))
    header, *rows = shown(("results", [scored, RECORD])).strip().splitlines()
    assert header.split()[-5:] == ["given", "ppl", "anon", "MiB", "status"]
    assert [row.split()[-3] for row in rows] == ["31.50", "-"]


def test_the_plan_names_the_text_that_is_decoded() -> None:
    given = replace(make_arm("baseline"), text=GivenText("/texts/ruth.txt", "e" * 64))
    assert "text ruth.txt" in plan_text(given)
    assert "text" not in plan_text(make_arm("baseline"))


def set_only(metrics: Metrics) -> dict[str, float]:
    return {k: v for k, v in vars(metrics).items() if v is not None}


def test_the_results_of_the_main_job_fit_in_100_columns() -> None:
    whole = Metrics(
        1234.5, 1.0, 0.755, 0.7, 12.5e6, 3e6, 0.81, 0.142, nll=4.5, anon_peak_bytes=10**11
    )
    names = ("baseline", "retention", "spec2", "sentinel")
    records = [
        replace(RECORD, cell=n, arm=n, index=i, metrics=whole, status="refused")
        for i, n in enumerate(names)
    ]
    assert max(map(len, shown(("results", records)).splitlines())) <= 100


def test_the_arm_is_shown_where_the_cells_name_does_not_say_it() -> None:
    sentinel = replace(RECORD, cell="sentinel", arm="baseline", role="sentinel")
    assert "arm" not in shown(("results", [RECORD, sentinel]))
    pair = replace(RECORD, cell="pair-1", arm="baseline")
    header, row = shown(("results", [pair])).strip().splitlines()
    assert "arm" in header
    assert row.split()[:3] == ["1", "pair-1", "baseline"]


PREDICTION = Prediction(
    {
        "stale_gate": PredictorScore(10, 3, 40, 30),
        "stale_gate_2": PredictorScore(0, 0, 0, 0),
        "previous_token": PredictorScore(10, 1, 40, 13),
        "control": PredictorScore(10, 10, 40, 40),
    },
    unscored_routings=7,
    layers=(
        LayerScores(1, 0, 0.0, None, 0.0, 0.0),
        LayerScores(2, 10, 0.75, None, 0.325, 1.0),
    ),
)


def predictor_text(prediction: Prediction) -> str:
    return shown(("results", [replace(RECORD, prediction=prediction)]))


def test_predictors_are_shown_over_all_and_by_layer_with_dashes_for_what_was_not_scored() -> None:
    text = predictor_text(PREDICTION)
    lines = {line.split("  ")[0]: line.split() for line in text.splitlines() if line}
    assert lines["stale gate"][2:] == ["75.0%", "30.0%", "40", "10"]
    assert lines["stale gate, two layers early"][5:] == ["-", "-", "0", "0"]
    assert lines["previous token"][2:] == ["32.5%", "10.0%", "40", "10"]
    assert lines["control"][1:] == ["100.0%", "100.0%", "40", "10"]
    first, second = (line.split() for line in text.splitlines()[-2:])
    assert first == ["1", "-", "-", "-", "-", "0"]
    assert second == ["2", "75.0%", "-", "32.5%", "100.0%", "10"]
    assert " 0.0%" not in text
    assert "could not rank: 7" in text
    assert "the speed of a probed run says nothing" in text
    assert "warning" not in text


@pytest.mark.parametrize(
    ("hit", "words"),
    [(39_960, None), (39_959, "reads 99.90%"), (20_000, "reads 50.00%"), (None, "was not scored")],
)
def test_a_control_below_999_in_a_thousand_is_warned_of(hit: int | None, words: str | None) -> None:
    score = PredictorScore(0, 0, 0, 0) if hit is None else PredictorScore(10**4, 0, 40_000, hit)
    text = predictor_text(replace(PREDICTION, predictors={"control": score}))
    assert ("warning: the control" in text) is (words is not None)
    assert words is None or words in text


def test_a_trace_of_another_model_is_told() -> None:
    routes = ForcedRoutes("/qwen.csv", 48, 128, 8, exact=False)
    text = shown(("results", [replace(RECORD, forced_routes=routes)]))
    assert "48 layers x 128 experts, mapped onto this one (/qwen.csv)" in text
    same = replace(routes, exact=True)
    assert "mapped" not in shown(("results", [replace(RECORD, forced_routes=same)]))


def test_the_plan_mentions_only_mechanisms_that_are_on() -> None:
    text = plan_text(make_arm("baseline"))
    for word in ("overlap", "read ahead", "drop", "traces", "load all"):
        assert word not in text
    on = {"overlap": True, "predict_prefetch": True, "predict_spec_max": 2, "predict_horizon": 1}
    text = plan_text(with_engine(make_arm("baseline"), drop_cold_experts=0.75, io_trace=True, **on))
    for words in ("overlap yes", "read ahead predict 2, l+1", "drop 0.75", "traces io"):
        assert words in text


def test_a_failed_cell_says_why() -> None:
    bad = replace(RECORD, status="killed", status_detail="time limit of 5 s")
    assert "killed: time limit of 5 s" in shown(("event", CellFinished(CELL, 4, bad)))


def test_the_verdict_is_in_words_with_reasons_and_says_once_what_all_share() -> None:
    both = "the command for more"
    text = shown(
        (
            "verdict",
            CampaignVerdict(
                "id",
                Drift("drifting", -7.0, ("sentinel 4 against 5",)),
                (
                    CandidateVerdict(
                        "half", "base", "provisional_loss", effect_pct=-12.34, reasons=("a", both)
                    ),
                    CandidateVerdict("off", "base", "unreadable", reasons=("b", both)),
                ),
            ),
        )
    )
    assert text.strip().splitlines() == [
        f"drift: {DRIFT_WORDS['drifting']}",
        "  - sentinel 4 against 5",
        "half against base: provisional loss, -12.3 % tok/s",
        "  - a",
        f"off against base: {OUTCOME_WORDS['unreadable']}",
        "  - b",
        "for all candidates:",
        f"  - {both}",
    ]


def test_every_verdict_of_the_contract_has_words() -> None:
    import typing

    from harness.verdicts import DriftVerdict, Outcome

    assert set(DRIFT_WORDS) == set(typing.get_args(DriftVerdict))
    assert set(OUTCOME_WORDS) == set(typing.get_args(Outcome))


def test_names_with_brackets_are_shown_as_they_are() -> None:
    assert "[bold]x[/bold]" in shown(("say", "[bold]x[/bold]"))


def test_a_long_command_is_not_broken_into_lines() -> None:
    command = "python -m harness " + "x" * 300
    reason = Drift("stable", 0.0, (command,))
    assert command in shown(("verdict", CampaignVerdict("i", reason, ())), stream=Tty())
