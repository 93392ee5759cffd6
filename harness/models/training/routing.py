"""How predictable the routing of a trained model is: the two figures the field argues about."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from harness.models.training.model import Model


def _hits(guess: Tensor, truth: Tensor, count: int) -> float:
    """Share of the true slots that are among the guessed ones, for [N, k] expert ids."""
    a = torch.zeros(len(guess), count).scatter_(1, guess, 1.0)
    b = torch.zeros(len(truth), count).scatter_(1, truth, 1.0)
    return float((a * b).sum() / b.sum())


def predictability(model: Model, rows: np.ndarray) -> dict[str, float]:
    """Share of routed slots named by two simple predictors, over all layers and the windows given.

    `stale_gate`: the router of a layer applied to the router input of the layer before (from the
    second layer on). `previous_token`: the experts of the token before in the same layer.
    """
    seen: list[Tensor] = []
    handles = [
        block.experts.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        for block in model.blocks
    ]
    stale: list[float] = []
    previous: list[float] = []
    k, count = model.g.expert_used_count, model.g.expert_count
    with torch.no_grad():
        for row in rows:
            seen.clear()
            model.logits(torch.from_numpy(row)[None, :-1])
            gates = [block.experts.router for block in model.blocks]
            chosen = [gate(x).topk(k).indices for gate, x in zip(gates, seen, strict=True)]
            for layer, ids in enumerate(chosen):
                previous.append(_hits(ids[:-1], ids[1:], count))
                if layer:
                    stale.append(_hits(gates[layer](seen[layer - 1]).topk(k).indices, ids, count))
    for handle in handles:
        handle.remove()
    return {
        "stale_gate": round(float(np.mean(stale)), 4),
        "previous_token": round(float(np.mean(previous)), 4),
        "chance": round(k / count, 4),
    }
