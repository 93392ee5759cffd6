"""A candidate that runs another engine than the baseline: which builds these are, and whether both
computed the same. Pure.

Flags may change the result on purpose; a change of the code hardly ever does, so beside a win of
another build stands whether it wrote what the baseline wrote. Two cells are compared, one of each
arm: whether the cells of one arm agree among themselves is the verdict's own rule.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from harness.analysis.capped import decodes_given_text
from harness.analysis.counters import another_engine, drops, reads_ahead
from harness.analysis.outputs import Output, difference_in_words
from harness.findings import Likeness
from harness.planned import Arm, Plan
from harness.records import CellRecord
from harness.verdicts import CampaignVerdict, CandidateVerdict
from harness.words import counted

# what a cell wrote, by its index; asked only for cells that are compared
ReadOutputs = Callable[[Sequence[CellRecord]], Mapping[int, Output]]


def with_builds(
    verdict: CampaignVerdict, plan: Plan, records: Sequence[CellRecord], read: ReadOutputs
) -> CampaignVerdict:
    """The verdict with `output` and two more reasons of each candidate with an engine of its own.

    Of campaigns with one engine it is the same verdict.
    """
    return dataclasses.replace(
        verdict, verdicts=tuple(_candidate(v, plan, records, read) for v in verdict.verdicts)
    )


def _candidate(
    v: CandidateVerdict, plan: Plan, records: Sequence[CellRecord], read: ReadOutputs
) -> CandidateVerdict:
    own = [r for r in records if r.arm == v.candidate]
    its = [r for r in records if r.arm == v.baseline]
    if not own or not its or not another_engine(own[0], its[0]):
        return v
    likeness, detail = _likeness(own, its, plan, read)
    words = {
        "identical": f"the output is {v.baseline}'s: {detail}",
        "differs": f"THE OUTPUT DIFFERS from {v.baseline}'s: {detail}",
        "not shown": f"whether the output is {v.baseline}'s is not shown: {detail}",
    }[likeness]
    builds = f"engines: {_engine(own)}, the baseline's {_engine(its)}"
    return dataclasses.replace(v, output=likeness, reasons=(*v.reasons, words, builds))


def _engine(records: Sequence[CellRecord]) -> str:
    """The build as it calls itself, and its file's hash: a rebuilt one may keep its name."""
    known = next((r.identity for r in records if r.identity.engine_build_id), records[0].identity)
    sha256 = known.engine_sha256
    return f"build {known.engine_build_id or 'unknown'}" + (
        "" if sha256 is None else f" (SHA-256 {sha256[:8]}...)"
    )


def _likeness(
    own: Sequence[CellRecord], its: Sequence[CellRecord], plan: Plan, read: ReadOutputs
) -> tuple[Likeness, str]:
    for cells in (own, its):
        ran = [r for r in cells if r.status == "ok"]
        if not ran:
            return "not shown", f"no cell of {cells[0].arm} ran to its end"
        if any(drops(r) and reads_ahead(r) for r in ran):
            return "not shown", f"what {ran[0].arm} drops depends on the timing of its reads"
        if len({_result(r) for r in ran}) > 1:
            return "not shown", f"the cells of {ran[0].arm} do not agree among themselves"
    c, b = (next(r for r in cells if r.status == "ok") for cells in (own, its))
    if decodes_given_text(c):
        likeness, detail = _by_likelihood(c, b)
    else:
        likeness, detail = _by_tokens(c, b, read)
    if likeness == "differs" and not _same_settings(plan, c.arm, b.arm):
        return "not shown", f"it differs ({detail}), but so do other settings of the two"
    if likeness == "differs" and drops(c):
        detail += "; under dropping it depends on which experts each build keeps"
    return likeness, detail


def _result(record: CellRecord) -> tuple[str | None, float | None]:
    return record.output_sha256, record.metrics.nll


def _by_likelihood(c: CellRecord, b: CellRecord) -> tuple[Likeness, str]:
    """A given text is equal whatever was computed; how likely it was found is not."""
    own, its = c.metrics.nll, b.metrics.nll
    if own is None or its is None:
        return "not shown", "how likely the given text was found is not recorded"
    if own == its:
        return "identical", "the given text was found just as likely, to the last digit"
    return "differs", f"mean negative log-likelihood of the given text {own:.9g}, not {its:.9g}"


def _by_tokens(c: CellRecord, b: CellRecord, read: ReadOutputs) -> tuple[Likeness, str]:
    outputs = read([c, b])
    own, its = outputs.get(c.index), outputs.get(b.index)
    if own is None or its is None:
        return "not shown", f"{(c if own is None else b).cell} left no output"
    difference = difference_in_words(own, its, b.cell)
    if difference is not None:
        return "differs", difference
    tokens, size = counted(len(own.ids), "token"), counted(len(own.text), "byte")
    return "identical", f"{tokens}, {size}, all the same"


def _same_settings(plan: Plan, candidate: str, baseline: str) -> bool:
    arms = [plan.arms.get(name) for name in (candidate, baseline)]
    a, b = (None if arm is None else _but_for_its_engine(arm) for arm in arms)
    return a == b


def _but_for_its_engine(arm: Arm) -> Arm:
    return dataclasses.replace(arm, name="", binary=None, time_limit_s=0.0)
