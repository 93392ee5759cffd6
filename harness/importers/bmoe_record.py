"""One run of the other engine and what was noted of it, as a record. Touches nothing.

What is not said stays None; what becomes of what: docs/import.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from harness.importers import measures
from harness.importers.bmoe_cells import Cell
from harness.importers.bmoe_tokens import NO_SUMMARY, rate_note
from harness.importers.text import MIB, as_whole, mib, number, ratio, whole
from harness.importers.write import PLACE_GUESSED, ImportedCell, raw_names
from harness.planned import PlannedCell
from harness.readings import DeviceState
from harness.records import ArmIdentity, CellRecord, CellStatus, Counters, Metrics, TargetId, Wait
from harness.words import counted

# settings of the preamble that a flag stands for, as docs/engine.md calls it
_SWITCHES = {"overlap": "--overlap", "force_cache": "--force-cache"}
_SWITCHES |= {"predict_prefetch": "--predict-prefetch", "predict_log": "--predict-log"}
_NUMBERS = {
    "io_threads": "--io-threads",
    "prefetch": "--prefetch",
    "predict_spec_max": "--predict-spec-max",
    "cache_ceil_mb": "--cache-ceil-mb",
    "drop_cold_frac": "--drop-cold-experts",
}


def imported_cell(cell: Cell, planned: PlannedCell, root: Path) -> ImportedCell:
    """The record of `cell`, its rows, and its files, which lie below `root`."""
    tokens, device = cell.tokens, cell.device
    rows = () if tokens is None else tokens.rows
    said = {**cell.log.said, **({} if tokens is None else tokens.summary)}
    settings = {**cell.log.start, **({} if tokens is None else tokens.settings)}
    streamed = (
        tokens.streamed
        if tokens is not None and tokens.streamed is not None
        else (True if "read_MiB" in said or settings.get("moe_stream") == "1" else None)
    )
    status, detail = _status(cell)
    notes = [*cell.notes, *device.notes, *(() if tokens is None else tokens.notes)]
    if tokens is not None and len(tokens.turns) > 1:
        notes.append(f"a session of {len(tokens.turns)} turns, read as one run")
    if tokens is not None and not tokens.turns and cell.log.ended and status == "ok":
        notes += rate_note(number(cell.log.said.get("tok/s")), rows, "its log")
    if cell.order_guessed_by is not None:
        notes.append(f"{PLACE_GUESSED}{cell.order_guessed_by}")
    waited_s = device.waited_s
    record = CellRecord(
        cell=planned.name,
        arm=planned.arm,
        role=planned.role,
        index=planned.index,
        status=status,
        exit_code=None,
        argv=_argv(settings),
        target=TargetId("imported", "unknown"),
        entry=_known(device.entry),
        exit=_known(device.exit),
        counters=_counters(cell, said, settings, streamed),
        metrics=_metrics(cell, said, streamed, device.peak_rss_bytes),
        identity=_identity(cell, said, settings, streamed),
        wait=None if waited_s is None else Wait(waited_s, "as the driver's log says"),
        started_unix_s=device.entry.unix_s,
        ended_unix_s=device.exit.unix_s,
        status_detail=detail,
        peaks=device.peaks,
        notes=tuple(dict.fromkeys(notes)),
    )
    return ImportedCell(record, rows, raw_names(cell.files, root))


def _known(state: DeviceState) -> DeviceState | None:
    return None if state == DeviceState() else state


def _status(cell: Cell) -> tuple[CellStatus, str | None]:
    """`ok` where the engine's summary is there and counts the rows that are."""
    tokens, log = cell.tokens, cell.log
    if tokens is None:
        if not log.ended:
            return "failed", "its log has no summary: the run did not end well"
        return "ok", None
    problems = list(tokens.problems)
    if log.ended and not tokens.turns:
        # the log's summary stands for the one that the file lacks
        problems = [p for p in problems if NO_SUMMARY not in p]
        if log.tokens != len(tokens.rows):
            problems.append(
                f"its log says {counted(log.tokens, 'token')}, the file has "
                f"{counted(len(tokens.rows), 'row')}"
            )
    if problems:
        return "failed", "; ".join(problems)
    return "ok", None


def _argv(settings: Mapping[str, str]) -> tuple[str, ...]:
    """The flags that a preamble amounts to; empty where there is none.

    Not the command line itself, which is not archived. Effective direct I/O stays out: the storage
    decides it, not a flag alone. So do the tokens asked for: a run that ends its text earlier is
    whole, and whether it may is not recorded.
    """
    if "cache_auto" not in settings and "dense_weights" not in settings:
        return ()
    words = ["bmoe"]
    if settings.get("moe_stream") == "1":
        words.append("--moe-stream")
        cache = "auto" if settings.get("cache_auto") == "1" else settings.get("cache_mb")
        words += ["--cache-mb", cache] if cache else []
    words += [flag for key, flag in _SWITCHES.items() if settings.get(key) == "1"]
    for key, flag in _NUMBERS.items():
        if number(settings.get(key)):
            words += [flag, settings[key]]
    for key, flag in (
        ("dense_weights", "--dense-weights"),
        ("cache_policy", "--evict"),
        ("n_expert_used", "--expert-used"),
        ("threads", "-t"),
        ("n_ctx", "-c"),
    ):
        words += [flag, settings[key]] if settings.get(key) else []
    return tuple(words)


def _counters(
    cell: Cell, said: Mapping[str, str], settings: Mapping[str, str], streamed: bool | None
) -> Counters:
    rows = () if cell.tokens is None else cell.tokens.rows
    own = measures.counters(rows)
    read_bytes = own.read_bytes
    if read_bytes is None and streamed:
        read_bytes = mib(number(said.get("read_MiB")))
    # zeros where speculation and dropping were off
    spec = {k: number(said.get(k)) for k in ("spec_read_MiB", "spec_experts", "spec_useful")}
    ahead = any(spec.values()) or any(
        number(settings.get(k)) for k in ("prefetch", "predict_prefetch")
    )
    routed = as_whole(number(said.get("experts_routed"))) or None
    cached = _hit_pct(cell, said) is not None
    return dataclasses.replace(
        own,
        tokens=own.tokens if own.tokens is not None else cell.log.tokens,
        read_bytes=read_bytes,
        evictions=whole(said.get("evictions")) if cached else None,
        spec_read_bytes=mib(spec["spec_read_MiB"]) if ahead else None,
        spec_experts=as_whole(spec["spec_experts"]) if ahead else None,
        spec_useful=as_whole(spec["spec_useful"]) if ahead else None,
        routed=routed,
        dropped=whole(said.get("experts_dropped")) if routed else None,
    )


def _hit_pct(cell: Cell, said: Mapping[str, str]) -> float | None:
    """Cumulative over prompt and decoding; None where there was no cache."""
    if cell.tokens is not None and cell.tokens.rows:
        return cell.tokens.hit_pct
    value = number(said.get("cache_hit_pct"))
    return value if value is not None and value >= 0 else None


def _metrics(
    cell: Cell, said: Mapping[str, str], streamed: bool | None, peak_rss_bytes: int | None
) -> Metrics:
    rows = () if cell.tokens is None else cell.tokens.rows
    own = measures.metrics(rows) if rows else Metrics()
    hit_pct = _hit_pct(cell, said)
    routed, dropped = number(said.get("experts_routed")), number(said.get("experts_dropped"))
    n_prompt, prefill_s = number(said.get("n_prompt")), number(said.get("prefill_s"))
    experts, useful = number(said.get("spec_experts")), number(said.get("spec_useful"))
    tokens, read_mib = number(said.get("tokens")), number(said.get("read_MiB"))
    of_summary = Metrics(
        tok_s=None if rows else number(said.get("tok/s")) or None,
        hit_rate_total=None if hit_pct is None else hit_pct / 100,
        bytes_per_token=ratio(read_mib * MIB, tokens)
        if streamed and read_mib is not None
        else None,
        spec_useful_share=ratio(useful, experts),
        dropped_share=ratio(dropped, routed),
        prefill_tok_s=ratio(n_prompt, prefill_s) or number(said.get("prefill_tps")) or None,
        load_s=number(said.get("load_s")) or None,
        majflt_per_token=number(said.get("majflt/tok")) if number(said.get("cpu_s/tok")) else None,
    )
    metrics = measures.known(own, of_summary)
    if peak_rss_bytes is not None:
        metrics = dataclasses.replace(metrics, rss_peak_bytes=peak_rss_bytes)
    return metrics


def _identity(
    cell: Cell, said: Mapping[str, str], settings: Mapping[str, str], streamed: bool | None
) -> ArmIdentity:
    budget_mib = number(said.get("cache_budget_MiB"))
    if budget_mib is None and cell.tokens is not None:
        budget_mib = cell.tokens.budget_mib
    if budget_mib is None:
        budget_mib = number(settings.get("cache_budget_mib"))
    auto = settings.get("cache_auto") == "1"
    direct = settings.get("o_direct") if streamed else None
    prompts = prompts_of(cell)
    prompt_tokens = sum(p for p in prompts if p is not None) if prompts else None
    if prompt_tokens is None:
        prompt_tokens = whole(said.get("n_prompt"))
    return ArmIdentity(
        engine_build_id=settings.get("engine"),
        mode=None if streamed is None else "stream" if streamed else "plain",
        cache_mb=None if auto or not streamed else whole(settings.get("cache_mb")),
        evict=settings.get("cache_policy"),
        capacity_bytes=mib(budget_mib) if streamed and budget_mib else None,
        direct_io=direct == "1" if direct in ("0", "1") else None,
        dense_weights=settings.get("dense_weights"),
        expert_used=whole(settings.get("n_expert_used")),
        threads=whole(settings.get("threads") or said.get("threads")),
        model=settings.get("model"),
        prompt_tokens=prompt_tokens,
    )


def prompts_of(cell: Cell) -> tuple[int | None, ...] | None:
    """Tokens of the prompt of each turn; None where they are not known."""
    turns = cell.tokens.turns if cell.tokens is not None else ()
    counts = tuple(whole(t.summary.get("n_prompt")) for t in turns)
    return counts if counts and None not in counts else None
