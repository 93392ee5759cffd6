"""Sizes of synthetic models, by name. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from harness.errors import UsageError


@dataclass(frozen=True)
class Geometry:
    """Sizes of a model; lengths in elements."""

    about: str
    n_layer: int
    n_expert: int
    n_expert_used: int
    n_embd: int
    n_ff_expert: int
    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int = 64
    n_ctx: int = 4096


# widths are multiples of 256, so that every weight type fits; heads times their size is the width
GEOMETRIES: dict[str, Geometry] = {
    "tiny": Geometry("smallest: unit tests", 4, 8, 2, 256, 256),
    "small": Geometry("routing like a real model's", 4, 32, 4, 256, 256),
    "wide": Geometry(
        "megabytes per expert, 1.3 GiB in Q4_K", 16, 64, 8, 1024, 768, n_head=8, head_dim=128
    ),
    # the layers, experts and top-k of the published memory sweep, an expert 48 times smaller
    "epq": Geometry("the EPQ pager's 48 layers x 256 experts, narrow", 48, 256, 10, 256, 256),
}


def geometry(name: str) -> Geometry:
    """A geometry by name. UsageError lists the known ones."""
    found = GEOMETRIES.get(name)
    if found is None:
        raise UsageError(f"model.geometry: {name!r} is none of {', '.join(GEOMETRIES)}")
    return found
