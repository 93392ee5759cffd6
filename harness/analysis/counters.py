"""Whether two cells did the same work, and whether two arms differ only in what was asked for.

Pure. The rules are those of the verdict method: equal configurations must have equal work
counters, and a pair whose model, build, effective direct I/O or resolved memory differs unasked is
confounded. So is a pair that decoded different texts: that is other work.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any

from harness.records import CellRecord

_CACHE_SIZE = (
    *("--cache-mb", "--moe-stream", "--cache-floor-mb", "--cache-ceil-mb"),
    *("--ram-budget-mb", "--reserve-mb"),
)
# Identity fields and the flags that may move them on purpose. No flag: never on purpose, because a
# comparison of settings holds the model, the build and the text fixed.
_ASKED_BY: dict[str, tuple[str, ...]] = {
    "model_sha256": (),
    "model": (),
    "engine_build_id": (),
    "text_sha256": (),
    "prompt_tokens": (),
    "mode": ("--moe-stream",),
    "cache_mb": ("--cache-mb", "--moe-stream", "--ram-budget-mb"),
    "ram_budget_mb": ("--ram-budget-mb",),
    "evict": ("--evict", "--moe-stream"),
    "capacity_bytes": _CACHE_SIZE,
    # beside the cache: room for the experts of one batch and for what is read ahead; a trace of
    # another model counts its own experts
    "arena_bytes": (
        *_CACHE_SIZE,
        "--expert-used",
        "--n-expert-used",
        "-b",
        "--batch-size",
        "--overlap",
        "--load-all",
        "--prefetch",
        "--predict-prefetch",
        "--predict-spec-max",
        "--predict-horizon",
        "--forced-routes",
    ),
    "direct_io": ("--no-odirect", "--moe-stream"),
    "dense_weights": ("--dense-weights", "--moe-stream"),
    "expert_used": ("--expert-used", "--n-expert-used"),
    "threads": ("-t", "--threads"),
}
# What another build of the engine moves by itself: where it was asked for these are its doing. The
# size of the cache and effective direct I/O are settings of both, so they must be equal.
_MOVED_BY_BUILD = ("engine_build_id", "arena_bytes")
# what only newer engines say, of what older ones could do in one way only
_SAID_BY_NEWER = ("evict",)
_HASH = re.compile(r"[0-9a-f]{40,}")
# Differences that count as unasked when the command lines are unknown: nothing shows the intention.
_SUSPECT_WITHOUT_ARGV = (
    "model_sha256",
    "model",
    "engine_build_id",
    "text_sha256",
    "prompt_tokens",
    "direct_io",
    "dense_weights",
)


@dataclass(frozen=True)
class Comparison:
    """`differing`: measured in both and unequal. `one_sided`: measured in only one of the two."""

    differing: tuple[str, ...] = ()
    one_sided: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Nothing known speaks against equality (what neither cell measured cannot)."""
        return not self.differing and not self.one_sided

    @property
    def problems(self) -> tuple[str, ...]:
        return self.differing + self.one_sided


def compare_work(a: CellRecord, b: CellRecord, read_bytes_tolerance_pct: float) -> Comparison:
    """Work counters, text and its likelihood of two cells of one arm.

    Counts must be equal; bytes read may differ by `read_bytes_tolerance_pct` percent. Of an arm
    that reads ahead only what does not depend on timing is compared. A text that was given is equal
    whatever was computed, so that its likelihood is what shows it.
    """
    differing: list[str] = []
    one_sided: list[str] = []
    timed = reads_ahead(a)
    names = ["tokens"] if timed else [f.name for f in dataclasses.fields(a.counters)]
    for name in names:
        x, y = getattr(a.counters, name), getattr(b.counters, name)
        tolerance = read_bytes_tolerance_pct / 100 if name == "read_bytes" else 0.0
        if x is None and y is None:
            continue
        if x is None or y is None:
            one_sided.append(_only_in(name, a if y is None else b))
        elif abs(x - y) > tolerance * max(abs(x), abs(y)):
            differing.append(f"{name} {x} in {a.cell}, {y} in {b.cell}")
    if timed and drops(a):
        return Comparison(tuple(differing), tuple(one_sided))
    for name, x, y in (
        ("the text", a.output_sha256, b.output_sha256),
        ("the likelihood of the text", a.metrics.nll, b.metrics.nll),
    ):
        if (x is None) != (y is None):
            one_sided.append(_only_in(name, a if y is None else b))
        elif x != y:
            differing.append(f"{name} differs between {a.cell} and {b.cell}")
    return Comparison(tuple(differing), tuple(one_sided))


def reads_ahead(record: CellRecord) -> bool:
    """What is resident when an expert is needed depends on how fast reads were: hits, bytes."""
    ahead = flag_value(record.argv, "--prefetch") not in (None, "0")
    return ahead or flag_value(record.argv, "--predict-prefetch") is not None


def drops(record: CellRecord) -> bool:
    """The result depends on what is resident."""
    return flag_value(record.argv, "--drop-cold-experts") is not None


def work_is_known(record: CellRecord) -> bool:
    """At least the token count is there to compare."""
    return record.counters.tokens is not None


def compare_identity(a: CellRecord, b: CellRecord) -> Comparison:
    """Every identity field and the target: for two cells of one arm, where nothing may differ."""
    differing: list[str] = []
    one_sided: list[str] = []
    for name in _ASKED_BY:
        _compare_field(name, a, b, differing, one_sided)
    _compare_target(a, b, differing)
    return Comparison(tuple(differing), tuple(one_sided))


def unasked_differences(candidate: CellRecord, baseline: CellRecord) -> Comparison:
    """Identity fields in which two arms differ although no flag on their command lines differs.

    Without a command line (imported cells) only the model, the build, effective direct I/O and the
    residence of dense weights count. Where another engine was asked for, its build does not.
    """
    differing: list[str] = []
    one_sided: list[str] = []
    another = another_engine(candidate, baseline)
    for name, flags in _ASKED_BY.items():
        if candidate.argv and baseline.argv:
            asked = any(
                flag_value(candidate.argv, f) != flag_value(baseline.argv, f) for f in flags
            )
        else:
            asked = name not in _SUSPECT_WITHOUT_ARGV
        said = [getattr(record.identity, name) for record in (candidate, baseline)]
        if another:
            asked |= name in _MOVED_BY_BUILD or (name in _SAID_BY_NEWER and None in said)
        if not asked:
            _compare_field(name, candidate, baseline, differing, one_sided)
    _compare_target(candidate, baseline, differing)
    return Comparison(tuple(differing), tuple(one_sided))


def another_engine(a: CellRecord, b: CellRecord) -> bool:
    """Whether two cells were to run different engines."""
    return engine_asked(a) != engine_asked(b)


def engine_asked(record: CellRecord) -> str | None:
    """The SHA-256 of the engine that its cell brought; None: the campaign's engine."""
    return None if record.binary is None else record.binary.sha256


def work_in_words(candidate: CellRecord, baseline: CellRecord) -> tuple[str, ...]:
    """How the work and the text of two arms differ: their settings make them, so it is no fault.

    Speed is never to be judged by these alone; they say how it came about.
    """
    found: list[str] = []
    c, b = candidate.metrics, baseline.metrics
    measures = (
        (c.hit_rate, b.hit_rate, 100.0, "% of requests hit"),
        (c.bytes_per_token, b.bytes_per_token, 2.0**-20, "MiB/token read"),
        (c.spec_bytes_per_token, b.spec_bytes_per_token, 2.0**-20, "MiB/token of it ahead"),
        (c.spec_useful_share, b.spec_useful_share, 100.0, "% of the experts read ahead useful"),
        (c.dropped_share, b.dropped_share, 100.0, "% of routed experts dropped"),
        (c.given_perplexity, b.given_perplexity, 1.0, "given perplexity"),
    )
    for x, y, factor, words in measures:
        if x is not None and x != y:
            against = "" if y is None else f" (baseline {y * factor:.2f})"
            found.append(f"{x * factor:.2f} {words}{against}")
    notes = [f"what {candidate.cell} did: {', '.join(found)}"] if found else []
    texts = {candidate.output_sha256, baseline.output_sha256}
    # of another engine more is said beside its verdict
    if None not in texts and len(texts) > 1 and not another_engine(candidate, baseline):
        notes.append("the candidate generated another text than the baseline")
        if drops(candidate) or drops(baseline):
            notes[-1] += ": under dropping it depends on which experts are resident"
    off = candidate.predictor_disarmed
    if off is not None:
        notes.append(
            f"the engine switched the predictor of {candidate.cell} off after {off.after_slots} "
            f"slots (its control read {off.control:.1%}): the rest ran without prediction"
        )
    return tuple(notes)


def flag_value(argv: tuple[str, ...], flag: str) -> str | None:
    """The argument after the last `flag`; "" when it stands alone; None when it is absent."""
    value = None
    for i, word in enumerate(argv):
        if word == flag:
            following = argv[i + 1] if i + 1 < len(argv) else ""
            value = "" if following.startswith("-") else following
        elif word.startswith(f"{flag}=") and flag.startswith("--"):
            value = word[len(flag) + 1 :]
    return value


def _compare_field(
    name: str, a: CellRecord, b: CellRecord, differing: list[str], one_sided: list[str]
) -> None:
    x, y = getattr(a.identity, name), getattr(b.identity, name)
    if x is None and y is None:
        return
    if x is None or y is None:
        one_sided.append(_only_in(name, a if y is None else b))
    elif x != y:
        differing.append(f"{name} is {_short(x)} in {a.cell}, {_short(y)} in {b.cell}")


def _compare_target(a: CellRecord, b: CellRecord, differing: list[str]) -> None:
    if a.target != b.target:
        differing.append(
            f"{a.cell} ran on {a.target.kind} {a.target.name}, "
            f"{b.cell} on {b.target.kind} {b.target.name}"
        )


def _only_in(name: str, record: CellRecord) -> str:
    return f"{name} is recorded for {record.cell} only"


def _short(value: Any) -> str:
    """Hashes at a readable length; names of models are as long as they are."""
    return value[:12] if _HASH.fullmatch(str(value)) else str(value)
