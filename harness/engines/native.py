"""moe-engine: its command line, and what its telemetry and per-token CSV mean (docs/engine.md).

Reads the files it is named, writes none. Readers are tolerant: a run may have ended anywhere, newer
engines may say more. What the engine did not say is None, never 0.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import UsageError
from harness.records import Arm, ArmIdentity, Counters, EngineSettings, Metrics

TELEMETRY = "telemetry.jsonl"
TOKENS = "tokens.csv"
EXIT_REFUSED = 4
_ERROR = "moe-engine: error: "

# tok/s from tokens.csv and from the engine's own summary may differ by this share, no more
RATE_TOLERANCE = 1e-3

Row = Mapping[str, float | None]


@dataclass(frozen=True)
class Telemetry:
    """What the engine said at its start and its end; None where it did not get that far."""

    start: Mapping[str, Any] | None = None
    summary: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Outcome:
    """One run of the engine. `problems`: why it is not the run that was asked for, if it is not."""

    counters: Counters = field(default_factory=Counters)
    metrics: Metrics = field(default_factory=Metrics)
    identity: ArmIdentity = field(default_factory=ArmIdentity)
    output_sha256: str | None = None
    problems: tuple[str, ...] = ()


# --- command line --------------------------------------------------------------------------------


def engine_argv(engine: Path, model: Path, prompt_file: Path, arm: Arm, out_dir: Path) -> list[str]:
    """The engine's command line for one cell; every setting that is not None is spelt out.

    Raises UsageError for settings that cannot act together.
    """
    argv = _common_argv(engine, model, prompt_file, arm)
    if arm.engine.no_eog:
        argv += ["--no-eog"]
    return [*argv, "--csv", str(out_dir / TOKENS), "--telemetry", str(out_dir / TELEMETRY)]


def plan_memory_argv(engine: Path, model: Path, prompt_file: Path, arm: Arm) -> list[str]:
    """Asks for the memory plan of the same cell; nothing is decoded, so nothing of that is said."""
    return [*_common_argv(engine, model, prompt_file, arm), "--plan-memory"]


def _common_argv(engine: Path, model: Path, prompt_file: Path, arm: Arm) -> list[str]:
    s = arm.engine
    _refuse_what_cannot_act(arm.name, s)
    argv = [str(engine), "-m", str(model), "-f", str(prompt_file), "-n", str(arm.n_predict)]
    argv += ["-c", str(s.n_ctx), "-b", str(s.n_batch), "-t", str(s.threads)]
    argv += ["--temp", "0", "--seed", str(arm.seed)]
    if s.moe_stream:
        argv += ["--moe-stream"]
    for flag, value in (
        ("--cache-mb", s.cache_mb),
        ("--io-threads", s.io_threads),
        ("--dense-weights", s.dense_weights),
        ("--expert-used", s.expert_used),
    ):
        if value is not None:
            argv += [flag, str(value)]
    if s.direct_io is False:
        argv += ["--no-odirect"]
    if s.repack:
        argv += ["--repack"]
    return argv


def _refuse_what_cannot_act(arm: str, s: EngineSettings) -> None:
    if s.moe_stream:
        if s.repack:
            raise UsageError(f"arm {arm}: repack cannot act together with engine.moe_stream=true")
        return
    asked = [
        name for name in ("cache_mb", "io_threads", "direct_io") if getattr(s, name) is not None
    ]
    if s.dense_weights == "anon":
        asked.append("dense_weights=anon")
    if asked:
        raise UsageError(f"arm {arm}: {', '.join(asked)} cannot act without engine.moe_stream=true")


# --- reading -------------------------------------------------------------------------------------


def read_telemetry(content: bytes) -> Telemetry:
    """The engine's JSON lines; lines that are no JSON object (a torn one, say) are left out."""
    entries = [_json_object(line) for line in content.split(b"\n")]
    by_type = {entry["type"]: entry for entry in entries if isinstance(entry.get("type"), str)}
    return Telemetry(by_type.get("start"), by_type.get("summary"))


def tokens_done(tail: bytes) -> int | None:
    """How many tokens are out, from the last bytes of a telemetry file still being written."""
    for line in reversed(tail.split(b"\n")):
        entry = _json_object(line)
        number = entry.get("token")
        if entry.get("type") == "token" and isinstance(number, int):
            return number + 1
    return None


def complaint(stderr: bytes) -> str | None:
    """The engine's own last error line, without its name; None when it did not complain."""
    for line in reversed(stderr.decode("utf-8", "replace").splitlines()):
        if line.startswith(_ERROR):
            return line.removeprefix(_ERROR)
    return None


def read_tokens(content: bytes) -> list[Row]:
    """The rows of tokens.csv by column; a torn last row is left out, an empty field is None."""
    whole = content[: content.rfind(b"\n") + 1].decode("utf-8", "replace")
    lines = [line.split(",") for line in whole.split("\n") if line.strip()]
    header, rows = (lines[0], lines[1:]) if lines else ([], [])
    names = [name.strip() for name in header]
    return [
        dict(zip(names, map(_number, [*row, *[""] * len(names)]), strict=False)) for row in rows
    ]


def _json_object(line: bytes) -> Mapping[str, Any]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return entry if isinstance(entry, dict) else {}


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


# --- meaning -------------------------------------------------------------------------------------


def understand(arm: Arm, telemetry: Telemetry, rows: Sequence[Row]) -> Outcome:
    """Counters, metrics and identity of a run, and whether it is the run that `arm` asked for."""
    return Outcome(
        counters=_counters(telemetry, rows),
        metrics=_metrics(telemetry, rows),
        identity=_identity(telemetry.start or {}),
        output_sha256=_text(telemetry.summary, "ids_sha256"),
        problems=tuple(_problems(arm, telemetry, rows)),
    )


def _counters(telemetry: Telemetry, rows: Sequence[Row]) -> Counters:
    total = _get(telemetry.summary, "total")
    tokens = _int(telemetry.summary, "tokens")
    return Counters(
        tokens=tokens if tokens is not None else len(rows) or None,
        read_bytes=_int(total, "read_bytes"),
        hits=_int(total, "hits"),
        misses=_int(total, "misses"),
        evictions=_int(total, "evictions"),
        requests=_int(total, "requests"),
    )


def _metrics(telemetry: Telemetry, rows: Sequence[Row]) -> Metrics:
    walls = _column(rows, "wall_ms")
    total = _get(telemetry.summary, "total")
    load_s = _float(telemetry.summary, "load_s")
    return Metrics(
        tok_s=_tok_s(rows),
        wall_ms_median=statistics.median(walls) if walls else None,
        hit_rate=_ratio(_sum(rows, "hits"), _sum(rows, "requests")),
        hit_rate_total=_ratio(_int(total, "hits"), _int(total, "requests")),
        bytes_per_token=_per_token(rows, "read_bytes"),
        prefill_tok_s=_float(telemetry.summary, "prefill_tok_s"),
        load_s=load_s if load_s is not None else _float(telemetry.start, "load_s"),
        majflt_per_token=_per_token(rows, "majflt"),
        stall_ms_per_token=_per_token(rows, "stall_ms"),
        invol_ctx_per_token=_per_token(rows, "invol_ctx"),
    )


def _identity(start: Mapping[str, Any]) -> ArmIdentity:
    config = _get(start, "config")
    effective = _get(_get(start, "direct_io"), "effective")
    # null in the configuration is the model's own
    top_k, own_top_k = _int(config, "expert_used"), _int(_get(start, "model"), "n_expert_used")
    return ArmIdentity(
        engine_build_id=_text(start, "build_id"),
        mode=_text(start, "mode"),
        cache_mb=_int(config, "cache_mb"),
        arena_bytes=_int(_get(start, "arena"), "bytes"),
        direct_io=effective if isinstance(effective, bool) else None,
        dense_weights=_text(config, "dense_weights"),
        expert_used=own_top_k if top_k is None else top_k,
        threads=_int(config, "threads"),
    )


def _problems(arm: Arm, telemetry: Telemetry, rows: Sequence[Row]) -> list[str]:
    if telemetry.start is None:
        return ["the engine did not say how it was configured"]
    found = _mismatches(arm, telemetry.start)
    summary = telemetry.summary
    if summary is None:
        return [*found, "the engine's telemetry has no summary: the run did not end"]
    tokens = _int(summary, "tokens")
    if tokens != len(rows):
        found.append(f"{TOKENS} has {len(rows)} rows, the engine's summary {tokens} tokens")
    if _get(summary, "stopped_by") == "length" and tokens != arm.n_predict:
        found.append(f"asked for {arm.n_predict} tokens, the engine made {tokens}")
    own, its = _tok_s(rows), _float(summary, "tok_s")
    if own is None:
        found.append(f"{TOKENS} has no usable wall_ms column")
    elif its is None or abs(own - its) > RATE_TOLERANCE * own:
        found.append(f"tok/s from {TOKENS} is {own:.6g}, from the engine's summary {its}")
    return found


def _mismatches(arm: Arm, start: Mapping[str, Any]) -> list[str]:
    """Settings asked for explicitly that the engine says it runs differently, or does not confirm.

    Whether direct I/O took effect is not among them: that is a property of the storage, and stands
    in the identity.
    """
    s = arm.engine
    config = _get(start, "config")
    asked: list[tuple[str, Any, Any]] = [
        ("mode", "stream" if s.moe_stream else "plain", _get(start, "mode")),
        ("n_predict", arm.n_predict, _get(config, "n_predict")),
        ("threads", s.threads, _get(config, "threads")),
        ("n_ctx", s.n_ctx, _get(config, "n_ctx")),
        ("n_batch", s.n_batch, _get(config, "n_batch")),
        ("cache_mb", s.cache_mb, _get(config, "cache_mb")),
        ("io_threads", s.io_threads, _get(config, "io_threads")),
        ("dense_weights", s.dense_weights, _get(config, "dense_weights")),
        ("expert_used", s.expert_used, _get(config, "expert_used")),
        ("direct_io", s.direct_io, _get(config, "direct_io_requested")),
    ]
    return [
        f"asked for {name} {want}, the engine ran with {'nothing' if have is None else have}"
        for name, want, have in asked
        if want is not None and want != have
    ]


# --- looking up and counting, None where not measured ---------------------------------------------


def _get(data: Any, key: str) -> Any:
    return data.get(key) if isinstance(data, Mapping) else None


def _int(data: Any, key: str) -> int | None:
    value = _get(data, key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _float(data: Any, key: str) -> float | None:
    value = _get(data, key)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return _number(str(value))


def _text(data: Any, key: str) -> str | None:
    value = _get(data, key)
    return value if isinstance(value, str) else None


def _column(rows: Sequence[Row], name: str) -> list[float]:
    """All values of a column, or nothing when any of them was not measured."""
    values = [value for row in rows if (value := row.get(name)) is not None]
    return values if len(values) == len(rows) else []


def _sum(rows: Sequence[Row], name: str) -> float | None:
    values = _column(rows, name)
    return math.fsum(values) if values else None


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _per_token(rows: Sequence[Row], name: str) -> float | None:
    return _ratio(_sum(rows, name), len(rows))


def _tok_s(rows: Sequence[Row]) -> float | None:
    wall_ms = _sum(rows, "wall_ms")
    return len(rows) * 1e3 / wall_ms if wall_ms else None
