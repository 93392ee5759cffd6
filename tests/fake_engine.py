#!/usr/bin/env python3
"""Speaks moe-engine's contract (docs/engine.md) without a model; the prompt says how it behaves.

The prompt is a JSON object: `token_ms` (pause per token), `die_after` (tokens, then exit without a
summary), `exit`, `complain` (error line), `signal` (sent to itself at the end), `ignore_term`,
`start` (keys that replace those of the start record), `summary` (the same for the summary),
`wall_ms` (what a token claims to take) with `jitter` (its spread, ln, and that of whole cells),
`until` (a file: no token before it is there), `hang` (sleeps for an hour at the end), `eat_mb`
(memory that it takes first), `strays` (a policy under which the last token is another one),
`needed_bytes` (answer to `--plan-memory`; with `--ram-budget-mb` what is needed beside the arena),
`refuse` (error line with which `--plan-memory` ends, exit 2).
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import math
import os
import random
import signal
import sys
import time
from pathlib import Path

COUNTERS = {"read_bytes": 4096, "requests": 8, "hits": 6, "misses": 2, "evictions": 1}
GROUPS = {f"evict_{age}_{side}": 0 for age in ("stale", "current") for side in ("left", "right")}
GROUPS["evict_stale_right"] = COUNTERS["evictions"]
AHEAD = {"spec_read_bytes": 1024, "spec_experts": 4, "spec_useful": 3, "retained": 2}
DROPS = {"routed": 8, "dropped": 1}
SLOT_BYTES = (1 << 20, 3 << 20)
MODEL_BYTES = 200 << 20
# another build of it (tests/fake_builds.py) sets these: its own, how much longer a token takes it,
# what it adds to the id of the last one, and flags that it does not know
BUILD_ID, PACE, STRAY, UNKNOWN = "fake", 1.0, 0, ()
FAULTS = {"majflt": 1, "minflt": 10, "cpu_ms": 1.5, "invol_ctx": 0}


NUMBERS = (
    *("-n", "-c", "-b", "-t", "--seed", "--io-threads", "--expert-used"),
    *(
        "--ram-budget-mb",
        "--reserve-mb",
        "--cache-floor-mb",
        "--cache-ceil-mb",
        "--prefetch",
        "--predict-spec-max",
    ),
    *("--predict-horizon", "--ppl-chunks"),
)
TEXTS = (
    *("--temp", "--dense-weights", "--csv", "--telemetry", "--cache-mb"),
    *("--route-trace", "--io-trace", "--compute-trace", "--compute-trace-by", "--forced-routes"),
    *("--given-text", "--evict", "--stats"),
)
SWITCHES = (
    *("--moe-stream", "--no-odirect", "--repack", "--no-eog", "--plan-memory", "--overlap"),
    *("--force-cache", "--load-all", "--predict-prefetch", "--predict-log", "--drop-no-renorm"),
    "--drop-in-prefill",
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("-m", required=True)
    text = parser.add_mutually_exclusive_group(required=True)
    text.add_argument("-f")
    text.add_argument("--ppl-file")
    for flag in NUMBERS:
        parser.add_argument(flag, type=int)
    for flag in TEXTS:
        parser.add_argument(flag)
    parser.add_argument("--drop-cold-experts", type=float)
    for flag in SWITCHES:
        parser.add_argument(flag, action="store_true")
    return parser.parse_args()


def main() -> int:
    for flag in UNKNOWN:
        if flag in sys.argv:
            print(f"moe-engine: error: unknown option {flag}", file=sys.stderr)
            return 2
    args = arguments()
    asked = {}
    if args.f is not None:
        with open(args.f, encoding="utf-8") as f:  # noqa: PTH123
            asked = json.load(f)
    if args.ram_budget_mb is not None and not fits(args, asked):
        return 4
    if args.plan_memory:
        return plan_memory(args, asked)
    _eaten = bytearray(b"x") * (asked.get("eat_mb", 0) << 20)
    if asked.get("ignore_term"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "complain" in asked:
        print(f"moe-engine: error: {asked['complain']}", file=sys.stderr)
    if asked.get("exit") and "die_after" not in asked:
        return int(asked["exit"])
    with open(args.telemetry, "w") as telemetry:  # noqa: PTH123
        if args.ppl_file is not None:
            say = functools.partial(tell, telemetry)
            say("start", start_record(args, asked))
            say("summary", scores(args))
            return 0
        with open(args.csv, "w") as rows:  # noqa: PTH123
            decode(args, asked, telemetry, rows)
    if asked.get("hang"):
        time.sleep(3600)
    if "signal" in asked:
        os.kill(os.getpid(), asked["signal"])
    return int(asked.get("exit", 0))


def needed_bytes(asked) -> int:
    return asked.get("needed_bytes", 50 << 20)


def fits(args, asked) -> bool:
    """Is there room for an expert beside what is needed anyway?"""
    budget = args.ram_budget_mb << 20
    needed = needed_bytes(asked) + SLOT_BYTES[-1]
    if needed > budget:
        print(
            f"moe-engine: error: needs {needed} bytes of anonymous memory, allowed {budget} "
            "(--ram-budget-mb)",
            file=sys.stderr,
        )
    return needed <= budget


def arena_of(args, asked):
    """What the budget leaves, two thirds of it in small slots."""
    if args.ram_budget_mb is None:
        size = cache_bytes(args)
        return {"bytes": size, "capacity_bytes": size}
    left = (args.ram_budget_mb << 20) - needed_bytes(asked)
    large = max(1, left // 3 // SLOT_BYTES[1])
    small = (left - large * SLOT_BYTES[1]) // SLOT_BYTES[0]
    slots = (small, large)
    return {
        "bytes": sum(n * size for n, size in zip(slots, SLOT_BYTES, strict=True)),
        "slots": sum(slots),
        "slot_bytes": SLOT_BYTES[1],
        "capacity_bytes": left,
        "coverage": min(1.0, left / MODEL_BYTES),
        "classes": [
            {"slot_bytes": size, "slots": n, "experts": 16}
            for n, size in zip(slots, SLOT_BYTES, strict=True)
        ],
    }


def budget_of(args, asked):
    if args.ram_budget_mb is None:
        return None
    measured = needed_bytes(asked)
    return {
        "ram_budget_bytes": args.ram_budget_mb << 20,
        "reserve_bytes": measured if args.reserve_mb is None else args.reserve_mb << 20,
        "reserve_measured_bytes": measured,
    }


def cache_bytes(args) -> int:
    return 64 << 20 if args.cache_mb == "auto" else int(args.cache_mb or 0) << 20


def plan_memory(args, asked) -> int:
    if "refuse" in asked:
        print(f"moe-engine: error: {asked['refuse']}", file=sys.stderr)
        return 2
    needed = needed_bytes(asked)
    if args.ram_budget_mb is not None:
        needed += arena_of(args, asked)["bytes"]
    plan = {"type": "memory_plan", "needed_bytes": needed}
    print(json.dumps({**plan, "allowed_bytes": None}))
    return 0


def tell(telemetry, kind: str, entry: dict) -> None:
    print(json.dumps({"type": kind, **entry}), file=telemetry, flush=True)


def scores(args) -> dict:
    """Fewer experts, a higher perplexity."""
    value = 30.0 + 4 - (args.expert_used or 4)
    return {
        "tokens": 0,
        "tok_s": None,
        "prefill_tok_s": 900.0,
        "ids_sha256": None,
        "perplexity": {
            "value": value,
            "nll": math.log(value),
            "tokens": 512,
            "chunks": args.ppl_chunks or 2,
            "n_ctx": args.c,
            "stderr": 0.5,
        },
    }


def start_record(args, asked) -> dict:
    stream = args.moe_stream
    auto = args.cache_mb == "auto"
    cache_mb = cache_bytes(args) >> 20
    sized = stream and not auto and args.ram_budget_mb is None
    config = {
        "n_predict": args.n,
        "n_ctx": args.c,
        "n_batch": args.b,
        "threads": args.t,
        "temp": 0,
        "seed": args.seed,
        "cache_mb": cache_mb if sized else None,
        "ram_budget_mb": args.ram_budget_mb,
        "reserve_mb": args.reserve_mb,
        "evict": (args.evict or "lru") if stream else None,
        "cache_auto": auto,
        "cache_floor_mb": args.cache_floor_mb,
        "cache_ceil_mb": args.cache_ceil_mb,
        "overlap": args.overlap,
        "force_cache": args.force_cache,
        "load_all": args.load_all,
        "prefetch": args.prefetch,
        "predict_prefetch": args.predict_prefetch,
        "predict_spec_max": args.predict_spec_max,
        "predict_horizon": args.predict_horizon,
        "predict_log": args.predict_log,
        "drop_cold_experts": args.drop_cold_experts,
        "drop_renorm": not args.drop_no_renorm,
        "drop_in_prefill": args.drop_in_prefill,
        "given_text": args.given_text,
        "ppl_file": args.ppl_file,
        "ppl_chunks": args.ppl_chunks,
        "io_threads": (args.io_threads or 4) if stream else None,
        "direct_io_requested": not args.no_odirect if stream else None,
        "dense_weights": args.dense_weights or "mmap",
        "expert_used": args.expert_used,
        "repack": args.repack,
        "no_eog": args.no_eog,
    }
    start = {
        "build_id": BUILD_ID,
        "model": {"n_expert_used": 4},
        "mode": "stream" if stream else "plain",
        "config": config,
        "direct_io": {"effective": not args.no_odirect if stream else None, "reason": None},
        "arena": arena_of(args, asked) if stream else None,
        "budget": budget_of(args, asked),
        "forced_routes": forced_routes(args),
        "load_s": 0.01,
        "pid": os.getpid(),
    }
    start["config"].update(asked.get("start", {}).pop("config", {}))
    return start | asked.get("start", {})


def decode(args, asked, telemetry, rows) -> None:
    say = functools.partial(tell, telemetry)
    stream = args.moe_stream
    say("start", start_record(args, asked))
    ids = list(range(args.n))
    if "strays" in asked and asked["strays"] == args.evict:
        ids[-1] += 1
    ids[-1] += STRAY
    counters = {
        **(COUNTERS | GROUPS if stream else dict.fromkeys(COUNTERS | GROUPS)),
        **(AHEAD if args.prefetch or args.predict_prefetch else dict.fromkeys(AHEAD)),
        **(DROPS if args.drop_cold_experts is not None else dict.fromkeys(DROPS)),
    }
    print("token,wall_ms,io_ms,stall_ms," + ",".join([*counters, *FAULTS]), file=rows, flush=True)
    timing = {"io_ms": 0.5, "stall_ms": 0.25} if stream else {"io_ms": None, "stall_ms": None}
    walls_ms = [PACE * (asked.get("wall_ms", 2.0) + token % 3) for token in range(args.n)]
    # the same for the same cell of the same plan, so that a verdict can be foretold
    rng, jitter = random.Random(Path(args.csv).parent.name), asked.get("jitter", 0.0)  # noqa: S311
    day = rng.gauss(0, jitter)
    walls_ms = [w * math.exp(day + rng.gauss(0, jitter)) for w in walls_ms]
    while "until" in asked and not Path(asked["until"]).exists():
        time.sleep(0.02)
    for token, wall_ms in enumerate(walls_ms):
        if token == asked.get("die_after"):
            return
        time.sleep(asked.get("token_ms", 1) / 1e3)
        row = {"token": token, "wall_ms": wall_ms, **timing, **counters, **FAULTS}
        print(",".join("" if v is None else str(v) for v in row.values()), file=rows, flush=True)
        say("token", {**row, "id": ids[token], "text_hex": ""})

    def times(n: int) -> dict:
        return {key: None if value is None else value * n for key, value in counters.items()}

    summary = {
        "tokens": args.n,
        "stopped_by": "length",
        "decode_wall_ms": sum(walls_ms),
        "tok_s": args.n / sum(walls_ms) * 1e3,
        "prefill_tok_s": 50.0,
        "load_s": 0.01,
        "decode": times(args.n),
        "prefill": times(1),
        "total": times(args.n + 1),
        "given": {"tokens": args.n, "agreed": args.n // 4, "nll": 3.5} if args.given_text else None,
        "prediction": prediction() if args.predict_log else None,
        "predictor_disarmed": None,
        "ids_sha256": hashlib.sha256(b"".join(b"%d\n" % i for i in ids)).hexdigest(),
    }
    say("summary", summary | asked.get("summary", {}))
    print("fake text", end="")


def forced_routes(args):
    if args.forced_routes is None:
        return None
    return {"path": args.forced_routes, "layers": 48, "experts": 128, "top_k": 8, "exact": False}


def prediction() -> dict:
    """Layer 1 has nothing two layers before it."""
    names = ("stale_gate", "stale_gate_2", "previous_token", "control")
    hit = {"stale_gate": 30, "stale_gate_2": 10, "previous_token": 12, "control": 40}
    score = {
        n: {"routings": 10, "exact": h // 10, "slots": 40, "slots_hit": h} for n, h in hit.items()
    }
    layers = [
        {"layer": 1, "routings": 5, **{n: hit[n] / 40 for n in names}, "stale_gate_2": None},
        {"layer": 2, "routings": 5, **{n: hit[n] / 40 for n in names}},
    ]
    return {"predictors": score, "unscored_routings": 3, "layers": layers}


if __name__ == "__main__":
    sys.exit(main())
