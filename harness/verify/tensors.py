"""The weights of one MoE layer, dequantised by the `gguf` package. Reads the model's files only."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import UsageError
from harness.models.gguf_header import GgufHeader, Tensor
from harness.models.gguf_info import info_of, read_model
from harness.verify.numbers import F32
from harness.verify.rounding import ROUNDING
from harness.verify.rules import Facts, Rule, rule_of

EXPERTS = re.compile(r"ffn_(gate|up|down|gate_up)_exps\.(weight|bias|scale)")


class LayerTensors:
    """Tensors of one layer by their names without `blk.N.`; experts one at a time."""

    def __init__(self, headers: tuple[GgufHeader, ...], layer: int) -> None:
        """UsageError when the layer has no routed experts, or some of a kind unknown here."""
        prefix = f"blk.{layer}."
        self._found: dict[str, tuple[Path, Tensor]] = {}
        for header in headers:
            for tensor in header.tensors:
                if tensor.name.startswith(prefix):
                    name = tensor.name.removeprefix(prefix)
                    self._found[name] = (header.path, tensor)
        experts = [name for name in self._found if "exps." in name]
        if not any(name.endswith(".weight") for name in experts):
            raise UsageError(f"layer {layer} has no routed experts")
        for name in experts:
            if EXPERTS.fullmatch(name) is None:
                raise UsageError(f"layer {layer} has {prefix}{name}, which cannot be verified")
        for name in (*experts, "ffn_gate_inp.weight"):
            if (kind := self.type(name)) not in ROUNDING:
                kinds = ", ".join(ROUNDING)
                raise UsageError(f"{prefix}{name} is {kind}; what can be verified is {kinds}")

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def type(self, name: str) -> str:
        """The tensor's type as GGUF calls it. UsageError when it is not there."""
        return self._get(name)[1].type.name

    def expert_types(self) -> list[str]:
        """Types of the experts' matrices, each once."""
        names = [n for n in self._found if "exps.weight" in n]
        return sorted({self.type(name) for name in names})

    def whole(self, name: str) -> F32:
        """All of a tensor, the row length last."""
        path, tensor = self._get(name)
        return self._read(path, tensor, 0, tensor.n_bytes).reshape(tensor.dims[::-1])

    def optional(self, name: str) -> F32 | None:
        """As `whole`; None when the layer has no such tensor."""
        return self.whole(name) if name in self else None

    def expert(self, name: str, expert: int) -> F32:
        """One expert's matrix, [outputs, inputs]."""
        path, tensor = self._get(name)
        n_bytes = tensor.n_bytes // tensor.dims[2]
        values = self._read(path, tensor, expert * n_bytes, n_bytes)
        return values.reshape(tensor.dims[1], tensor.dims[0])

    def _get(self, name: str) -> tuple[Path, Tensor]:
        if name not in self._found:
            raise UsageError(f"the layer lacks {name}")
        return self._found[name]

    @staticmethod
    def _read(path: Path, tensor: Tensor, start: int, n_bytes: int) -> F32:
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        raw = np.fromfile(path, dtype=np.uint8, count=n_bytes, offset=tensor.offset + start)
        row = tensor.dims[0] // tensor.type.block * tensor.type.block_bytes
        values = dequantize(raw.reshape(-1, row), GGMLQuantizationType[tensor.type.name])
        result: F32 = np.ascontiguousarray(values, dtype=np.float32)
        return result


def open_layer(path: Path, layer: int) -> tuple[str, Rule, LayerTensors]:
    """Architecture, rule and weights of a layer of a model (any of its shards).

    UsageError, one line, for what cannot be read or verified.
    """
    headers = read_model(path.expanduser())
    info = info_of(headers)
    if layer >= info.n_layer:
        raise UsageError(f"layer {layer}: {path.name} has layers 0 to {info.n_layer - 1}")

    def key(name: str) -> Any:
        return headers[0].value(f"{info.arch}.{name}")

    rule = rule_of(info.arch, Facts(key, info.n_layer, info.n_vocab))
    return info.arch, rule, LayerTensors(headers, layer)
