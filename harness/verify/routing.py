"""From the router's input to ids and weights, twice. Pure.

*In steps*: each stage from what the engine had before it, in ggml's float32 operations; where
those are fixed by IEEE 754 (addition, division, one rounding of a sum of doubles) the result is the
same bit by bit. *On its own*: from the router's input alone, in float64, with a bound on what
float32 sums, in any order of at least four lanes, can differ from it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.verify.libm import expf
from harness.verify.numbers import F32, F64, I32, SMALLEST, UNIT, Bool, any_in_row, wide
from harness.verify.rounding import rounded
from harness.verify.rules import Gate, Rule

# the least that a sum is divided by (ggml's clamp): the smallest normal float16
LEAST_SUM = np.float32(6.103515625e-5)


@dataclass(frozen=True)
class Router:
    """The weights of a router."""

    matrix: F32  # [experts, width]
    type: str
    bias: F32 | None = None  # of the logits
    selection_bias: F32 | None = None  # of the scores, where experts are chosen


# --- in ggml's steps ------------------------------------------------------------------------------


def exact_gate(gate: Gate, logits: F32, bias: F32 | None) -> F64:
    """What the gate's float32 kernel approximates, for logits as they are."""
    if bias is not None:
        logits = logits + bias
    if gate == "softmax_of_selected":
        return wide(logits)  # the gate comes after the selection
    if gate == "sigmoid":
        return 1 / (1 + np.exp(-wide(logits)))
    return softmax(logits)


def softmax(logits: F32) -> F64:
    """Of each row; the largest is subtracted in float32, as ggml does."""
    powers = np.exp(wide(logits - logits.max(axis=-1, keepdims=True)))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True), dtype=np.float64)


@dataclass(frozen=True)
class Selection:
    """The scores that experts are chosen by, and rows in which equal scores leave it open."""

    scores: F32  # those of excluded groups are -inf
    tied: Bool

    def allows(self, ids: I32) -> Bool:
        """Rows whose ids are the best, in order; any of several equal ones may stand for others."""
        k = ids.shape[1]
        best = -np.sort(-self.scores, axis=1)[:, :k]
        taken = np.take_along_axis(self.scores, ids, axis=1)
        distinct = np.array([len(set(row)) == k for row in ids.tolist()])
        allowed: Bool = (taken == best).all(axis=1) & np.isfinite(taken).all(axis=1) & distinct
        return allowed


def selection(rule: Rule, router: Router, probs: F32, k: int) -> Selection:
    """From the engine's own probabilities: float32 additions and comparisons, so exact."""
    scores = probs if router.selection_bias is None else probs + router.selection_bias
    tied = np.zeros(len(scores), dtype=np.bool_)
    if rule.n_groups > 1:
        sums = wide(group_sums(rule, wide(scores)).astype(np.float32))
        kept, tied = best_groups(rule, sums)
        scores = np.where(spread(rule, kept, scores.shape[1]), scores, np.float32(-np.inf))
    ordered = -np.sort(-scores, axis=1)[:, : k + 1]
    tied = tied | ((ordered[:, 1:] == ordered[:, :-1]) & np.isfinite(ordered[:, 1:])).any(axis=1)
    return Selection(scores, tied)


def group_sums(rule: Rule, scores: F64) -> F64:
    """A group counts by the sum of its two best experts."""
    grouped = scores.reshape(len(scores), rule.n_groups, -1)
    return np.asarray(np.sort(grouped, axis=2)[:, :, -2:].sum(axis=2), dtype=np.float64)


def best_groups(rule: Rule, sums: F64) -> tuple[Bool, Bool]:
    """The groups that stay, and rows in which the last of them equals the first that does not."""
    ordered = -np.sort(-sums, axis=1)
    last, first_out = ordered[:, rule.n_groups_used - 1], ordered[:, rule.n_groups_used]
    return sums >= last[:, None], last == first_out


def spread(rule: Rule, groups: Bool, n_expert: int) -> Bool:
    """Of each expert, whether its group stays."""
    return np.repeat(groups, n_expert // rule.n_groups, axis=1)


def weights_in_steps(rule: Rule, probs: F32, ids: I32) -> F32:
    """Of the engine's own probabilities and ids, in ggml's float32 operations."""
    weights: F32 = np.take_along_axis(probs, ids, axis=1)
    if rule.gate == "softmax_of_selected":
        shifted = weights - weights.max(axis=1, keepdims=True)
        powers = expf(shifted)
        weights = powers * np.reciprocal(_sum(powers)).astype(np.float32)
    if rule.normalised:
        total: F32 = np.maximum(_sum(weights).astype(np.float32), LEAST_SUM)
        weights = weights / total
    if rule.scale is not None:
        weights = weights * np.float32(rule.scale)
    return weights


def _sum(values: F32) -> F64:
    """Of each row, from the left, in double precision."""
    total = np.zeros((len(values), 1))
    for column in wide(values).T:
        total += column[:, None]
    return total


# --- on its own -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recomputed:
    """Routing in float64 from the router's input, and what float32 may differ from it."""

    logits: F64
    logit_bound: F64  # absolute
    ids: I32
    open_rows: Bool  # decided by less than the bound
    margin: F64  # of each row: the least difference that decided, over its bound
    scores: F64  # those of excluded groups are -inf
    score_bound: F64
    open_groups: Bool  # rows in which the choice of groups is what is open

    def explains(self, ids: I32) -> Bool:
        """Rows in which other ids than ours can come from roundings alone."""
        best = np.take_along_axis(self.scores, self.ids, axis=1)
        theirs = np.take_along_axis(self.scores, ids, axis=1)
        slack = np.take_along_axis(self.score_bound, self.ids, axis=1)
        slack = slack + np.take_along_axis(self.score_bound, ids, axis=1)
        near = ~any_in_row(~(best - theirs <= slack))
        return np.asarray(self.open_rows & (near | self.open_groups), dtype=np.bool_)


def recompute(rule: Rule, router: Router, x: F32, k: int) -> Recomputed:
    """Logits, ids and the rows in which a rounding could have decided otherwise."""
    inputs = wide(rounded(x, router.type))
    matrix = wide(router.matrix)
    logits = inputs @ matrix.T
    steps = x.shape[1] / 4 + 8
    bound = steps * UNIT * (np.abs(inputs) @ np.abs(matrix.T))
    with_bias, bias_bound = logits, bound
    if router.bias is not None:
        with_bias = logits + wide(router.bias)
        bias_bound = bound + UNIT * np.abs(with_bias)
    scores, score_bound = _scores(rule.gate, with_bias, bias_bound)
    if router.selection_bias is not None:
        scores = scores + wide(router.selection_bias)
        score_bound = score_bound + UNIT * np.abs(scores)
    margin = np.full(len(x), np.inf)
    open_groups = np.zeros(len(x), dtype=np.bool_)
    if rule.n_groups > 1:
        sums = group_sums(rule, scores)
        kept, _ = best_groups(rule, sums)
        slack = 2 * score_bound.max(axis=1) + UNIT * np.abs(sums).max(axis=1)
        inside = np.where(kept, sums, np.inf).min(axis=1)
        outside = np.where(kept, -np.inf, sums).max(axis=1)
        margin = (inside - outside) / (2 * slack)
        open_groups = margin <= 1
        stays = spread(rule, kept, scores.shape[1])
        scores = np.where(stays, scores, -np.inf)
    order = np.argsort(-scores, axis=1, kind="stable")
    ids = order[:, :k].astype(np.int32)
    chain = order[:, : k + 1]
    values = np.take_along_axis(scores, chain, axis=1)
    slacks = np.take_along_axis(score_bound, chain, axis=1)
    with np.errstate(invalid="ignore"):
        gaps = (values[:, :-1] - values[:, 1:]) / (slacks[:, :-1] + slacks[:, 1:])
    gaps = np.where(np.isfinite(values[:, 1:]), gaps, np.inf)
    margin = np.minimum(margin, gaps.min(axis=1, initial=np.inf))
    near = margin <= 1
    return Recomputed(logits, bound, ids, near, margin, scores, score_bound, open_groups)


def _scores(gate: Gate, logits: F64, bound: F64) -> tuple[F64, F64]:
    if gate == "softmax_of_selected":
        return logits, bound
    if gate == "sigmoid":
        scores = 1 / (1 + np.exp(-logits))
        # its slope changes by a factor of exp(d) at most over a distance d; the kernel: 4 places
        slope = scores * (1 - scores) * np.exp(bound)
        return scores, bound * slope + 8 * UNIT * scores
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    scores = powers / powers.sum(axis=1, keepdims=True)
    worst = bound.max(axis=1, keepdims=True)
    return scores, scores * (np.expm1(2 * worst) + 16 * UNIT) + SMALLEST


def weights_alone(rule: Rule, logits: F64, ids: I32) -> F64:
    """Of logits with their bias, in float64."""
    chosen = np.take_along_axis(logits, ids, axis=1)
    if rule.gate == "softmax":
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        weights = np.take_along_axis(powers / powers.sum(axis=1, keepdims=True), ids, axis=1)
    elif rule.gate == "sigmoid":
        weights = 1 / (1 + np.exp(-chosen))
    else:
        powers = np.exp(chosen - chosen.max(axis=1, keepdims=True))
        weights = powers / powers.sum(axis=1, keepdims=True)
    if rule.normalised:
        weights = weights / np.maximum(weights.sum(axis=1, keepdims=True), float(LEAST_SUM))
    return np.asarray(weights * (rule.scale or 1.0), dtype=np.float64)


def weight_bound(router: Router, alone: Recomputed, logits: F64) -> F64:
    """The largest relative error of each row's float32 weights.

    Errors of at most d in the logits change a quotient of their exponentials, or of sums of these,
    by a factor of exp(2 d) at most; the rest is for the kernels of exp and the divisions.
    """
    bound = alone.logit_bound
    if router.bias is not None:
        bound = bound + UNIT * np.abs(logits)
    return np.asarray(np.expm1(2 * bound.max(axis=1)) + 32 * UNIT, dtype=np.float64)
