"""Layouts of safetensors files, from their headers. Reads headers only, needs no other package.

May import the room's descriptions and errors. Each file is a rank that has its tensors whole, so
that loading from files is a plan like any other. Source: the format's description in the README of
github.com/huggingface/safetensors.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transport.errors import InvalidUse, LayoutError
from transport.memory.dtypes import ITEMSIZES
from transport.sharding.checks import shape_of
from transport.sharding.layout import Layout
from transport.sharding.state import StateLayout

if TYPE_CHECKING:
    import os

MAX_HEADER = 100_000_000  # bytes; the format's own limit

_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "F4": "float4_e2m1fn_x2",
    "U16": "uint16",
    "I16": "int16",
    "F16": "float16",
    "BF16": "bfloat16",
    "U32": "uint32",
    "I32": "int32",
    "F32": "float32",
    "U64": "uint64",
    "I64": "int64",
    "F64": "float64",
    "C64": "complex64",
}


@dataclass(frozen=True, slots=True)
class Span:
    """Where a tensor lies: the number of its file, and its first byte and length in it."""

    file: int
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class TensorFiles:
    """One checkpoint: rank i of `layouts` is `paths[i]`, and `spans` says where in it."""

    paths: tuple[Path, ...]
    layouts: StateLayout
    spans: dict[str, Span]


def read_safetensors(path: str | os.PathLike[str]) -> TensorFiles:
    """Reads the headers of a .safetensors file, of those that an index.json names, or of a folder.

    Raises InvalidUse for what is no such file, and LayoutError for headers that contradict
    themselves or the index, naming file and tensor.
    """
    paths, wanted = _files(Path(path))
    layouts: dict[str, Layout] = {}
    spans: dict[str, Span] = {}
    shared: dict[Any, Layout] = {}
    for number, file in enumerate(paths):
        base, header = read_header(file)
        for name, about in header.items():
            if wanted is not None and wanted.get(name) != file.name:
                continue
            if name in spans:
                raise LayoutError(f"{name} is in {paths[spans[name].file]} and in {file}")
            dtype, shape, begin, end = _entry(file, name, about)
            one = dtype, shape, number
            layouts[name] = shared.get(one) or shared.setdefault(
                one, Layout.whole(shape, dtype, number)
            )
            spans[name] = Span(number, base + begin, end - begin)
    missing = [name for name in wanted or () if name not in spans]
    if missing:
        raise LayoutError(f"{path} names tensors that are not in its files: {missing[:4]}")
    return TensorFiles(paths, StateLayout(layouts), spans)


def read_header(path: Path) -> tuple[int, dict[str, Any]]:
    """The offset of the data, and what the header says of each tensor."""
    if not path.is_file():
        raise InvalidUse(f"there is no file {path}")
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= MAX_HEADER:
            raise InvalidUse(f"{path} is no safetensors file: its header would be {length} bytes")
        text = file.read(length)
    header = _json(path, text)
    header.pop("__metadata__", None)
    _check_ends(path, header, path.stat().st_size - 8 - length)
    return 8 + length, header


def _files(path: Path) -> tuple[tuple[Path, ...], dict[str, str] | None]:
    """The files, and which of them an index expects each tensor in."""
    if path.is_dir():
        index = path / "model.safetensors.index.json"
        found = sorted(path.glob("*.safetensors"))
        if not index.exists() and not found:
            raise InvalidUse(f"{path} has no safetensors files")
        return _files(index) if index.exists() else (tuple(found), None)
    if path.suffix != ".json":
        return (path,), None
    if not path.is_file():
        raise InvalidUse(f"there is no file {path}")
    wanted = _json(path, path.read_bytes()).get("weight_map")
    if not isinstance(wanted, dict) or not all(isinstance(v, str) for v in wanted.values()):
        raise InvalidUse(f"{path} has no weight_map: it is no safetensors index")
    names = sorted(set(wanted.values()))
    if any(Path(name).name != name for name in names):
        raise InvalidUse(f"{path} names files outside its folder")
    return tuple(path.parent / name for name in names), wanted


def _json(path: Path, text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text, object_pairs_hook=_once)
    except LayoutError as error:
        raise LayoutError(f"{path}: {error}") from None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InvalidUse(f"{path} is no safetensors file: its header is not JSON")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose names are all different."""
    made = dict(pairs)
    if len(made) < len(pairs):
        count = Counter(name for name, _ in pairs)
        twice = next(name for name in made if count[name] > 1)
        raise LayoutError(f"{twice!a:.80} is there twice")
    return made


def _entry(path: Path, name: str, about: Any) -> tuple[str, tuple[int, ...], int, int]:
    """Dtype, shape and data offsets of a tensor. Raises LayoutError where they do not agree."""
    dtype = _DTYPES.get(about["dtype"])
    if dtype is None:
        raise LayoutError(f"{name} in {path} is of {about['dtype']!r:.40}, which has no name here")
    shape, (begin, end) = tuple(about["shape"]), about["data_offsets"]
    if dtype == "float4_e2m1fn_x2":  # the header counts numbers, torch the bytes
        if not shape or shape[-1] % 2:
            raise LayoutError(f"{name} in {path} has a half byte of F4 left over")
        shape = (*shape[:-1], shape[-1] // 2)
    if math.prod(shape_of(shape)) * ITEMSIZES[dtype] != end - begin:
        raise LayoutError(f"{name} in {path}: {end - begin} bytes for {dtype}{list(shape)}")
    return dtype, shape, begin, end


def _is_text(name: str) -> bool:
    """JSON can write half a character, which no name has."""
    return name.isascii() or name.encode("utf-8", "replace").decode() == name


def _check_ends(path: Path, header: dict[str, Any], size: int) -> None:
    for name, about in header.items():
        if not _is_text(name):
            raise LayoutError(f"{path} has a tensor without a proper name: {name!a:.80}")
        try:
            begin, end = about["data_offsets"]
            sound = 0 <= begin <= end <= size and all(n >= 0 for n in about["shape"])
            sound = sound and isinstance(about["dtype"], str)
            sound = sound and type(begin) is type(end) is int
        except (TypeError, ValueError, KeyError):
            sound = False
        if not sound:
            raise LayoutError(f"{name} in {path} is outside the file, or badly described")
    spans = sorted((*about["data_offsets"], name) for name, about in header.items())
    held = [it for it in spans if it[0] < it[1]]
    for (_, end, first), (begin, _, second) in itertools.pairwise(held):
        if begin < end:
            raise LayoutError(f"{first} and {second} in {path} have bytes in common")
