"""Writes a GGUF file front to back from a stream of bytes, hashing as it goes. Writes one file.

The `gguf` package's writer wants arrays and re-encodes metadata; here metadata may be copied byte
for byte from another file, and a model of any size passes through a few megabytes of memory.
Written pages are flushed and dropped, so that making a model leaves the page cache as it was.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.cachedir import guarded, require_space
from harness.errors import DeviceError
from harness.models.ggml_types import GgmlType

ALIGNMENT = 32
FLUSH_BYTES = 64 * 2**20

Meta = str | int | float | bool | list[str] | list[int]


@dataclass(frozen=True)
class TensorPlan:
    """One tensor to write: `dims` with the row length first; `data` yields exactly its bytes."""

    name: str
    dims: tuple[int, ...]
    type: GgmlType
    data: Callable[[], Iterable[bytes | memoryview]]

    @property
    def n_bytes(self) -> int:
        """Bytes of the tensor's data."""
        rows = 1
        for d in self.dims[1:]:
            rows *= d
        return self.type.row_bytes(self.dims[0]) * rows


def encode_field(key: str, value: Meta) -> bytes:
    """One metadata entry: str, bool, int (u32), float (f32), or a list of str or int (i32)."""
    return _string(key) + _value(value)


def encode_split(index: int, count: int, n_tensor: int) -> list[bytes]:
    """What a shard says of itself; llama.cpp insists on just these integer types."""
    return [
        _string("split.no") + struct.pack("<IH", 2, index),
        _string("split.count") + struct.pack("<IH", 2, count),
        _string("split.tensors.count") + struct.pack("<Ii", 5, n_tensor),
    ]


def _value(value: Meta) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if value and isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(_string(str(v)) for v in value)
    return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *(int(v) for v in value))


def _string(text: str) -> bytes:
    raw = text.encode("utf-8")
    return struct.pack("<Q", len(raw)) + raw


def _padding(n: int, alignment: int) -> int:
    return -n % alignment


def file_bytes(
    fields: Sequence[bytes], tensors: Sequence[TensorPlan], alignment: int = ALIGNMENT
) -> int:
    """Size of the file that `write_gguf` would write."""
    header = len(_header(fields, tensors, alignment))
    return header + sum(t.n_bytes + _padding(t.n_bytes, alignment) for t in tensors)


def _header(fields: Sequence[bytes], tensors: Sequence[TensorPlan], alignment: int) -> bytes:
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(fields)), *fields]
    offset = 0
    for t in tensors:
        n = len(t.dims)
        parts.append(_string(t.name) + struct.pack(f"<I{n}QIQ", n, *t.dims, t.type.id, offset))
        offset += t.n_bytes + _padding(t.n_bytes, alignment)
    header = b"".join(parts)
    return header + bytes(_padding(len(header), alignment))


def write_gguf(
    path: Path,
    fields: Sequence[bytes],
    tensors: Sequence[TensorPlan],
    *,
    alignment: int = ALIGNMENT,
    tick: Callable[[int, int], None] | None = None,
) -> str:
    """Write the file, atomically; returns its SHA-256.

    `tick` receives bytes written and bytes in all. UsageError when the disk has no room for it,
    DeviceError when it fills up meanwhile; nothing partial is left.
    """
    total = file_bytes(fields, tensors, alignment)
    with guarded("writing the model", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        require_space(path.parent, total + 2**20, f"the model {path.name}")
        partial = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            with _Sink(partial, total, tick) as sink:
                sink.write(_header(fields, tensors, alignment))
                for tensor in tensors:
                    _write_tensor(sink, tensor, alignment)
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    return sink.sha256


def _write_tensor(sink: _Sink, tensor: TensorPlan, alignment: int) -> None:
    start = sink.written
    for piece in tensor.data():
        sink.write(piece)
    if sink.written - start != tensor.n_bytes:
        raise DeviceError(
            f"tensor {tensor.name} yielded {sink.written - start} bytes instead of "
            f"{tensor.n_bytes}; its source changed while it was read"
        )
    sink.write(bytes(_padding(tensor.n_bytes, alignment)))


class _Sink:
    """A file that hashes what it writes and does not pile up dirty pages."""

    def __init__(self, path: Path, total: int, tick: Callable[[int, int], None] | None) -> None:
        self._path = path
        self._total = total
        self._tick = tick
        self._digest = hashlib.sha256()
        self._flushed = 0
        self.written = 0

    def __enter__(self) -> _Sink:
        self._file = self._path.open("wb", buffering=1 << 20)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with self._file:
            if kind is None:
                self._flush()

    def write(self, piece: bytes | memoryview) -> None:
        """Append `piece`."""
        self._file.write(piece)
        self._digest.update(piece)
        self.written += len(piece)
        if self.written - self._flushed >= FLUSH_BYTES:
            self._flush()

    @property
    def sha256(self) -> str:
        """Of everything written, in hex."""
        return self._digest.hexdigest()

    def _flush(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self._flushed = self.written
        if self._tick is not None:
            self._tick(self.written, self._total)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[Callable[[int, int], bytes]]:
    """A function (offset, bytes) that reads from `path`, leaving nothing in the page cache."""
    with path.open("rb", buffering=0) as f:

        def read(offset: int, n: int) -> bytes:
            piece = os.pread(f.fileno(), n, offset)
            if len(piece) != n:
                raise DeviceError(f"{path}: ends early; it changed while it was read")
            return piece

        try:
            yield read
        finally:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
