"""Writes a model as several files, each with its share of the tensors. Writes those files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.cachedir import guarded, require_space
from harness.errors import UsageError
from harness.models.gguf_info import MAX_SHARDS, SHARD_NAME
from harness.models.gguf_write import TensorPlan, encode_split, file_bytes, write_gguf

Tick = Callable[[int, int], None]


def shard_paths(first: Path, count: int) -> list[Path]:
    """The files of a model whose first is `first`. UsageError when it is not named like that."""
    if count == 1:
        return [first]
    name = SHARD_NAME.fullmatch(first.name)
    if name is None or (int(name[2]), int(name[3])) != (1, count):
        raise UsageError(
            f"{first}: the first of {count} shards has a name that ends in "
            f"-00001-of-{count:05d}.gguf"
        )
    return [first.with_name(f"{name[1]}-{i + 1:05d}-of-{count:05d}.gguf") for i in range(count)]


def check_count(count: int, n_tensor: int) -> None:
    """UsageError when that many shards cannot each have a tensor."""
    if not 1 <= count <= min(n_tensor, MAX_SHARDS):
        raise UsageError(
            f"model.shards: {count} is not from 1 to {min(n_tensor, MAX_SHARDS)}; "
            f"the model has {n_tensor} tensors, and each shard needs one"
        )


def write_shards(
    first: Path,
    fields: Sequence[bytes],
    tensors: Sequence[TensorPlan],
    count: int,
    tick: Tick | None = None,
) -> str:
    """Write `count` files; returns the SHA-256 of their hashes, one a line.

    The first has all metadata and is written last: when it is there, all are. `tick` receives bytes
    written and bytes in all. UsageError when the disk has no room for all of them; nothing is left
    when one fails.
    """
    check_count(count, len(tensors))
    paths = shard_paths(first, count)
    shares = _shares(tensors, count)
    headers = [encode_split(i, count, len(tensors)) for i in range(count)]
    headers[0][:0] = fields
    sizes = [file_bytes(h, t) for h, t in zip(headers, shares, strict=True)]
    with guarded("writing the model", first):
        first.parent.mkdir(parents=True, exist_ok=True)
        require_space(first.parent, sum(sizes) + 2**20, f"the model {first.name}")
    digests = [""] * count
    try:
        for i in reversed(range(count)):
            step = _from(sum(sizes[i + 1 :]), sum(sizes), tick)
            digests[i] = write_gguf(paths[i], headers[i], shares[i], tick=step)
    except BaseException:
        for path, digest in zip(paths, digests, strict=True):
            if digest:
                path.unlink(missing_ok=True)
        raise
    return hashlib.sha256("".join(f"{d}\n" for d in digests).encode()).hexdigest()


def _from(before: int, total: int, tick: Tick | None) -> Tick | None:
    """Progress of one file as progress of all."""
    return None if tick is None else lambda done, _: tick(before + done, total)


def _shares(tensors: Sequence[TensorPlan], count: int) -> list[list[TensorPlan]]:
    """Runs of about equal bytes, none empty; what belongs together may be apart."""
    total = sum(t.n_bytes for t in tensors)
    shares: list[list[TensorPlan]] = [[]]
    done = 0
    for i, tensor in enumerate(tensors):
        missing = count - len(shares)
        full = done >= len(shares) * total / count
        if shares[-1] and missing and (full or len(tensors) - i == missing):
            shares.append([])
        shares[-1].append(tensor)
        done += tensor.n_bytes
    return shares
