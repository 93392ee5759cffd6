"""Architectures that synthetic models can have: the tensors and metadata llama.cpp asks for. Pure.

Each brings what the engine meets in the field: biases, fused tensors, shared experts, leading dense
layers, experts of two types, recurrent layers, sliding windows. One module for each family.
"""

from __future__ import annotations

from harness.errors import UsageError
from harness.models.architectures.base import Architecture
from harness.models.architectures.deepseek2 import DEEPSEEK2
from harness.models.architectures.gemma4 import GEMMA4
from harness.models.architectures.gpt_oss import GPT_OSS
from harness.models.architectures.laguna import LAGUNA
from harness.models.architectures.lfm2moe import LFM2MOE
from harness.models.architectures.qwen import QWEN2MOE, QWEN3MOE, QWEN3NEXT, QWEN35MOE

__all__ = ["ARCHITECTURES", "Architecture", "architecture"]

# by the name that llama.cpp knows them by
ARCHITECTURES: dict[str, Architecture] = {
    "qwen3moe": QWEN3MOE,
    "qwen2moe": QWEN2MOE,
    "qwen3next": QWEN3NEXT,
    "qwen35moe": QWEN35MOE,
    "gpt-oss": GPT_OSS,
    "gemma4": GEMMA4,
    "laguna": LAGUNA,
    "deepseek2": DEEPSEEK2,
    "lfm2moe": LFM2MOE,
}


def architecture(name: str) -> Architecture:
    """An architecture by name. UsageError lists the known ones."""
    found = ARCHITECTURES.get(name)
    if found is None:
        raise UsageError(f"model.arch: {name!r} is none of {', '.join(ARCHITECTURES)}")
    return found
