"""The other engine's logs: its summary lines, its start line, and drivers' logs of several cells.

Touches nothing; never fails. Lines come with or without BOM, between a model's answer and
llama.cpp's chatter, and interleaved with it; every generation of their wording is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.importers.bmoe_device import (
    DeviceNotes,
    is_sidecar,
    merged,
    read_moment,
    read_sidecar,
    waited_s,
)

_N = r"(-?\d+(?:\.\d+)?)"
_GENERATION = re.compile(rf"^generation: (\d+) tokens?, {_N} s/token \({_N} tok/s\)", re.M)
_PERF = "=== perf ==="
# name of the value, where it stands in the lines that follow `generation:`
_VALUES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern, re.M))
    for name, pattern in (
        ("cpu_s/tok", rf"^compute: .*\({_N} cpu-s/token"),
        ("threads", rf"^compute: .*over {_N} threads"),
        ("majflt/tok", rf"^compute: .*, {_N} major faults/token"),
        ("n_prompt", rf"^prefill: {_N} tokens"),
        ("prefill_s", rf"^prefill: \d+ tokens, {_N} s"),
        ("load_s", rf"^prefill: .*model load {_N} s"),
        ("read_MiB", rf"^moe-stream: read {_N} MiB"),
        ("compute_s/tok", rf"^moe-stream: .*\(compute {_N}"),
        ("mgmt_s/tok", rf"^moe-stream: .*cache mgmt {_N}"),
        ("io_s/tok", rf"^moe-stream: .*flash I/O {_N}"),
        ("cache_hit_pct", rf"^moe-cache: {_N}% hit"),
        ("cache_resident_MiB", rf"^moe-cache: .*resident {_N} MiB"),
        ("cache_budget_MiB", rf"^moe-cache: .*budget {_N} MiB"),
        ("evictions", rf"^moe-cache: {_N} evictions"),
        ("rereads", rf"^moe-cache: .*evictions, {_N} re-reads"),
        ("stall_s/tok", rf"^moe-overlap: stall {_N}"),
        ("spec_read_MiB", rf"^moe-prefetch: {_N} MiB speculative"),
        ("spec_useful", rf"^moe-prefetch: .*speculative, {_N}/"),
        ("spec_experts", r"^moe-prefetch: .*speculative, \d+/(\d+)"),
        ("experts_dropped", rf"^moe-drop: {_N}/"),
        ("experts_routed", r"^moe-drop: \d+/(\d+)"),
        ("drop_cold_frac", rf"^moe-drop: .*threshold {_N}"),
    )
)
_START = re.compile(r"bmoe: expert streaming ON\s+([^\n]*)")
_MODEL = re.compile(r"([^\s/\\]+\.gguf)\b")
_TOP_K = re.compile(r"print_info: n_expert_used\s*= (\d+)")
_HEADER = re.compile(r"^={3,}[ \t]*(?P<name>[^\s=][^=\n]*?)[ \t]*={3,}[ \t]*$", re.M)
# of the engine's own output, within a run
_INSIDE = {"answer", "perf"}
_MOMENT = re.compile(r"^\W*(ENTRY|EXIT)(?:[ _]STATE)?\b\s*:?(.*)$", re.I)
_CAPS = re.compile(r"\bfreq_cap=")
_KEY = re.compile(r"\b(?:batt|cpu|mem|memavail|freq|freq_cap|thermal|waited|lvl)\w*=")
_NEW_LINE = re.compile(
    r"^\W*(?:ENTRY|EXIT|generation:|prefill:|moe-|compute:|bmoe:|print_info)", re.I
)


@dataclass(frozen=True)
class RunLog:
    """One run in a log. `said`: its summary, by the names of the CSV's; `start`: settings."""

    tokens: int | None = None
    said: Mapping[str, str] = field(default_factory=dict)
    start: Mapping[str, str] = field(default_factory=dict)
    device: DeviceNotes = field(default_factory=DeviceNotes)

    @property
    def ended(self) -> bool:
        """The engine printed its summary."""
        return self.tokens is not None


@dataclass(frozen=True)
class DriverBlock:
    """One cell of a driver's log."""

    name: str
    run: RunLog


def is_log(text: str) -> bool:
    """A summary of a run, or the start of one."""
    return bool(_GENERATION.search(text) or _START.search(text) or driver_blocks(text))


def read_log(text: str) -> RunLog:
    """The last run of a log of one cell."""
    start = _start(text)
    # an answer may quote a summary; with --progress the real one follows a line of its own
    tail = text.rpartition(f"\n{_PERF}")[2] if f"\n{_PERF}" in text else text
    matches = list(_GENERATION.finditer(tail))
    device = [read_sidecar(text)] if is_sidecar(text) else []
    device += _moments(text)
    if not matches:
        return RunLog(start=start, device=merged(device))
    last = matches[-1]
    said = {"tokens": last[1], "s/tok": last[2], "tok/s": last[3]}
    after = tail[last.start() :]
    for name, pattern in _VALUES:
        match = pattern.search(after)
        if match is not None:
            said[name] = match[1]
    return RunLog(int(last[1][:18]), said, start, merged(device))


def _start(text: str) -> dict[str, str]:
    """The settings that the engine and llama.cpp print as they start."""
    said: dict[str, str] = {}
    match = _START.search(text)
    if match is not None:
        line = match[1]
        said["moe_stream"] = "1"
        for key in ("o_direct", "io_threads", "n_expert", "shards"):
            value = re.search(rf"\b{key}=(\d+)", line)
            if value is not None:
                said[key] = value[1]
        cache = re.search(r"\bcache=(\d+)\s*MiB", line)
        if cache is not None:
            said["cache_budget_mib"] = cache[1]
    model = _MODEL.search(text)
    if model is not None:
        said["model"] = model[1]
    top_k = _TOP_K.search(text)
    if top_k is not None:
        said["n_expert_used"] = top_k[1]
    return said


def _moments(text: str) -> list[DeviceNotes]:
    """ENTRY and EXIT lines, and caps noted before and after the run, as one source each."""
    found: list[DeviceNotes] = []
    lines = text.split("\n")
    generated = next((i for i, s in enumerate(lines) if s.startswith("generation:")), len(lines))
    for i, line in enumerate(lines):
        match = _MOMENT.match(line)
        if match is None and not _CAPS.search(line):
            continue
        said = match[2] if match else line
        following = lines[i + 1] if i + 1 < len(lines) else ""
        # one field of the battery breaks the line
        if match and _KEY.search(following) and not _NEW_LINE.match(following):
            said = f"{said} {following}"
        at_exit = match[1].upper() == "EXIT" if match else i > generated
        state = read_moment(said)
        found.append(
            DeviceNotes(exit=state)
            if at_exit
            else DeviceNotes(entry=state, waited_s=waited_s(said))
        )
    return found


def driver_blocks(text: str) -> list[DriverBlock]:
    """The cells of a driver's log in order; none in a log of one run.

    A block begins with its cell's name between rules, and holds a summary or a state at entry.
    """
    heads = [m for m in _HEADER.finditer(text) if m["name"].lower() not in _INSIDE]
    ends = [*(m.start() for m in heads[1:]), len(text)]
    blocks = []
    for head, end in zip(heads, ends, strict=False):
        body = text[head.end() : end]
        if _GENERATION.search(body) or any(_MOMENT.match(s) for s in body.split("\n")):
            blocks.append(DriverBlock(head["name"], read_log(body)))
    return blocks
