"""The model of `transport plan`: a built-in name, a checkpoint's headers, or a table of shapes.

Reads files; no tensor is loaded. May import sharding, memory.dtypes and errors.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transport.errors import InvalidUse, Unavailable
from transport.memory.dtypes import ITEMSIZES
from transport.sharding.models import MODELS, TensorShape, recast
from transport.sharding.rules import Rule, named

if TYPE_CHECKING:
    from transport.sharding.models.shape import Table

_HEADER_LIMIT = 100_000_000  # bytes; the format's own
_SAFETENSORS = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32",
    "I32": "int32", "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16",
    "F32": "float32", "F64": "float64", "C64": "complex64", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip
"""The names of the safetensors format, with ours."""


@dataclass(frozen=True)
class Model:
    """What is to be moved: its tensors, and the rules by which they are cut."""

    name: str
    table: Table
    rules: tuple[Rule, ...]


def load_model(text: str, dtype: str | None = None) -> Model:
    """Reads `--model`. `dtype` makes every tensor of that type and leaves scales out.

    Raises Unavailable for a file that is not there, InvalidUse for one that makes no sense.
    """
    try:
        model = _load(text)
    except OSError as error:
        raise Unavailable(f"{error.filename}: {error.strerror}") from error
    if not model.table:
        raise InvalidUse(f"{text} lists no tensors")
    return Model(model.name, recast(model.table, dtype), model.rules) if dtype else model


def _load(text: str) -> Model:
    if text in MODELS:
        return Model(text, MODELS[text].tensors(), named(MODELS[text].kv_heads))
    file = Path(text)
    if not file.is_file():
        reason = f"--model {text} is neither a file nor one of {', '.join(MODELS)}"
        raise Unavailable(reason, "give FILE.safetensors.index.json, or a table shapes.json")
    if file.name.endswith(".index.json"):
        return Model(file.name, _indexed(file), named(_kv_heads(file.parent)))
    if file.suffix == ".safetensors":
        return Model(file.name, _header(file), named(_kv_heads(file.parent)))
    return _listed(file)


def _indexed(file: Path) -> Table:
    """The index says which file has which tensor; only the files' headers say their shapes."""
    places = _object(file).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(it, str) for it in places.values()):
        raise InvalidUse(f"{file} has no weight_map from tensors to files: is it an index?")
    headers: dict[str, Table] = {}
    for name in dict.fromkeys(places.values()):
        shard = file.parent / Path(name).name
        if not shard.is_file():
            raise Unavailable(
                f"{file} tells no shapes, and {shard.name}, whose header does, is not beside it",
                "put the files beside it (of each the header is enough: 8 bytes and as many as "
                'they say), or give a table: {"name": {"shape": [4, 2], "dtype": "bfloat16"}}',
            )
        headers[name] = _header(shard)
    lost = [name for name, place in places.items() if name not in headers[place]]
    if lost:
        raise InvalidUse(
            f"{file} has {lost[0]} in {places[lost[0]]}, whose header does not list it"
        )
    return {name: headers[place][name] for name, place in places.items()}


def _header(file: Path) -> Table:
    """Name -> shape of one safetensors file, by its first bytes."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= _HEADER_LIMIT:
            raise InvalidUse(f"{file} is no safetensors file: its header would be {length} bytes")
        text = stream.read(length)
    if len(text) < length:
        raise InvalidUse(f"{file} ends within its header of {length} bytes: is it complete?")
    found = _decoded(text, file)
    found.pop("__metadata__", None)
    return {name: _tensor(name, entry, file) for name, entry in found.items()}


def _listed(file: Path) -> Model:
    """name -> {"shape": [...], "dtype": "..."}, and "rules": [...] if the names need their own."""
    found = _object(file)
    given = found.pop("rules", None) if isinstance(found.get("rules"), list) else None
    table = {name: _tensor(name, entry, file) for name, entry in found.items()}
    rules = named(_kv_heads(file.parent)) if given is None else tuple(_rule(it) for it in given)
    return Model(file.name, table, rules)


def _rule(given: Any) -> Rule:
    import msgspec

    try:
        rule = msgspec.convert(given, Rule, strict=True)
        unknown = set(given) - {field.name for field in fields(Rule)}
        if unknown:
            raise msgspec.ValidationError(f"a rule has no {min(unknown)!r:.40}")
    except msgspec.ValidationError as error:
        words = 'a rule is {"match": REGEX, "tp": DIMENSION, "heads": N, "ep": DIMENSION}'
        raise InvalidUse(f"{given!s:.80}: {error}; {words}, all but match optional") from None
    return rule


def _tensor(name: str, entry: Any, file: Path) -> TensorShape:
    try:
        shape = tuple(int(length) for length in entry["shape"])
        dtype = str(entry["dtype"])
    except (TypeError, KeyError, ValueError):
        words = 'its entry is not {"shape": [...], "dtype": "..."}'
        raise InvalidUse(f"{file}, tensor {name!r:.80}: {words}") from None
    dtype = _SAFETENSORS.get(dtype, dtype.removeprefix("torch."))
    if dtype not in ITEMSIZES or any(length < 0 for length in shape):
        raise InvalidUse(f"{file}, tensor {name!r:.80}: there is no {dtype} of shape {list(shape)}")
    return TensorShape(shape, dtype)


def _kv_heads(folder: Path) -> int | None:
    """num_key_value_heads of the config.json beside a checkpoint, where there is one."""
    file = folder / "config.json"
    heads = _object(file).get("num_key_value_heads") if file.is_file() else None
    return heads if isinstance(heads, int) and heads > 0 else None


def _object(file: Path) -> dict[str, Any]:
    if file.stat().st_size > _HEADER_LIMIT:
        raise InvalidUse(f"{file} has over {_HEADER_LIMIT} bytes: it is no table of shapes")
    return _decoded(file.read_bytes(), file)


def _decoded(text: bytes, file: Path) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidUse(f"{file} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidUse(f"{file} is not a JSON object")
    return found
