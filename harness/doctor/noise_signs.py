"""What the noise of a short A/A means for verdicts, in words. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable

from harness.doctor.noise import CONFIDENCE, RULES, Noise, ProbeSpread
from harness.doctor.resolution import POWER, Resolution
from harness.doctor.signs import Level, Sign
from harness.words import counted

# a spread beyond this leaves pairs to tell nothing smaller than about it
_LARGE_SPREAD = 0.05
# of the neighbours or candidates: below, four-cell sessions are mostly unreadable
_MOSTLY = 0.5
# of the cells
_MANY_CONTAMINATED = 0.25
_TOO_NOISY_PCT = 10.0
# four-cell sessions judge no cell below this (FourCellSettings.min_decode_s)
_LEAST_DECODE_S = 1.0
_QUIET = "end other programs, and pause longer between cells (schedule.spacing_s)"


def noise_signs(noise: Noise, resolution: Resolution | None, *, stable_pct: float) -> list[Sign]:
    """Worst news are not put first here: the order is that of the argument."""
    return [
        *_failed(noise),
        *_length(noise),
        *_spread(noise),
        *_drift(noise, stable_pct),
        *_probes(noise),
        *_contaminated(noise),
        *_blind(noise),
        *_four_cell(noise),
        *_pairs(resolution),
    ]


def _failed(noise: Noise) -> Iterable[Sign]:
    if noise.failed:
        of = noise.cells + len(noise.failed)
        yield Sign(
            "failure",
            "A/A",
            f"{len(noise.failed)} of {counted(of, 'cell')} gave no speed; {noise.failed[0]}",
            "campaigns will lose cells here too",
            "look at stderr.txt and launcher.txt of the cell",
        )


def _length(noise: Noise) -> Iterable[Sign]:
    if noise.decode_s is None or noise.tokens is None:
        return
    seen = (
        f"{counted(noise.tokens, 'token')} at {noise.tok_s or 0:.1f} tok/s: {noise.decode_s:.2f} s"
    )
    if noise.decode_s < _LEAST_DECODE_S:
        longer = 100 * round(2.0 * noise.tokens / noise.decode_s / 100 + 0.5)
        yield Sign(
            "warning",
            "length of cells",
            seen,
            f"sessions of four cells judge none below {_LEAST_DECODE_S:g} s",
            f"cell.n_predict={longer} cell.n_ctx={2 * longer}",
        )
    else:
        yield Sign("ok", "length of cells", seen, "long enough to be judged")


def _spread(noise: Noise) -> Iterable[Sign]:
    spread = noise.spread
    if spread is None:
        yield Sign(
            "note",
            "spread",
            f"{counted(noise.cells, 'cell')}: too few to tell",
            "how much cells differ by themselves is not known",
            "--minutes 2",
        )
        return
    low, high = spread.interval
    large = spread.log_sd > _LARGE_SPREAD
    tokens = "" if noise.token_log_sd is None else f"; single tokens {_pct(noise.token_log_sd)}"
    yield Sign(
        "warning" if large else "ok",
        "spread",
        f"{_pct(spread.log_sd)} between {counted(spread.cells, 'cell')} of equal settings "
        f"({CONFIDENCE:.0%}: {_pct(low)} to {_pct(high)}){tokens}",
        f"two single cells easily differ by {_more(2 * 2**0.5 * spread.log_sd)} for no reason",
        _QUIET if large else None,
    )


def _drift(noise: Noise, stable_pct: float) -> Iterable[Sign]:
    if noise.drift_pct is None:
        return
    moved = abs(noise.drift_pct) > stable_pct
    yield Sign(
        "warning" if moved else "ok",
        "drift",
        f"{noise.drift_pct:+.1f} % tok/s from the first cells to the last",
        f"beyond verdict.stable_pct={stable_pct:g}: only randomised pairs can be read"
        if moved
        else f"within verdict.stable_pct={stable_pct:g}",
        "+experiment=sequential_pairs, or longer pauses (schedule.spacing_s)" if moved else None,
    )


# --- probes --------------------------------------------------------------------------------------


def _probes(noise: Noise) -> Iterable[Sign]:
    if noise.compute_probe is None:
        yield Sign(
            "warning",
            "probes",
            "did not run",
            "without them nothing shows the speed of the device itself",
            "schedule.probe_s=1",
        )
    else:
        yield _probe("compute probe", noise.compute_probe, "verdict.probe_tolerance_pct")
    if noise.read_probe is not None:
        yield _probe("read probe", noise.read_probe, "verdict.read_probe_tolerance_pct")
        if noise.reads_direct is False:
            yield Sign(
                "warning",
                "read probe",
                "its reads are not direct",
                "it shows the page cache as much as the storage",
                "keep the model on a filesystem with direct reads",
            )


def _probe(about: str, probe: ProbeSpread, setting: str) -> Sign:
    level: Level = "ok" if probe.readable >= _MOSTLY else "warning"
    within = round(probe.readable * probe.neighbours)
    return Sign(
        level,
        about,
        f"neighbouring cells {probe.median_gap_pct:.1f} % apart (median; at most "
        f"{probe.largest_gap_pct:.1f} %), {within} of {probe.neighbours} within the "
        f"{probe.tolerance_pct:g} % allowed",
        "where sensors are missing, cells can be compared by it"
        if level == "ok"
        else "where sensors are missing, most pairs of cells cannot be compared",
        None if level == "ok" else f"{_QUIET}; the tolerance is {setting}",
    )


# --- contamination -------------------------------------------------------------------------------


def _contaminated(noise: Noise) -> Iterable[Sign]:
    if not noise.cells:
        return
    n = len(noise.contaminated)
    if not n:
        yield Sign(
            "ok",
            "contamination",
            f"none of {counted(noise.cells, 'cell')}",
            "hardly a pair will have to be replaced",
        )
        return
    rules = ", ".join(f"{RULES[rule]} ({count}, {rule})" for rule, count in noise.by_rule.items())
    yield Sign(
        "warning" if n / noise.cells > _MANY_CONTAMINATED else "note",
        "contamination",
        f"{n} of {counted(noise.cells, 'cell')}: {rules or 'by several rules together'}; "
        f"as in {noise.contaminated[0]}",
        f"about {1 - (1 - n / noise.cells) ** 2:.0%} of pairs would be replaced: campaigns take "
        "longer",
        "docs/contamination.md says what each rule looks at",
    )


def _blind(noise: Noise) -> Iterable[Sign]:
    if noise.blind:
        rules = ", ".join(f"{rule} ({RULES[rule]})" for rule in noise.blind)
        yield Sign(
            "note",
            "contamination",
            f"nothing recorded for: {rules}",
            "these rules find nothing here; the traces and the probes have to",
        )


# --- designs -------------------------------------------------------------------------------------


def _four_cell(noise: Noise) -> Iterable[Sign]:
    found = noise.four_cell
    if found is None:
        return
    share = found.readable / found.candidates
    why = f"; else {found.reasons[0][0]}" if found.reasons else ""
    bar = "" if found.bar_pct is None else f"shows effects beyond {found.bar_pct:.0f} %"
    accused = f"; {found.accused} of them held for an effect, wrongly" if found.accused else ""
    yield Sign(
        "ok" if share >= _MOSTLY and not found.accused else "warning",
        "four-cell sessions",
        f"{found.readable} of {found.candidates} candidates readable in {found.sessions} "
        f"{'overlapping sessions' if found.sessions > 1 else 'session'}{accused}{why}",
        f"+experiment=matched_pair can be read here{bar and f', and {bar}'}"
        if share >= _MOSTLY
        else f"+experiment=matched_pair is mostly unreadable here{bar and f'; at best it {bar}'}",
        None if share >= _MOSTLY and not found.accused else "+experiment=sequential_pairs",
    )


def _pairs(resolution: Resolution | None) -> Iterable[Sign]:
    about = "pairs"
    if resolution is None:
        yield Sign(
            "note",
            about,
            "too few cells to say how small an effect they tell",
            "not known",
            "--minutes 2, or +experiment=aa and then python -m harness power",
        )
        return
    r = resolution
    if r.method == "simulated":
        how = f"simulated on these cells, at most {r.campaigns} campaigns for each effect"
        false = "" if r.false_share is None else f"; with no effect {r.false_share:.0%} win or lose"
        again = "" if r.replaced is None else f", {r.replaced:.0%} of pairs are replaced"
        seen = f"{smallest_in_words(r)} in {POWER:.0%} of campaigns{false}{again} ({how})"
    else:
        thumb = "by a rule of thumb, as if no pair were replaced"
        seen = f"roughly {smallest_in_words(r)}: {thumb} ({r.why_rough})"
    if r.likely_pct is not None:
        low, high = r.likely_pct
        seen += f"; {figure(low)} to {figure(high)} %, as few cells show the spread no better"
    yield Sign(
        "warning" if too_noisy(r) else "ok",
        about,
        seen,
        f"+experiment=sequential_pairs tells such an effect within {budget_in_words(r)}",
        "for a better figure: +experiment=aa, then python -m harness power",
    )


def too_noisy(r: Resolution) -> bool:
    """Only effects that are seen without a harness can be told."""
    smallest = r.above_pct if r.smallest_pct is None else r.smallest_pct
    return smallest is not None and smallest > _TOO_NOISY_PCT


def smallest_in_words(r: Resolution) -> str:
    """The effect, or beyond what it is."""
    if r.smallest_pct is not None:
        return f"{figure(r.smallest_pct)} %" + (f" ±{r.se_pct:.1g}" if r.se_pct is not None else "")
    if r.below_pct is not None:
        return f"less than {figure(r.below_pct)} %"
    return f"more than {figure(r.above_pct or 0.0)} %"


def budget_in_words(r: Resolution) -> str:
    """Pairs, and minutes where the length of a cell is known."""
    words = f"{r.budget_pairs} pairs"
    if r.budget_min is None:
        return words
    return f"{words} ({_minutes(r.budget_min)} at most, with {r.spacing_s:g} s between cells)"


def _minutes(minutes: float) -> str:
    return f"{minutes:.0f} min" if minutes >= 2 else f"{60 * minutes:.0f} s"


def _more(log_ratio: float) -> str:
    """The larger against the smaller."""
    if log_ratio > math.log(2):
        return "a factor of two or more"
    return f"{figure(100 * math.expm1(log_ratio))} %"


def _pct(log_sd: float) -> str:
    return f"{figure(100 * log_sd)} %"


def figure(percent: float) -> str:
    """Two digits, and no exponent."""
    return f"{percent:.0f}" if percent >= 10 else f"{percent:.2g}"
