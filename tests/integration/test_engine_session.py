"""`moe-engine --session`: one model, several prompts, the expert cache warm between them."""

from __future__ import annotations

import json
import re
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_parts import PROMPT, engine

REFERENCE = Path(__file__).resolve().parents[2] / "harness/models/data/reference-q4_k_m.gguf"
OTHER = 'He said "n_predict": 5, and \\ went\nto Ægypt 🦍'
TOKENS = 24
STREAM = ("--moe-stream", "--cache-mb", "24")
MODES = {
    "plain": (),
    "cache": STREAM,
    "no cache": ("--moe-stream",),
    "overlap": (*STREAM, "--overlap"),
    "prefetch": (*STREAM, "--overlap", "--prefetch", "2"),
    "predict": (*STREAM, "--overlap", "--predict-prefetch"),
    "predict, next layer": (*STREAM, "--predict-prefetch", "--predict-horizon", "1"),
}

Fields = dict[str, Any]
Start = Callable[..., "Session"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]


class Session:
    """A running engine; what it answers, line by line."""

    def __init__(self, program: Path, *flags: str, **popen: Any) -> None:
        command = [str(program), "--session", "-t", "1", "-c", "256", "-b", "16", *flags]
        self.stderr = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.stderr, **popen
        )

    def send(self, line: str | bytes | Fields) -> None:
        assert self.process.stdin is not None
        if isinstance(line, dict):
            line = json.dumps(line, ensure_ascii=False)
        self.process.stdin.write((line.encode() if isinstance(line, str) else line) + b"\n")
        self.process.stdin.flush()

    def answer(self) -> tuple[str, Fields]:
        assert self.process.stdout is not None
        tag, _, text = self.process.stdout.readline().decode("utf-8").partition(" ")
        return tag, json.loads(text) if tag else {}

    def expect(self, tag: str) -> Fields:
        got, fields = self.answer()
        assert got == tag, (fields, self.errors())
        return fields

    def generate(self, prompt: str, tokens: int = TOKENS, **more: Any) -> Fields:
        """The last line of a generation, whose other lines must agree with it."""
        request = {"cmd": "generate", "id": 7, "n_predict": tokens, **more, "prompt": prompt}
        self.send(request)
        assert self.expect("BMOE_BEGIN") == {"id": request["id"]}
        return self.rest(request["id"], tokens)

    def rest(self, number: int, tokens: int) -> Fields:
        steps: list[Fields] = []
        while (answer := self.answer())[0] == "BMOE_PROGRESS":
            steps.append(answer[1])
        tag, done = answer
        assert tag == "BMOE_DONE", (done, self.errors())
        assert done["id"] == number
        assert [s["step"] for s in steps] == list(range(1, done["tokens"] + 1))
        assert all(s["steps"] == tokens for s in steps)
        assert "".join(s["delta_text"] for s in steps) == done["text"]
        if steps:
            wall_ms = sum(s["wall_ms"] for s in steps)
            assert done["tok_s"] == pytest.approx(1000 * len(steps) / wall_ms)
            assert done["cache_hit_pct"] == steps[-1]["cache_hit_pct"]
        return done

    def end(self) -> int:
        """Closes standard input; nothing more may be said. The exit code."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        assert self.process.stdout.read() == b""
        return self.process.wait(timeout=600)

    def errors(self) -> str:
        self.stderr.seek(0)
        return self.stderr.read().decode(errors="replace")


@pytest.fixture(scope="module")
def program() -> Path:
    return engine()


@pytest.fixture
def start(program: Path) -> Iterator[Start]:
    sessions: list[Session] = []

    def starts(*flags: str, model: Path = REFERENCE, **popen: Any) -> Session:
        sessions.append(Session(program, "-m", str(model), *flags, **popen))
        return sessions[-1]

    yield starts
    for session in sessions:
        with session.process, session.stderr:
            session.process.kill()


def alone(program: Path, prompt: str, tokens: int = TOKENS) -> str:
    """The text of a run of its own, in plain mode."""
    flags = ["-t", "1", "-c", "256", "-b", "16", "-n", str(tokens), "--no-eog", "-p", prompt]
    done = subprocess.run([program, "-m", REFERENCE, *flags], capture_output=True, check=True)
    return done.stdout.decode(errors="replace")


@pytest.mark.parametrize("mode", MODES)
def test_texts_are_those_of_separate_runs(program: Path, start: Start, mode: str) -> None:
    session = start("--no-eog", *MODES[mode])
    ready = session.expect("BMOE_READY")
    assert (ready["arch"], ready["n_ctx"], ready["n_expert_used"]) == ("qwen3moe", 256, 4)
    for prompt in (PROMPT, OTHER, PROMPT):
        done = session.generate(prompt)
        assert done["text"] == alone(program, prompt)
        assert done["tokens"] == TOKENS
        assert done["n_past"] == done["n_prompt"] + TOKENS
        paged = [done[key] for key in ("io_s_tok", "read_mib", "prefill_io_s")]
        assert all(value is None for value in paged) == (mode == "plain")
        cached = mode not in ("plain", "no cache")
        assert (done["cache_budget_mib"] is None) == (not cached)
        assert (done["cache_hit_pct"] == -1) == (not cached)
    assert session.end() == 0


def test_the_second_prompt_finds_a_warm_cache(start: Start) -> None:
    session = start("--moe-stream", "--cache-mb", "64", "--no-eog")
    session.expect("BMOE_READY")
    first, second = session.generate(PROMPT), session.generate(PROMPT)
    assert first["text"] == second["text"]
    assert first["prefill_read_mib"] > 0
    assert first["read_mib"] > 0
    # the whole model fits
    assert second["prefill_read_mib"] == second["read_mib"] == 0
    assert second["cache_hit_pct"] > first["cache_hit_pct"]
    assert 0 < first["cache_resident_mib"] == second["cache_resident_mib"]
    assert second["cache_resident_mib"] <= second["cache_budget_mib"] <= 64
    assert session.end() == 0


@pytest.mark.parametrize("mode", ["plain", "overlap"])
def test_a_conversation_goes_on_until_the_context_is_full(start: Start, mode: str) -> None:
    session = start("--no-eog", *MODES[mode])
    session.expect("BMOE_READY")
    begun = session.generate(PROMPT, 10)
    # What was generated is evaluated: saying it again in a prompt comes to the same.
    more = session.generate(" of the sea", 10, clear_kv=False)
    assert more["n_past"] == begun["n_past"] + more["n_prompt"] + 10
    again = session.generate(PROMPT + begun["text"] + " of the sea", 10)
    assert again["text"] == more["text"]
    assert again["n_past"] == more["n_past"]

    session.send({"cmd": "generate", "id": 8, "n_predict": 240, "clear_kv": False, "prompt": "x"})
    error = session.expect("BMOE_ERROR")
    assert (error["id"], error["fatal"]) == (8, False)
    assert f"context overflow: {again['n_past']} tokens so far" in error["msg"]
    # The refusal has changed nothing.
    after = session.generate(" and", 5, clear_kv=False)
    assert after["n_past"] == again["n_past"] + after["n_prompt"] + 5
    assert session.generate(PROMPT, 10)["text"] == begun["text"]
    assert session.end() == 0


@pytest.mark.parametrize("mode", ["plain", "cache", "predict"])
def test_cancel_ends_the_generation_that_runs(program: Path, start: Start, mode: str) -> None:
    session = start("--no-eog", *MODES[mode])
    session.expect("BMOE_READY")
    session.send({"cmd": "generate", "id": 1, "n_predict": 240, "prompt": PROMPT})
    session.expect("BMOE_BEGIN")
    session.expect("BMOE_PROGRESS")
    session.send({"cmd": "cancel"})
    lines = [session.answer()]
    while lines[-1][0] == "BMOE_PROGRESS":
        lines.append(session.answer())
    tag, done = lines[-1]
    assert (tag, done["id"]) == ("BMOE_DONE", 1)
    # it may have come when the last token was just made
    assert done["cancelled"] or done["tokens"] == 240
    assert done["n_past"] == done["n_prompt"] + done["tokens"]
    assert alone(program, PROMPT, 240).startswith(done["text"].rstrip("\N{REPLACEMENT CHARACTER}"))
    # The next one is not affected.
    assert session.generate(PROMPT)["cancelled"] is False
    assert session.end() == 0


def test_what_waits_is_cancelled_before_it_begins(start: Start) -> None:
    session = start(*MODES["cache"])
    for number in (1, 2, 3):
        session.send({"cmd": "generate", "id": number, "n_predict": 3, "prompt": PROMPT})
    session.send({"cmd": "cancel", "id": 2})
    session.send({"cmd": "close"})
    session.expect("BMOE_READY")
    for number in (1, 2, 3):
        assert session.expect("BMOE_BEGIN") == {"id": number}
        done = session.rest(number, 3)
        assert done["cancelled"] == (number == 2)
        assert (done["n_past"] == 0) == (number == 2)
    assert session.end() == 0


def test_wrong_lines_are_answered_and_the_session_goes_on(start: Start) -> None:
    session = start("-n", "5", "--no-eog")
    session.expect("BMOE_READY")
    wrong: list[tuple[str | bytes, int, str]] = [
        ("nonsense", 0, "invalid JSON at byte 0"),
        ('{"cmd":"generate","id":4}', 4, "needs a prompt"),
        ('{"cmd":"stop","id":5}', 5, "unknown cmd 'stop'"),
        ('{"cmd":"generate","id":6,"prompt":"x","n_predict":"8"}', 6, "n_predict must be"),
        (b'{"cmd":"generate","id":7,"prompt":"\xff"}', 0, "not well-formed UTF-8"),
        ("x" * (2**20 + 1), 0, "longer than 1048576 bytes"),
        ('{"cmd":"generate","id":8,"prompt":"x","n_predict":256}', 8, "context overflow"),
        ('{"cmd":"generate","id":9,"prompt":"' + "word " * 300 + '"}', 9, "context overflow"),
    ]
    for line, number, message in wrong:
        session.send(line)
        error = session.expect("BMOE_ERROR")
        assert (error["id"], error["fatal"]) == (number, False)
        assert message in error["msg"]
    session.send("  ")
    done = session.generate("n_predict", 5)
    assert done["tokens"] == 5
    # the default of -n, and an escaped prompt in ASCII
    request = {"cmd": "generate", "id": 10, "think": False, "prompt": OTHER}
    session.send(json.dumps(request, ensure_ascii=True))
    session.expect("BMOE_BEGIN")
    escaped = session.rest(10, 5)
    assert escaped["text"] == session.generate(OTHER, 5)["text"]
    assert session.end() == 0


def test_an_empty_prompt_begins_with_the_models_own_first_token(start: Start) -> None:
    session = start("--no-eog")
    session.expect("BMOE_READY")
    assert session.generate("", 4)["n_prompt"] == 1
    session.send({"cmd": "generate", "id": 2, "n_predict": 4, "clear_kv": False, "prompt": ""})
    assert session.expect("BMOE_ERROR") == {
        "id": 2,
        "fatal": False,
        "msg": "the prompt has no tokens",
    }
    assert session.end() == 0


def test_end_of_input_ends_after_what_was_asked(start: Start) -> None:
    session = start("--no-eog")
    assert session.process.stdin is not None
    request = {"cmd": "generate", "id": 3, "n_predict": 6, "prompt": PROMPT}
    session.process.stdin.write(json.dumps(request).encode())  # without a newline
    session.process.stdin.close()
    session.expect("BMOE_READY")
    session.expect("BMOE_BEGIN")
    assert session.rest(3, 6)["tokens"] == 6
    assert session.end() == 0


def test_what_stops_the_engine_is_told_as_fatal(start: Start, tmp_path: Path) -> None:
    absent = start(model=tmp_path / "absent.gguf")
    error = absent.expect("BMOE_ERROR")
    assert (error["id"], error["fatal"]) == (0, True)
    assert absent.end() == 3
    assert "moe-engine: error: " + error["msg"] in absent.errors()

    model = tmp_path / "model.gguf"
    shutil.copy(REFERENCE, model)
    session = start("--moe-stream", "--dense-weights", "anon", model=model)
    session.expect("BMOE_READY")
    session.generate(PROMPT, 2)
    with model.open("r+b") as file:
        file.truncate(model.stat().st_size // 4)
    session.send({"cmd": "generate", "id": 2, "n_predict": 4, "prompt": PROMPT})
    session.expect("BMOE_BEGIN")
    error = session.expect("BMOE_ERROR")
    assert (error["id"], error["fatal"]) == (2, True)
    assert session.end() == 5
    assert "moe-engine: error: " + error["msg"] in session.errors()


def test_predictions_are_scored_over_the_whole_session(start: Start) -> None:
    session = start(*STREAM, "--predict-log", "--no-eog")
    session.expect("BMOE_READY")
    for _ in range(3):
        session.generate(PROMPT, 8)
    assert session.end() == 0
    control = re.search(r"control, own input +([\d.]+) +[\d.]+ +(\d+)", session.errors())
    assert control is not None, session.errors()
    assert float(control[1]) > 99
    # 8 MoE layers
    assert int(control[2]) == 3 * 8 * 8


def test_statistics_are_of_the_whole_session(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "stats.jsonl"
    session = start(*STREAM, "--evict", "reuse_distance", "--stats", str(path), "--no-eog")
    session.expect("BMOE_READY")
    for _ in range(2):
        session.generate(PROMPT, 8)
    assert session.end() == 0
    arena, *passes, total = [json.loads(line) for line in path.read_text().splitlines()]
    assert (arena["type"], arena["policy"], total["type"]) == ("arena", "reuse_distance", "total")
    assert [line["type"] for line in passes] == ["pass"] * total["passes"]
    assert total["tokens"] == 2 * 8
    for key in ("requests", "hits", "misses", "evictions", "reads", "read_bytes"):
        assert total[key] == sum(line[key] for line in passes) > 0
        assert total[key] == total["prefill"][key] + total["decode"][key]
    assert total["resident_slots"] <= [c["slots"] for c in arena["classes"]]


def test_a_prompt_does_not_count_against_the_predictor(start: Start) -> None:
    session = start(*STREAM, "--predict-prefetch", "--no-eog")
    session.expect("BMOE_READY")
    # short turns: what the last token of each left unchecked is many of all routings
    for _ in range(60):
        session.generate("x", 2)
    assert session.end() == 0
    assert "disarmed" not in session.errors()


def test_a_session_keeps_to_its_memory_plan(start: Start) -> None:
    def limited(limit: int) -> dict[str, Any]:
        set_limit = (resource.RLIMIT_DATA, (limit, resource.getrlimit(resource.RLIMIT_DATA)[1]))
        return {"preexec_fn": lambda: resource.setrlimit(*set_limit)}

    refused = start(*MODES["overlap"], **limited(48 << 20))
    error = refused.expect("BMOE_ERROR")
    needed = re.match(r"needs (\d+) bytes of anonymous memory", error["msg"])
    assert needed is not None, error
    assert refused.end() == 4

    # from one process to the next the plan differs by a few pages
    session = start(*MODES["overlap"], "--no-eog", **limited(int(needed[1]) + (64 << 10)))
    session.expect("BMOE_READY")
    long = "word " * 40
    for _ in range(3):
        session.generate(long, 24)
    session.send("{" * 3_000_000)
    assert "longer than" in session.expect("BMOE_ERROR")["msg"]
    assert session.end() == 0
