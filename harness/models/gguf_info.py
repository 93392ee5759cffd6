"""What a model is, read from the headers of its GGUF file and shards. Reads those files only."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.models.gguf_header import GgufHeader, Tensor, read_header, refuse

# routed experts: gate, up and down, or gate and up fused; `ch` is grovemoe's second kind
EXPERT_TENSOR = re.compile(r"blk\.(\d{1,6})\.ffn_(gate|up|down|gate_up)_(ch)?exps\.weight")
SHARD_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
MAX_SHARDS = 9999


@dataclass(frozen=True)
class ModelInfo:
    """A Mixture-of-Experts model; sizes in bytes as stored.

    `path` is the file that the engine is given (the first shard), `n_layer` counts the layers that
    a token passes, `n_moe_layer` those of them with routed experts. `expert_bytes` is of all routed
    experts, `layer_expert_bytes` of each such layer in order, `expert_bytes_max` of the largest
    single expert (all its parts), `dense_bytes` of all other weights. Layers that predict further
    tokens (MTP) serve speculative decoding only: their experts are counted nowhere.
    """

    path: Path
    shards: tuple[Path, ...]
    arch: str
    name: str | None
    n_layer: int
    n_moe_layer: int
    n_expert: int
    n_expert_used: int
    n_embd: int
    n_ff_expert: int | None
    n_vocab: int | None
    n_ctx_train: int | None
    tokenizer: str | None
    types: dict[str, int]  # expert weights: type -> number of tensors
    n_tensor: int
    expert_bytes: int
    expert_bytes_max: int
    layer_expert_bytes: tuple[int, ...]
    dense_bytes: int
    file_bytes: int


def model_info(path: Path | str) -> ModelInfo:
    """Facts about the model in `path` (any of its shards). UsageError, one line, if it is unusable.

    Unusable: absent, not GGUF, truncated, damaged, a shard missing, not Mixture-of-Experts.
    """
    headers = read_model(Path(path).expanduser())
    return info_of(headers)


def read_model(path: Path) -> tuple[GgufHeader, ...]:
    """The headers of `path` and, when it is a shard, of all its siblings in order."""
    header = read_header(path)
    count = _int(header, "split.count", least=0, default=1)
    found = SHARD_NAME.fullmatch(path.name)
    if found is None or count <= 1:
        if count > 1:
            refuse(
                path,
                f"is one of {count} shards, but is not named like one; "
                f"restore its name (...-00001-of-{count:05d}.gguf)",
            )
        return (header,)
    if int(found[3]) != count:
        refuse(path, f"is one of {count} shards by its header and of {int(found[3])} by its name")
    if count > MAX_SHARDS:
        refuse(path, f"claims to be one of {count} shards")
    headers = []
    for i in range(count):
        shard = path.with_name(f"{found[1]}-{i + 1:05d}-of-{count:05d}.gguf")
        if not shard.is_file():
            refuse(path, f"shard {shard.name} is missing; put it beside the others")
        other = header if shard == path else read_header(shard)
        number = _int(other, "split.no", least=0)
        if number != i or _int(other, "split.count", least=0) != count:
            refuse(shard, f"holds shard {number + 1}, not {i + 1} of {count}; its name is wrong")
        headers.append(other)
    total = _int(headers[0], "split.tensors.count", least=0)
    have = sum(len(h.tensors) for h in headers)
    if total != have:
        refuse(path, f"its shards hold {have} tensors, their header promises {total}")
    return tuple(headers)


def info_of(headers: tuple[GgufHeader, ...]) -> ModelInfo:
    """Facts from checked headers; UsageError when they are of no Mixture-of-Experts model."""
    first = headers[0]
    arch = first.value("general.architecture")
    if not isinstance(arch, str) or not arch:
        refuse(first.path, "has no general.architecture; it is no language model")
    tensors = [t for h in headers for t in h.tensors]
    if len({t.name for t in tensors}) != len(tensors):
        refuse(first.path, "a tensor is in two of its shards")
    experts = [(m, t) for t in tensors if (m := EXPERT_TENSOR.fullmatch(t.name))]
    n_block = _int(first, f"{arch}.block_count")
    n_layer = n_block - _int(first, f"{arch}.nextn_predict_layers", least=0, default=0)
    idle = {t.name for m, t in experts if int(m[1]) in range(n_layer, n_block)}
    experts = [(m, t) for m, t in experts if t.name not in idle]
    if not experts:
        refuse(
            first.path,
            f"not a Mixture-of-Experts (MoE) model: no routed expert tensors (architecture {arch})",
        )
    n_expert = _int(first, f"{arch}.expert_count")
    used = _int(first, f"{arch}.expert_used_count")
    if used > n_expert:
        refuse(first.path, f"routes to {used} of {n_expert} experts; the file is damaged")
    slices: Counter[tuple[int, bool]] = Counter()
    layers: Counter[int] = Counter()
    for match, tensor in experts:
        layer, chunked = int(match[1]), match[3] is not None
        slices[layer, chunked] += _slice_bytes(first.path, tensor, None if chunked else n_expert)
        layers[layer] += tensor.n_bytes
    if max(layers) >= n_block:
        refuse(first.path, f"has experts in layer {max(layers)} of {n_block}; the file is damaged")
    expert_bytes = sum(layers.values())
    return ModelInfo(
        path=first.path,
        shards=tuple(h.path for h in headers),
        arch=arch,
        name=_text(first, "general.name"),
        n_layer=n_layer,
        n_moe_layer=len(layers),
        n_expert=n_expert,
        n_expert_used=used,
        n_embd=_int(first, f"{arch}.embedding_length"),
        n_ff_expert=_optional(first.value(f"{arch}.expert_feed_forward_length")),
        n_vocab=_vocabulary(first, arch),
        n_ctx_train=_optional(first.value(f"{arch}.context_length")),
        tokenizer=_text(first, "tokenizer.ggml.model"),
        types=dict(Counter(t.type.name for _, t in experts)),
        n_tensor=len(tensors),
        expert_bytes=expert_bytes,
        expert_bytes_max=max(slices.values()),
        layer_expert_bytes=tuple(layers[i] for i in sorted(layers)),
        dense_bytes=sum(t.n_bytes for t in tensors if t.name not in idle) - expert_bytes,
        file_bytes=sum(h.file_bytes for h in headers),
    )


def _slice_bytes(path: Path, tensor: Tensor, n_expert: int | None) -> int:
    """Bytes of one expert's part in a tensor over all experts."""
    if len(tensor.dims) != 3 or 0 in tensor.dims:
        refuse(path, f"tensor {tensor.name} has dimensions {tensor.dims}; the file is damaged")
    if n_expert is not None and tensor.dims[2] != n_expert:
        refuse(path, f"tensor {tensor.name} holds {tensor.dims[2]} experts, not {n_expert}")
    return tensor.n_bytes // tensor.dims[2]


def _int(header: GgufHeader, key: str, least: int = 1, default: int | None = None) -> int:
    """A whole number; of a value per layer, the largest."""
    value = header.value(key)
    if value is None and default is not None:
        return default
    found = _optional(value)
    if found is None or found < least:
        said = "is missing" if value is None else f"is {str(value)[:40]!r}"
        refuse(header.path, f"{key} {said}, so it cannot be run")
    return found


def _optional(value: Any) -> int | None:
    if isinstance(value, list) and value and all(type(v) is int for v in value):
        return int(max(value))
    return value if type(value) is int else None


def _text(header: GgufHeader, key: str) -> str | None:
    value = header.value(key)
    return value if isinstance(value, str) else None


def _vocabulary(header: GgufHeader, arch: str) -> int | None:
    tokens = header.fields.get("tokenizer.ggml.tokens")
    if tokens is not None and tokens.count is not None:
        return tokens.count
    return _optional(header.value(f"{arch}.vocab_size"))
