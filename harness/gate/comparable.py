"""Whether an arm of two campaigns is the same configuration, doing the same work. Pure.

The build of the engine may differ: it is what is gated. Everything else that moves a number must
not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from harness.analysis.counters import compare_identity, compare_work, drops, reads_ahead
from harness.analysis.device_state import CpuSensor, match_entry
from harness.gate.nights import Night
from harness.jsonable import to_json
from harness.planned import Arm
from harness.records import ArmIdentity, CellRecord
from harness.schema import VerdictConfig

# of an arm's settings, what does not change what a cell does
_FREE_SETTINGS = ("name", "time_limit_s", "binary")
# a text is known by its content, wherever it lies
_TEXTS = ("text", "perplexity")


def settings_of(arm: Arm) -> dict[str, Any]:
    """What an arm asks for, without its name, its build and where its text lies.

    What is at its default is left out: a setting that only a later version has changes nothing of
    what was asked before.
    """
    found = {k: v for k, v in _asked(arm).items() if k not in _FREE_SETTINGS}
    for key in _TEXTS:
        if found.get(key) is not None:
            found[key] = found[key]["sha256"]
    return found


def _asked(value: Any) -> Any:
    """As `to_json`, without fields at their defaults."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return to_json(value)
    return {
        f.name: _asked(own)
        for f in dataclasses.fields(value)
        if (own := getattr(value, f.name)) != _default(f)
    }


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def unlike(arm: str, baseline: Night, candidate: Night) -> list[str]:
    """Why the arm of one campaign is not that of the other; empty where it is."""
    problems = [f"{n.id}: {n.wrong}" for n in (baseline, candidate) if n.wrong is not None]
    if baseline.device != candidate.device:
        known = [str(n.device or "unknown") for n in (baseline, candidate)]
        problems.append(f"another device: {known[0]} then, {known[1]} now")
    if baseline.page_cache != candidate.page_cache:
        problems.append("the model was evicted from the page cache in one of the two only")
    problems += _other_settings(arm, baseline, candidate)
    cells = [[r for r in n.cells_of(arm) if r.status == "ok"] for n in (baseline, candidate)]
    for night, own in zip((baseline, candidate), cells, strict=True):
        problems += [f"{night.id}: {arm} is no single configuration: {w}" for w in mixed(own)]
    b, c = cells
    if arm not in baseline.plan.arms and arm not in candidate.plan.arms and not _model_of([*b, *c]):
        problems.append(
            f"neither campaign says which model and settings {arm} ran with: nothing shows that it "
            "is one configuration"
        )
    return problems + (other_identity(b[0], c[0]) if b and c else [])


def _model_of(cells: Sequence[CellRecord]) -> bool:
    """Whether it is known, of imported tables say, what ran at least."""
    return any(r.identity.model_sha256 is not None for r in cells)


def mixed(cells: Sequence[CellRecord]) -> list[str]:
    """How cells of one arm and campaign differ from its first where none may; each way once."""
    found: dict[str, str] = {}
    for r in cells[1:]:
        first = cells[0]
        for words in compare_identity(first, r).problems:
            found.setdefault(words.partition(" ")[0], words)
        for name, of in _ALSO_ALIKE:
            if of(first) != of(r):
                what = f"{name}: {of(first)} in {first.cell}, {of(r)} in {r.cell}"
                found.setdefault(name, what)
    return list(found.values())


def _limits(record: CellRecord) -> tuple[int | None, int | None]:
    return record.data_limit_bytes, record.cgroup.limit_bytes if record.cgroup else None


_ALSO_ALIKE: tuple[tuple[str, Callable[[CellRecord], object]], ...] = (
    ("memory limits in force (bytes)", _limits),
    ("tokens", lambda r: r.counters.tokens),
    ("engine_sha256", lambda r: r.identity.engine_sha256),
    ("prompt_sha256", lambda r: r.identity.prompt_sha256),
)


def _other_settings(arm: str, baseline: Night, candidate: Night) -> list[str]:
    own = [n.plan.arms.get(arm) for n in (baseline, candidate)]
    if own[0] is None or own[1] is None:
        return []  # an import knows no settings
    then, now = (_flat(settings_of(a)) for a in own if a is not None)
    differing = [k for k in then.keys() | now.keys() if then.get(k) != now.get(k)]
    said = [[str(side.get(k, "its default")) for side in (then, now)] for k in sorted(differing)]
    return [f"{k}: {a} then, {b} now" for k, (a, b) in zip(sorted(differing), said, strict=True)]


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= (
            _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        )
    return flat


def other_identity(b: CellRecord, c: CellRecord) -> list[str]:
    """Model, resolved cache, threads, direct I/O and limits as they came to be, not as asked."""
    same = dataclasses.replace(
        c,
        target=b.target,  # its address may have changed: the device is known by its key
        identity=dataclasses.replace(c.identity, **_of_the_build(b.identity, c.identity)),
    )
    problems = list(compare_identity(_named(b, "then"), _named(same, "now")).problems)
    if _limits(b) != _limits(c):
        problems.append(f"memory limits in force: {_limits(b)} then, {_limits(c)} now (bytes)")
    if b.counters.tokens != c.counters.tokens:
        problems.append(f"{b.counters.tokens} tokens then, {c.counters.tokens} now")
    return problems


def _of_the_build(b: ArmIdentity, c: ArmIdentity) -> dict[str, Any]:
    """Fields that another build moves by itself, as they were; the size of the cache is not one."""
    if b.engine_build_id == c.engine_build_id:
        return {}
    moved: dict[str, Any] = {
        "engine_build_id": b.engine_build_id,
        "arena_bytes": b.arena_bytes,
    }
    if None in (b.evict, c.evict):  # older engines had one policy and did not say it
        moved["evict"] = b.evict
    return moved


def depends_on_timing(record: CellRecord) -> bool:
    """What the cell reads ahead, and so hits and reads, depends on how fast reads were."""
    return reads_ahead(record)


def output_depends_on_timing(record: CellRecord) -> bool:
    """Its text, too: what is dropped depends on what is resident."""
    return reads_ahead(record) and drops(record)


def other_work(b: CellRecord, c: CellRecord, tolerance_pct: float) -> tuple[str, ...]:
    """Counters and text in which two cells of one configuration differ."""
    return compare_work(_named(b, "then"), _named(c, "now"), tolerance_pct).problems


def matched(
    baseline: list[CellRecord], candidate: list[CellRecord], sensor: CpuSensor, s: VerdictConfig
) -> tuple[list[CellRecord], list[CellRecord], str | None]:
    """The cells of either side that began on a device state that one of the other's began on.

    And of those that did not, why the first did not.
    """
    found = {
        (b.index, c.index): match_entry(
            b,
            c,
            sensor,
            temp_tolerance_c=s.temp_tolerance_c,
            probe_tolerance_pct=s.probe_tolerance_pct,
            read_probe_tolerance_pct=s.read_probe_tolerance_pct,
        )
        for b in (_named(b, f"{b.cell} then") for b in baseline)
        for c in (_named(c, f"{c.cell} now") for c in candidate)
    }
    same = [pair for pair, match in found.items() if match.same]
    why = next((m.problems[0] for m in found.values() if not m.same), None)
    return (
        [b for b in baseline if any(b.index == i for i, _ in same)],
        [c for c in candidate if any(c.index == i for _, i in same)],
        why,
    )


def _named(record: CellRecord, name: str) -> CellRecord:
    """For sentences: the cells of two campaigns are called alike."""
    return dataclasses.replace(record, cell=name)
