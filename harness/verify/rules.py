"""How each architecture routes and what its experts compute: llama.cpp's graphs, as a table. Pure.

What an architecture leaves to its metadata is read there; what its graph fixes stands here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from harness.errors import UsageError

Gate = Literal["softmax", "sigmoid", "softmax_of_selected"]
# the codes of `expert_gating_func`
GATES: dict[int, Gate] = {1: "softmax", 2: "sigmoid", 3: "softmax_of_selected"}
Metadata = Callable[[str], Any]


@dataclass(frozen=True)
class Rule:
    """One architecture's MoE layer.

    `normalised`: a token's weights are divided by their sum; `scale` multiplies them afterwards.
    `n_groups` above 1: only experts of the best `n_groups_used` groups can be selected.
    `own_router_input`: the router sees the normed input under other weights than the experts.
    """

    gate: Gate
    normalised: bool
    scale: float | None = None
    n_groups: int = 1
    n_groups_used: int = 1
    activation: Literal["silu", "gelu", "swiglu_oai"] = "silu"
    own_router_input: bool = False


@dataclass(frozen=True)
class Facts:
    """What a rule depends on; `key` gives metadata without the architecture's prefix, or None."""

    key: Metadata
    n_layer: int
    n_vocab: int | None

    def gate(self, default: int | None = None) -> Gate:
        """The stored gate; UsageError when there is none and no default, or an unknown one."""
        code = self.key("expert_gating_func") or default
        gate = GATES.get(code) if code is not None else None
        if gate is None:
            raise UsageError(f"expert_gating_func {code} cannot be verified")
        return gate

    def normalised(self) -> bool:
        """As stored; false where nothing is."""
        return bool(self.key("expert_weights_norm"))

    def scale(self) -> float | None:
        """As stored; llama.cpp takes 0 for none too."""
        scale = self.key("expert_weights_scale")
        return float(scale) if scale not in (None, 0.0, 1.0) else None


def _laguna(facts: Facts) -> Rule:
    return Rule(facts.gate(2), facts.normalised(), facts.scale())


def _deepseek2(facts: Facts) -> Rule:
    # a GLM of these sizes stores no gate, and has the other one
    glm = facts.n_layer in (47, 48) and facts.n_vocab == 154880
    return Rule(facts.gate(2 if glm else 1), facts.normalised(), facts.scale())


ARCHITECTURES: dict[str, Callable[[Facts], Rule]] = {
    "qwen2moe": lambda facts: Rule("softmax", False),
    "qwen3moe": lambda facts: Rule("softmax", True),
    "qwen3next": lambda facts: Rule("softmax", True),
    "qwen35moe": lambda facts: Rule("softmax", True),
    "gpt-oss": lambda facts: Rule("softmax_of_selected", False, activation="swiglu_oai"),
    "gemma4": lambda facts: Rule("softmax", True, activation="gelu", own_router_input=True),
    "laguna": _laguna,
    "deepseek2": _deepseek2,
    "lfm2moe": lambda facts: Rule(facts.gate(), True),
}


def rule_of(arch: str, facts: Facts) -> Rule:
    """The rule of a model. UsageError for an architecture or a gate that is not in the tables."""
    if arch not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UsageError(f"architecture {arch} cannot be verified; those that can are {known}")
    rule = ARCHITECTURES[arch](facts)
    n_groups = facts.key("expert_group_count") or 1
    if n_groups == 1:
        return rule
    used = facts.key("expert_group_used_count") or 1
    return replace(rule, n_groups=n_groups, n_groups_used=used)
