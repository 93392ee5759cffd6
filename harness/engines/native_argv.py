"""moe-engine's command line for an arm (docs/engine.md). Touches nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path, PurePath

from harness.engine_flags import conflict
from harness.engines.native import STATS, TELEMETRY, TOKENS
from harness.errors import UsageError
from harness.planned import Arm, GivenText

# flag, setting, and the value of the setting for which the flag is given
_SWITCHES = (
    ("--moe-stream", "moe_stream", True),
    ("--overlap", "overlap", True),
    ("--force-cache", "force_cache", True),
    ("--load-all", "load_all", True),
    ("--no-odirect", "direct_io", False),
    ("--predict-prefetch", "predict_prefetch", True),
    ("--drop-no-renorm", "drop_renorm", False),
    ("--drop-in-prefill", "drop_in_prefill", True),
    ("--repack", "repack", True),
)
_VALUES = (
    ("--cache-mb", "cache_mb"),
    ("--cache-floor-mb", "cache_floor_mb"),
    ("--cache-ceil-mb", "cache_ceil_mb"),
    ("--ram-budget-mb", "ram_budget_mb"),
    ("--reserve-mb", "reserve_mb"),
    ("--evict", "evict"),
    ("--io-threads", "io_threads"),
    ("--dense-weights", "dense_weights"),
    ("--prefetch", "prefetch"),
    ("--predict-spec-max", "predict_spec_max"),
    ("--predict-horizon", "predict_horizon"),
    ("--drop-cold-experts", "drop_cold_experts"),
    ("--expert-used", "expert_used"),
)
# of decoding, neither of its memory plan nor of scoring a text
_DECODING_SWITCHES = (("--no-eog", "no_eog", True), ("--predict-log", "predict_log", True))


def input_files(arm: Arm) -> tuple[str, ...]:
    """The files besides model and prompt that the arm's engine reads: paths on this machine."""
    texts = [text.path for text in (arm.text, arm.perplexity) if text is not None]
    routes = arm.engine.forced_routes
    return (*texts, *([] if routes is None else [routes]))


def placed_arm(arm: Arm, places: Mapping[str, str]) -> Arm:
    """The arm as its command line is on a target where its files are in other places."""

    def text(given: GivenText | None) -> GivenText | None:
        if given is None:
            return None
        return dataclasses.replace(given, path=places.get(given.path, given.path))

    routes = arm.engine.forced_routes
    placed = None if routes is None else places.get(routes, routes)
    return dataclasses.replace(
        arm,
        text=text(arm.text),
        perplexity=text(arm.perplexity),
        engine=dataclasses.replace(arm.engine, forced_routes=placed),
    )


def engine_argv(
    engine: PurePath, model: PurePath, prompt_file: PurePath, arm: Arm, out_dir: PurePath
) -> list[str]:
    """The engine's command line for one cell; every setting that is not None is spelt out.

    Raises UsageError for settings that cannot act together.
    """
    argv = _common_argv(engine, model, prompt_file, arm)
    s = arm.engine
    decodes = arm.perplexity is None
    argv += [flag for flag, name, on in _DECODING_SWITCHES if decodes and getattr(s, name) is on]
    if arm.text is not None:
        argv += ["--given-text", arm.text.path]
    if arm.perplexity_chunks is not None:
        argv += ["--ppl-chunks", str(arm.perplexity_chunks)]
    for kind in ("route", "io", "compute"):
        if getattr(s, f"{kind}_trace"):
            argv += [f"--{kind}-trace", str(out_dir / f"{kind}_trace.csv")]
    if s.compute_trace is not None:
        argv += ["--compute-trace-by", s.compute_trace]
    if s.stats:
        argv += ["--stats", str(out_dir / STATS)]
    if decodes:
        argv += ["--csv", str(out_dir / TOKENS)]
    return [*argv, "--telemetry", str(out_dir / TELEMETRY)]


def plan_memory_argv(
    engine: PurePath, model: PurePath, prompt_file: PurePath, arm: Arm
) -> list[str]:
    """Asks for the memory plan of the same cell; nothing is decoded, so nothing of that is said."""
    return [*_common_argv(engine, model, prompt_file, arm), "--plan-memory"]


def _common_argv(engine: PurePath, model: PurePath, prompt_file: PurePath, arm: Arm) -> list[str]:
    s = arm.engine
    found = conflict(vars(s))
    if found is not None:
        raise UsageError(f"arm {arm.name}: {found.name}: {found.words}")
    argv = [str(engine), "-m", str(model)]
    if arm.perplexity is not None:
        argv += ["--ppl-file", arm.perplexity.path]
    else:
        argv += ["-f", str(prompt_file), "-n", str(arm.n_predict)]
    argv += ["-c", str(s.n_ctx), "-b", str(s.n_batch), "-t", str(s.threads)]
    argv += ["--temp", "0", "--seed", str(arm.seed)]
    argv += [flag for flag, name, on in _SWITCHES if getattr(s, name) is on]
    for flag, name in _VALUES:
        value = getattr(s, name)
        if value is not None:
            argv += [flag, str(value)]
    if s.forced_routes is not None:
        # the engine runs in the cell's directory
        argv += ["--forced-routes", str(Path(s.forced_routes).absolute())]
    return argv
