"""The checks of one layer. What each claims is in docs/verify.md. Reads the model's file only."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from harness.errors import UsageError
from harness.typed import say
from harness.verify import libm, limits, routing
from harness.verify.dump import Dump
from harness.verify.experts import weighted_sum
from harness.verify.numbers import F64, Bool, any_in_row, same_bits, ulps, wide
from harness.verify.report import Check, Number, Report
from harness.verify.routing import Router
from harness.verify.rules import Rule
from harness.verify.tensors import LayerTensors, open_layer


# What is not a number passes no comparison below: a damaged weight is a finding, not a warning.
@np.errstate(all="ignore")
def verify_layer(model: Path, layer: int, dump: Dump, *, same_machine: bool) -> Report:
    """Hold a dump against the model's weights. UsageError when they do not belong together.

    `same_machine`: the engine ran on this one, so with the same C library.
    """
    arch, rule, tensors = open_layer(model, layer)
    router = Router(
        tensors.whole("ffn_gate_inp.weight"),
        tensors.type("ffn_gate_inp.weight"),
        tensors.optional("ffn_gate_inp.bias"),
        tensors.optional("exp_probs_b.bias"),
    )
    _belongs(dump, arch, layer, router)
    alone = routing.recompute(rule, router, dump.router_input, dump.top_k)
    checks = [
        _router_input(rule, tensors, dump),
        _logits(alone, dump),
        _probs(rule, router, dump),
        _ids(rule, router, dump),
        _ids_alone(alone, dump),
        _weights(rule, dump, same_machine and libm.is_there()),
        _weights_alone(rule, router, alone, dump),
        _output(rule, tensors, dump),
        _output_as_ggml(rule, tensors, dump),
    ]
    types = tensors.expert_types()
    n = dump.n_expert
    rows = len(dump.positions)
    return Report(str(model), dump.model, arch, layer, types, n, dump.top_k, rows, checks)


def _belongs(dump: Dump, arch: str, layer: int, router: Router) -> None:
    ours = (arch, layer, *router.matrix.shape)
    theirs = (dump.arch, dump.layer, dump.n_expert, dump.router_input.shape[1])
    if ours != theirs:
        raise UsageError(
            f"the dump is of another model, {say(dump.model)}: architecture, layer, experts and "
            f"width are {', '.join(map(say, theirs))}, not {', '.join(map(say, ours))}"
        )
    if dump.routing_edited:
        raise UsageError(
            "the dump is of a run that forced or dropped routes, so its ids and weights are not "
            "the router's; run without --forced-routes and --drop-cold-experts"
        )


def _first(wrong: Bool, dump: Dump) -> str:
    """Where to look: the position of the first row that fails, after a count."""
    n = int(wrong.sum())
    if n == 0:
        return ""
    at = dump.positions[int(wrong.argmax())]
    return (
        f"; 1 row fails, at position {at}"
        if n == 1
        else f"; {n} rows fail, the first at position {at}"
    )


def _router_input(rule: Rule, tensors: LayerTensors, dump: Dump) -> Check:
    name = "router input"
    if not rule.own_router_input:
        wrong = any_in_row(~same_bits(dump.router_input, dump.input))
        found = "the experts' input, bit by bit" + _first(wrong, dump)
        return Check(name, not wrong.any(), found, {"rows_that_differ": int(wrong.sum())})
    # both are the normed residual, under weights of their own
    weight = wide(tensors.whole("pre_ffw_norm_2.weight"))
    scale = wide(tensors.whole("ffn_gate_inp.scale"))
    if not weight.all():
        raise UsageError("pre_ffw_norm_2.weight has zeros: the router's input cannot be recomputed")
    expected = wide(dump.input) / weight * scale / dump.input.shape[1] ** 0.5
    error = np.abs(wide(dump.router_input) - expected) / np.maximum(np.abs(expected), 1e-30)
    wrong = any_in_row(~(error <= limits.ROUTER_INPUT_ERROR))
    return Check(
        name,
        not wrong.any(),
        f"follows from the experts' input within {error.max():.1e}" + _first(wrong, dump),
        {"relative_error": float(error.max())},
        {"relative_error": limits.ROUTER_INPUT_ERROR},
    )


def _logits(alone: routing.Recomputed, dump: Dump) -> Check:
    distance = np.abs(wide(dump.logits) - alone.logits)
    # a row of zeros has a bound of zero, and must be met
    share = np.where(distance == 0, 0.0, distance / np.maximum(alone.logit_bound, 1e-300))
    wrong = any_in_row(~(share <= 1))
    found = f"within what float32 sums can differ by: {share.max():.3f} of the bound at most"
    return Check(
        "logits",
        not wrong.any(),
        found + _first(wrong, dump),
        {"error_by_bound": float(share.max()), "error": float(distance.max())},
        {"error_by_bound": 1.0},
    )


def _probs(rule: Rule, router: Router, dump: Dump) -> Check:
    exact = routing.exact_gate(rule.gate, dump.logits, router.bias)
    limit = {
        "softmax": limits.SOFTMAX_ULPS,
        "sigmoid": limits.SIGMOID_ULPS,
        "softmax_of_selected": 0.0,
    }[rule.gate]
    distance = ulps(dump.probs, exact)
    wrong = any_in_row(~(distance <= limit))
    what = rule.gate if limit else "logits and their bias" if router.bias is not None else "logits"
    found = f"{what} of the engine's logits within {distance.max():.2g} ulp, {limit:g} allowed"
    if not limit:
        found = f"{what}, bit by bit"
    return Check(
        "probabilities",
        not wrong.any(),
        found + _first(wrong, dump),
        {"ulps": float(distance.max())},
        {"ulps": limit},
    )


def _ids(rule: Rule, router: Router, dump: Dump) -> Check:
    selection = routing.selection(rule, router, dump.probs, dump.top_k)
    right = selection.allows(dump.ids)
    tied = int(selection.tied.sum())
    found = (
        f"{right.sum()} of {right.size} rows equal to what the engine's probabilities select"
        f" ({tied} with equal ones)"
    )
    measured: dict[str, Number] = {
        "equal": int(right.sum()),
        "rows": int(right.size),
        "tied": tied,
    }
    return Check("ids", bool(right.all()), found + _first(~right, dump), measured)


def _ids_alone(alone: routing.Recomputed, dump: Dump) -> Check:
    same = (dump.ids == alone.ids).all(axis=1)
    wrong = ~same & ~alone.explains(dump.ids)
    near = int(alone.open_rows.sum())
    other = int((~same & ~wrong).sum())
    found = (
        f"{same.sum()} of {same.size} rows equal to what float64 selects from the router's input"
        f" ({near} near ties, {other} of them decided otherwise)"
    )
    measured: dict[str, Number] = {
        "equal": int(same.sum()),
        "rows": int(same.size),
        "near_ties": near,
        "near_ties_decided_otherwise": other,
        "least_margin_by_bound": float(alone.margin.min()),
    }
    return Check("ids from input", not wrong.any(), found + _first(wrong, dump), measured)


def _weights(rule: Rule, dump: Dump, same_libm: bool) -> Check:
    expected = routing.weights_in_steps(rule, dump.probs, dump.ids)
    equal = same_bits(expected, dump.weights)
    distance = ulps(dump.weights, wide(expected))
    measured: dict[str, Number] = {
        "equal": int(equal.sum()),
        "weights": int(equal.size),
        "ulps": float(distance.max()),
    }
    found = f"{equal.sum()} of {equal.size} equal bit by bit to ggml's float32 steps"
    # a kernel of ggml's own computes exp from eight selected experts on
    fixed = rule.gate != "softmax_of_selected" or (same_libm and dump.top_k < 8)
    if fixed:
        wrong = any_in_row(~equal)
        return Check("weights", not wrong.any(), found + _first(wrong, dump), measured)
    limit = limits.SELECTED_SOFTMAX_ULPS
    wrong = any_in_row(~(distance <= limit))
    found += f", all within {distance.max():.2g} ulp, {limit:g} allowed"
    return Check("weights", not wrong.any(), found + _first(wrong, dump), measured, {"ulps": limit})


def _weights_alone(rule: Rule, router: Router, alone: routing.Recomputed, dump: Dump) -> Check:
    logits = alone.logits if router.bias is None else alone.logits + wide(router.bias)
    expected = routing.weights_alone(rule, logits, dump.ids)
    error = np.abs(wide(dump.weights) - expected) / np.maximum(np.abs(expected), 1e-300)
    allowed = routing.weight_bound(router, alone, logits)
    wrong = any_in_row(~(error <= allowed[:, None]))
    found = f"those of float64 within {error.max():.1e}, {allowed.min():.1e} allowed at least"
    return Check(
        "weights from input",
        not wrong.any(),
        found + _first(wrong, dump),
        {"relative_error": float(error.max())},
        {"relative_error": float(allowed.min())},
    )


def _output(rule: Rule, tensors: LayerTensors, dump: Dump) -> Check:
    expected = weighted_sum(rule, tensors, dump, "float")
    return _compared("output", expected, dump, limits.widest(limits.PLAIN, tensors.expert_types()))


def _output_as_ggml(rule: Rule, tensors: LayerTensors, dump: Dump) -> Check:
    expected = weighted_sum(rule, tensors, dump, "as_ggml")
    types = tensors.expert_types()
    check = _compared(
        "output, rounded as ggml", expected, dump, limits.widest(limits.AS_GGML, types)
    )
    errors = _row_errors(expected, dump)
    experts = np.unique(dump.ids)
    best = [np.quantile(errors[(dump.ids == e).any(axis=1)], 0.1) for e in experts]
    worst = int(np.argmax(best))
    limit = limits.expert_limit(types)
    ok = bool(best[worst] <= limit)
    found = (
        f"{check.found}; a tenth of every expert's rows within {best[worst]:.1e}"
        f" (expert {experts[worst]}, {limit:g} allowed)"
    )
    measured = {
        **check.measured,
        "worst_expert": int(experts[worst]),
        "worst_expert_error": float(best[worst]),
    }
    allowed = {**check.limits, "worst_expert_error": limit}
    return Check(check.name, check.ok and ok, found, measured, allowed)


def _row_errors(expected: F64, dump: Dump) -> F64:
    size = np.linalg.norm(expected, axis=1)
    difference = np.linalg.norm(wide(dump.output) - expected, axis=1)
    with np.errstate(divide="ignore"):
        errors: F64 = np.where(difference == 0, 0.0, difference / size)
    return errors


def _compared(name: str, expected: F64, dump: Dump, limit: limits.Limit) -> Check:
    rows = _row_errors(expected, dump)
    size = float(np.linalg.norm(expected))
    whole = float(np.linalg.norm(wide(dump.output) - expected)) / max(size, 1e-300)
    correlation = _correlation(expected, wide(dump.output))
    wrong = ~(rows <= limit.row)
    ok = whole <= limit.whole and not wrong.any() and correlation >= limit.correlation
    found = (
        f"relative error {whole:.2g} ({limit.whole:g} allowed), worst row {rows.max():.2g}"
        f" ({limit.row:g}), 1 - correlation {1 - correlation:.1e} ({1 - limit.correlation:.1e})"
    )
    return Check(
        name,
        ok,
        found + _first(wrong, dump),
        {"relative_error": whole, "worst_row": float(rows.max()), "correlation": correlation},
        {
            "relative_error": limit.whole,
            "worst_row": limit.row,
            "correlation": limit.correlation,
        },
    )


def _correlation(a: F64, b: F64) -> float:
    """Pearson's, over all numbers; 1 when both are the same, 0 when only one is constant."""
    x, y = a.ravel() - a.mean(), b.ravel() - b.mean()
    size = float(np.linalg.norm(x) * np.linalg.norm(y))
    if size == 0:
        return 1.0 if np.array_equal(a, b) else 0.0
    return float(x @ y) / size
