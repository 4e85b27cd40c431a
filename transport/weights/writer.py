"""Writing a safetensors file: nobody ever sees half of one. May import memory, types and errors.

Format: https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import secrets
from typing import TYPE_CHECKING, Any

import msgspec

from transport.errors import InvalidUse, NativeError
from transport.memory.dtypes import ITEMSIZES
from transport.types import Closing

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    Shapes = Mapping[str, tuple[tuple[int, ...], str]]

_LENGTH_BYTES = 8
_MAX_HEADER = 100_000_000  # bytes; the reference implementation's limit
_ALIGNED = 8  # bytes: where the tensors begin

DTYPES = {
    "bool": "BOOL",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
}
"""Our names of element types, and the format's."""


class Writer(Closing):
    """A file in the making, mapped: fill `tensors`, then `commit`. Closed before that, it is gone.

    `shapes` are shape and dtype by name, `metadata` one that is at least as long as what `commit`
    will be given. Raises InvalidUse for dtypes that the format has not,
    NativeError where the file cannot be made, or the disk is full.
    """

    def __init__(self, path: Path, shapes: Shapes, metadata: Mapping[str, str]) -> None:
        self._shapes = shapes
        self._length, spans, size = _layout(shapes, metadata)
        self._path = path
        self._temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        try:
            self._map = self._make(size)
        except OSError as error:
            self._temporary.unlink(missing_ok=True)
            words = f"{error.strerror}, for {size} bytes"
            raise NativeError(words, operation=f"write {path}", errno=error.errno or 0) from None
        whole = memoryview(self._map)
        # Untyped bytes: numpy lacks some of the dtypes, and torch need not be here.
        self.tensors: dict[str, Any] = {name: whole[a:b] for name, (a, b) in spans.items()}

    def commit(self, metadata: Mapping[str, str]) -> None:
        """Puts it where it belongs, once it is on the disk."""
        text = _header(self._shapes, metadata).ljust(self._length)
        head = self._length.to_bytes(_LENGTH_BYTES, "little") + text
        self._map[: len(head)] = head
        self._map.flush()
        with self._temporary.open("r+b") as file:
            os.fsync(file.fileno())
        self._temporary.replace(self._path)
        sync_folder(self._path.parent)

    def close(self) -> None:
        """Idempotent."""
        self.tensors.clear()
        self._temporary.unlink(missing_ok=True)

    def _make(self, size: int) -> mmap.mmap:
        with self._temporary.open("x+b") as file:
            # The blocks now: a full disk is an error here, and would be SIGBUS later.
            os.posix_fallocate(file.fileno(), 0, size)
            return mmap.mmap(file.fileno(), size)


def write_text(path: Path, text: bytes) -> None:
    """A small file, all at once."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        words = error.strerror or "failed"
        raise NativeError(words, operation=f"write {path}", errno=error.errno or 0) from None
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """So that the new name outlives a loss of power, where the file system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _layout(
    shapes: Shapes, metadata: Mapping[str, str]
) -> tuple[int, dict[str, tuple[int, int]], int]:
    """How long the header is, where each tensor lies in the file, and the file's size."""
    text = _header(shapes, metadata)
    length = -(-len(text) // _ALIGNED) * _ALIGNED
    if length > _MAX_HEADER:
        raise InvalidUse(f"{len(shapes)} tensors need a header over {_MAX_HEADER} bytes")
    at, spans = _LENGTH_BYTES + length, dict[str, tuple[int, int]]()
    for name in _ordered(shapes):
        end = at + _nbytes(*shapes[name])
        spans[name], at = (at, end), end
    return length, spans, at


def _header(shapes: Shapes, metadata: Mapping[str, str]) -> bytes:
    entries: dict[str, object] = {"__metadata__": dict(metadata)}
    at = 0
    for name in _ordered(shapes):
        shape, dtype = shapes[name]
        if dtype not in DTYPES:
            raise InvalidUse(f"{name}: safetensors files have no dtype {dtype}")
        end = at + _nbytes(shape, dtype)
        about = {"dtype": DTYPES[dtype], "shape": list(shape), "data_offsets": [at, end]}
        entries[name], at = about, end
    return msgspec.json.encode(entries)


def _ordered(shapes: Shapes) -> list[str]:
    """Those with the largest elements first, so that each is aligned."""
    return sorted(shapes, key=lambda name: (-ITEMSIZES[shapes[name][1]], name))


def _nbytes(shape: tuple[int, ...], dtype: str) -> int:
    return math.prod(shape) * ITEMSIZES[dtype]
