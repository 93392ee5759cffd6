"""Reads the header of one GGUF file: metadata and tensor extents, never tensor data.

A parser of its own, because the `gguf` package's reader builds numpy objects for every token of a
vocabulary, needs numpy, and answers broken files with whatever exception comes first. Here every
fault is one UsageError, and memory and time are bounded whatever the file claims.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from harness.errors import UsageError
from harness.models.ggml_types import TYPES, GgmlType

MAGIC = b"GGUF"
VERSIONS = (2, 3)
CHUNK = 1 << 20
# far above every real model, low enough that a hostile header cannot cost much
MAX_FIELDS = 4096
MAX_TENSORS = 500_000
MAX_NAME = 4096
MAX_STRINGS = 16_000_000
MAX_MESSAGE = 400
# longer values (vocabularies, chat templates) are stepped over
KEPT_STRING = 16_384
KEPT_ARRAY = 4096

_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
UINT32 = 4
_STRING = 8
_ARRAY = 9
_U32 = _SCALARS[UINT32]
_U64 = _SCALARS[10]


@dataclass(frozen=True)
class Field:
    """One metadata entry; `start`..`end` are its bytes in the file, key and type included.

    `value` is None for what is stepped over; `count` is the number of elements of an array.
    """

    key: str
    type: int
    start: int
    value_start: int
    end: int
    value: Any
    count: int | None = None


@dataclass(frozen=True)
class Tensor:
    """One tensor: `dims` with the row length first, `offset` from the start of the file."""

    name: str
    dims: tuple[int, ...]
    type: GgmlType
    offset: int
    n_bytes: int


@dataclass(frozen=True)
class GgufHeader:
    """Everything before the data of one file."""

    path: Path
    version: int
    alignment: int
    fields: dict[str, Field]
    tensors: tuple[Tensor, ...]
    data_start: int
    file_bytes: int

    def value(self, key: str) -> Any:
        """The value of `key`, None when it is absent or was stepped over."""
        field = self.fields.get(key)
        return None if field is None else field.value


def refuse(path: Path, what: str) -> NoReturn:
    """Raise the one line for a file that cannot be used.

    `what` may quote names from the file: what would not print, or would not end, is cut.
    """
    shown = "".join(c if c.isprintable() else "?" for c in what[:MAX_MESSAGE])
    where = "".join(c if c.isprintable() else "?" for c in str(path))
    raise UsageError(f"model {where}: {shown}")


def read_header(path: Path) -> GgufHeader:
    """Parse and check the header of `path`. UsageError, one line, for whatever is wrong with it."""
    try:
        if path.is_dir():
            refuse(path, "is a directory; give the .gguf file in it")
        if path.exists() and not path.is_file():  # opening a FIFO would wait for ever
            refuse(path, "is no regular file")
        with path.open("rb", buffering=0) as f:
            return _Parser(path, f).parse()
    except FileNotFoundError:
        refuse(path, "no such file")
    except OSError as e:
        refuse(path, f"cannot be read ({(e.strerror or str(e)).lower()})")


class _Parser:
    """A window over the file that moves forward only."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._size = file.seek(0, 2)
        file.seek(0)
        self._buffer = b""
        self._base = 0  # file offset of the buffer
        self._at = 0  # position in the buffer
        self._strings = 0

    # --- moving --------------------------------------------------------------------------------

    @property
    def _offset(self) -> int:
        return self._base + self._at

    def _take(self, n: int) -> bytes:
        """The next `n` bytes."""
        end = self._at + n
        if end > len(self._buffer):
            self._fill(n)
            end = self._at + n
        piece = self._buffer[self._at : end]
        self._at = end
        return piece

    def _fill(self, n: int) -> None:
        """Have at least `n` bytes from here on in the buffer."""
        self._left(n)
        self._base, self._at = self._offset, 0
        self._file.seek(self._base)
        pieces, have = [], 0
        while have < n:
            piece = self._file.read(max(n - have, CHUNK))
            if not piece:
                self._truncated()
            pieces.append(piece)
            have += len(piece)
        self._buffer = b"".join(pieces)

    def _skip(self, n: int) -> None:
        self._left(n)
        self._at += n
        if self._at > len(self._buffer):
            self._base, self._at, self._buffer = self._offset, 0, b""

    def _left(self, n: int) -> None:
        if n > self._size - self._offset:
            self._truncated()

    def _truncated(self) -> NoReturn:
        refuse(
            self._path,
            f"truncated or damaged: its header does not fit in {self._size} bytes; "
            "download or copy it again",
        )

    def _damaged(self, what: str) -> NoReturn:
        refuse(self._path, f"damaged header: {what}; download or copy it again")

    # --- values --------------------------------------------------------------------------------

    def _u32(self) -> int:
        return int(_U32.unpack(self._take(4))[0])

    def _u64(self) -> int:
        return int(_U64.unpack(self._take(8))[0])

    def _name(self, what: str) -> str:
        length = self._u64()
        if not 0 < length <= MAX_NAME:
            self._left(length)
            self._damaged(f"{what} has a name of {length} bytes")
        try:
            return self._take(length).decode("utf-8")
        except UnicodeDecodeError:
            self._damaged(f"the name of {what} is not UTF-8")

    def _string(self) -> str | None:
        length = self._u64()
        if length > KEPT_STRING:
            self._skip(length)
            return None
        return self._take(length).decode("utf-8", errors="replace")

    def _array(self, key: str) -> tuple[Any, int]:
        kind, count = self._u32(), self._u64()
        if kind == _STRING:
            self._left(count * 8)
            self._strings += count
            if self._strings > MAX_STRINGS:
                self._damaged(f"{key} claims {count} strings")
            if count <= KEPT_ARRAY:
                return [self._string() for _ in range(count)], count
            self._skip_strings(count)
            return None, count
        form = _SCALARS.get(kind)
        if form is None:
            self._damaged(f"{key} is an array of unknown type {kind}")
        if count <= KEPT_ARRAY:
            return [v for (v,) in form.iter_unpack(self._take(count * form.size))], count
        self._skip(count * form.size)
        return None, count

    def _skip_strings(self, count: int) -> None:
        buffer, at, unpack = self._buffer, self._at, _U64.unpack_from
        for _ in range(count):
            if at + 8 > len(buffer):
                self._at = at
                self._fill(8)
                buffer, at = self._buffer, self._at
            at += 8 + unpack(buffer, at)[0]
            if at > len(buffer):
                self._skip(at - self._at)
                buffer, at = self._buffer, self._at
        self._at = at

    def _field(self) -> Field:
        start = self._offset
        key = self._name("a metadata entry")
        kind = self._u32()
        value_start = self._offset
        value: Any
        count = None
        if kind == _STRING:
            value = self._string()
        elif kind == _ARRAY:
            value, count = self._array(key)
        elif kind in _SCALARS:
            form = _SCALARS[kind]
            value = form.unpack(self._take(form.size))[0]
        else:
            self._damaged(f"{key} has unknown type {kind}")
        return Field(key, kind, start, value_start, self._offset, value, count)

    # --- the whole -----------------------------------------------------------------------------

    def parse(self) -> GgufHeader:
        """The header; every fault is a UsageError."""
        head = self._take(min(4, self._size))
        if head != MAGIC:
            refuse(
                self._path,
                f"not a GGUF file (it begins with {head!r}, not {MAGIC!r}); give a .gguf model",
            )
        version = self._u32()
        if version not in VERSIONS:
            if version & 0xFFFF == 0 and version:
                refuse(self._path, "is big-endian; convert it for this machine")
            refuse(
                self._path,
                f"has GGUF version {version}, not 2 or 3; convert it with a current llama.cpp",
            )
        n_tensors, n_fields = self._u64(), self._u64()
        if n_fields > MAX_FIELDS or n_tensors > MAX_TENSORS:
            self._damaged(f"it claims {n_tensors} tensors and {n_fields} metadata entries")
        fields: dict[str, Field] = {}
        for _ in range(n_fields):
            field = self._field()
            if field.key in fields:
                self._damaged(f"{field.key} stands there twice")
            fields[field.key] = field
        alignment = self._alignment(fields.get("general.alignment"))
        raw = [self._tensor() for _ in range(n_tensors)]
        if len({t.name for t in raw}) != len(raw):
            self._damaged("a tensor stands there twice")
        data_start = -(-self._offset // alignment) * alignment
        tensors = self._place(raw, data_start, alignment)
        return GgufHeader(self._path, version, alignment, fields, tensors, data_start, self._size)

    def _alignment(self, field: Field | None) -> int:
        if field is None:
            return 32
        value = field.value
        if field.type != UINT32 or value == 0 or value & (value - 1):
            self._damaged(f"general.alignment is {value!r}, not a power of two")
        return int(value)

    def _tensor(self) -> Tensor:
        name = self._name("a tensor")
        n_dims = self._u32()
        if n_dims > 4:
            self._damaged(f"tensor {name} has {n_dims} dimensions")
        dims = tuple(self._u64() for _ in range(n_dims))
        kind = TYPES.get(code := self._u32())
        offset = self._u64()
        if kind is None:
            refuse(
                self._path,
                f"tensor {name} has type {code}, which this version does not know; "
                "the file is damaged or too new",
            )
        elements = 1
        for d in dims:
            elements *= d
        if elements >= 2**63 or (dims[0] if dims else 1) % kind.block:
            self._damaged(f"tensor {name} has impossible dimensions {dims} for {kind.name}")
        return Tensor(name, dims, kind, offset, elements // kind.block * kind.block_bytes)

    def _place(self, raw: list[Tensor], start: int, alignment: int) -> tuple[Tensor, ...]:
        """Offsets from the start of the file, checked to lie in it without overlap."""
        placed = [Tensor(t.name, t.dims, t.type, start + t.offset, t.n_bytes) for t in raw]
        end = start
        for tensor in sorted(placed, key=lambda t: (t.offset, t.n_bytes)):
            if tensor.offset % alignment or tensor.offset < end:
                self._damaged(f"tensor {tensor.name} has an impossible offset")
            end = tensor.offset + tensor.n_bytes
            if end > self._size:
                refuse(
                    self._path,
                    f"truncated: tensor {tensor.name} ends at byte {end}, the file has "
                    f"{self._size}; download or copy it again",
                )
        return tuple(placed)
