"""What moe-engine's telemetry and per-token CSV mean (docs/engine.md).

Reads the files it is named, writes none. Readers are tolerant: a run may have ended anywhere, newer
engines may say more. What the engine did not say is None, never 0.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from harness.jsonable import from_json
from harness.planned import Arm
from harness.records import (
    Arena,
    ArmIdentity,
    Counters,
    ForcedRoutes,
    Metrics,
    Perplexity,
    Prediction,
    PredictorDisarmed,
    RamBudget,
)
from harness.words import counted

TELEMETRY = "telemetry.jsonl"
TOKENS = "tokens.csv"
STATS = "stats.jsonl"
EXIT_REFUSED = 4
_ERROR = "moe-engine: error: "

# tok/s from tokens.csv and from the engine's own summary may differ by this share, no more
RATE_TOLERANCE = 1e-3

Row = Mapping[str, float | None]
T = TypeVar("T")


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
    arena: Arena | None = None
    budget: RamBudget | None = None
    perplexity: Perplexity | None = None
    prediction: Prediction | None = None
    predictor_disarmed: PredictorDisarmed | None = None
    forced_routes: ForcedRoutes | None = None
    output_sha256: str | None = None
    problems: tuple[str, ...] = ()


# --- reading -------------------------------------------------------------------------------------


def read_telemetry(content: bytes) -> Telemetry:
    """The engine's JSON lines; lines that are no JSON object (a torn one, say) are left out."""
    entries = [_json_object(line) for line in content.split(b"\n")]
    by_type = {entry["type"]: entry for entry in entries if isinstance(entry.get("type"), str)}
    return Telemetry(by_type.get("start"), by_type.get("summary"))


@dataclass(frozen=True)
class Done:
    """How far an engine is: tokens that are out, or tokens of a text that are scored."""

    tokens: int | None = None
    scored: int | None = None


def how_far(tail: bytes) -> Done:
    """By the last bytes of a telemetry file still being written."""
    for line in reversed(tail.split(b"\n")):
        entry = _json_object(line)
        number, scored = entry.get("token"), entry.get("tokens")
        if entry.get("type") == "token" and isinstance(number, int):
            return Done(tokens=number + 1)
        if entry.get("type") == "chunk" and isinstance(scored, int):
            return Done(scored=scored)
    return Done()


def complaint(stderr: bytes) -> str | None:
    """The engine's own last error line, without its name; None when it did not complain."""
    for line in reversed(stderr.decode("utf-8", "replace").splitlines()):
        if line.startswith(_ERROR):
            return line.removeprefix(_ERROR)
    return None


def read_ids(content: bytes) -> tuple[int, ...]:
    """The ids of the tokens that are out, from the telemetry, in order."""
    entries = (_json_object(line) for line in content.split(b"\n") if b'"token"' in line)
    ids = (_int(entry, "id") for entry in entries if entry.get("type") == "token")
    return tuple(i for i in ids if i is not None)


def ids_sha256(ids: Iterable[int]) -> str:
    """As the engine's summary names its output."""
    return hashlib.sha256(b"".join(b"%d\n" % i for i in ids)).hexdigest()


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
    start, summary = telemetry.start, telemetry.summary
    problems = _problems(arm, telemetry, rows)
    return Outcome(
        counters=_counters(telemetry, rows),
        metrics=_metrics(telemetry, rows),
        identity=_identity(start or {}),
        arena=_said(Arena, start, "arena", problems),
        budget=_said(RamBudget, start, "budget", problems),
        perplexity=_said(Perplexity, summary, "perplexity", problems),
        prediction=_said(Prediction, summary, "prediction", problems),
        predictor_disarmed=_said(PredictorDisarmed, summary, "predictor_disarmed", problems),
        forced_routes=_said(ForcedRoutes, start, "forced_routes", problems),
        output_sha256=_text(summary, "ids_sha256"),
        problems=tuple(problems),
    )


def _said(cls: type[T], data: Any, key: str, problems: list[str]) -> T | None:
    """An object that the engine gives only where it has something to say."""
    value = _get(data, key)
    if value is None:
        return None
    try:
        return from_json(cls, value, key)
    except ValueError as e:
        problems.append(f"the engine's telemetry cannot be read: {e}")
        return None


def _counters(telemetry: Telemetry, rows: Sequence[Row]) -> Counters:
    total = _get(telemetry.summary, "total")
    tokens = _int(telemetry.summary, "tokens")
    summed = [f.name for f in dataclasses.fields(Counters) if f.name != "tokens"]
    return Counters(
        tokens=tokens if tokens is not None else len(rows) or None,
        **{name: _int(total, name) for name in summed},
    )


def _metrics(telemetry: Telemetry, rows: Sequence[Row]) -> Metrics:
    walls = _column(rows, "wall_ms")
    total, given = _get(telemetry.summary, "total"), _get(telemetry.summary, "given")
    load_s = _float(telemetry.summary, "load_s")
    return Metrics(
        tok_s=_tok_s(rows),
        wall_ms_median=statistics.median(walls) if walls else None,
        hit_rate=_ratio(_sum(rows, "hits"), _sum(rows, "requests")),
        hit_rate_total=_ratio(_int(total, "hits"), _int(total, "requests")),
        bytes_per_token=_per_token(rows, "read_bytes"),
        spec_bytes_per_token=_per_token(rows, "spec_read_bytes"),
        spec_useful_share=_ratio(_sum(rows, "spec_useful"), _sum(rows, "spec_experts")),
        dropped_share=_ratio(_sum(rows, "dropped"), _sum(rows, "routed")),
        nll=_float(given, "nll"),
        agreement=_ratio(_int(given, "agreed"), _int(given, "tokens")),
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
        ram_budget_mb=_int(config, "ram_budget_mb"),
        evict=_text(config, "evict"),
        arena_bytes=_int(_get(start, "arena"), "bytes"),
        capacity_bytes=_int(_get(start, "arena"), "capacity_bytes"),
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
    if arm.perplexity is not None:
        if _get(summary, "perplexity") is None:
            found.append("asked for the perplexity of a text, the engine did not say it")
        return found
    tokens = _int(summary, "tokens")
    if tokens != len(rows):
        found.append(
            f"{TOKENS} has {counted(len(rows), 'row')}, the engine's summary "
            f"{counted(tokens, 'token')}"
        )
    if _get(summary, "stopped_by") == "length" and tokens != arm.n_predict:
        found.append(f"asked for {counted(arm.n_predict, 'token')}, the engine made {tokens}")
    if arm.engine.predict_log and _get(summary, "prediction") is None:
        found.append("asked for predict_log, the engine scored no predictor")
    if arm.text is not None and _float(_get(summary, "given"), "nll") is None:
        found.append("asked for a given text, the engine did not say how likely it is")
    own, its = _tok_s(rows), _float(summary, "tok_s")
    if own is None:
        found.append(f"{TOKENS} has no usable wall_ms column")
    elif its is None or abs(own - its) > RATE_TOLERANCE * own:
        found.append(f"tok/s from {TOKENS} is {own:.6g}, from the engine's summary {its}")
    return found


# settings that the engine's `config` repeats under the same name
_CONFIRMED = (
    "threads",
    "n_ctx",
    "n_batch",
    "cache_mb",
    "cache_floor_mb",
    "cache_ceil_mb",
    "ram_budget_mb",
    "reserve_mb",
    "evict",
    "io_threads",
    "dense_weights",
    "prefetch",
    "predict_spec_max",
    "predict_horizon",
    "drop_cold_experts",
    "expert_used",
)
_SWITCHES = (
    "overlap",
    "force_cache",
    "load_all",
    "predict_prefetch",
    "predict_log",
    "drop_in_prefill",
)


def _mismatches(arm: Arm, start: Mapping[str, Any]) -> list[str]:
    """Settings asked for explicitly that the engine says it runs differently, or does not confirm.

    Whether direct I/O took effect is not among them: that is a property of the storage, and stands
    in the identity.
    """
    s, scored = arm.engine, arm.perplexity
    config = _get(start, "config")
    named = {name: getattr(s, name) for name in _CONFIRMED}
    if s.cache_mb == "auto":
        named |= {"cache_mb": None, "cache_auto": True}
    if s.drop_cold_experts is not None:
        named["drop_renorm"] = s.drop_renorm
    asked: list[tuple[str, Any, Any]] = [
        ("mode", "stream" if s.moe_stream else "plain", _get(start, "mode")),
        ("n_predict", None if scored else arm.n_predict, _get(config, "n_predict")),
        ("perplexity_chunks", arm.perplexity_chunks, _get(config, "ppl_chunks")),
        (
            "perplexity of",
            scored.path if scored else "nothing",
            _get(config, "ppl_file") or "nothing",
        ),
        # nothing said is greedy decoding
        ("text", arm.text.path if arm.text else "greedy", _get(config, "given_text") or "greedy"),
        *((name, want, _get(config, name)) for name, want in named.items()),
        ("direct_io", s.direct_io, _get(config, "direct_io_requested")),
    ]
    # an older engine, or one in plain mode, does not speak of what is off
    asked += [(name, getattr(s, name), _get(config, name) is True) for name in _SWITCHES]
    return [
        f"asked for {name} {want}, the engine ran with {'nothing' if have is None else have}"
        for name, want, have in asked
        if want is not None and not _same(want, have)
    ]


def _same(want: Any, have: Any) -> bool:
    """Equal; for a fraction, as far as the engine keeps its digits."""
    if isinstance(want, float) and isinstance(have, (int, float)):
        return math.isclose(want, have, rel_tol=1e-6)
    return bool(want == have)


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
