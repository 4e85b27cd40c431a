"""The model of `transport plan`: a built-in name, a checkpoint's headers, or a table of shapes.

Reads files; no tensor is loaded. May import sharding, memory.dtypes and errors.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transport.errors import InvalidUse, LayoutError, Unavailable
from transport.memory.dtypes import ITEMSIZES
from transport.sharding.checks import shape_of
from transport.sharding.models import MODELS, TensorShape, nbytes, recast
from transport.sharding.rules import Rule, named

if TYPE_CHECKING:
    from transport.sharding.models.shape import Table

_SUFFIX = ".safetensors"
_LIMIT = 100_000_000  # bytes of a table
_LONGEST_NAME = 1024


@dataclass(frozen=True)
class Model:
    """What is to be moved: its tensors, and the rules by which they are cut."""

    name: str
    table: Table
    rules: tuple[Rule, ...]


def is_name_or_file(text: str) -> bool:
    """Whether `text` is a built-in model's name or a file that is there."""
    return text in MODELS or Path(text).is_file()


def load_model(text: str, dtype: str | None = None) -> Model:
    """Reads `--model`. `dtype` makes every tensor of that type and leaves scales out.

    Raises Unavailable for a file that is not there, InvalidUse for one that makes no sense.
    """
    try:
        model = _load(text)
    except OSError as error:
        raise Unavailable(f"{error.filename or text}: {error.strerror}") from error
    table = recast(model.table, dtype) if dtype else model.table
    if not nbytes(table):
        raise InvalidUse(f"{text} lists no tensors that have bytes")
    return Model(model.name, table, model.rules)


def _load(text: str) -> Model:
    if text in MODELS:
        return Model(text, MODELS[text].tensors(), named(MODELS[text].kv_heads))
    file = Path(text)
    if not file.is_file():
        reason = f"--model {text} is neither a file nor one of {', '.join(MODELS)}"
        raise Unavailable(reason, "give FILE.safetensors.index.json, or a table shapes.json")
    if file.suffix == _SUFFIX or file.name.endswith(".index.json"):
        return _checkpoint(file)
    return _listed(file)


def _checkpoint(file: Path) -> Model:
    from transport.sharding.importers.safetensors import read_safetensors

    try:
        layouts = read_safetensors(file).layouts
    except InvalidUse as error:
        if file.suffix != ".json":
            raise
        raise InvalidUse(
            f"{error}; an index tells no shapes, its files do: put them beside it, or give a table "
            'shapes.json, {"name": {"shape": [4, 2], "dtype": "bfloat16"}}'
        ) from None
    table = {name: TensorShape(it.layout.shape, it.layout.dtype) for name, it in layouts.items()}
    return Model(file.name, table, named(_kv_heads(file.parent)))


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
    where = f"{file}, tensor {name!r:.80}"
    if not name.isprintable() or len(name) > _LONGEST_NAME:
        raise InvalidUse(f"{where}: a name is printable, of at most {_LONGEST_NAME} characters")
    if not isinstance(entry, dict) or not _are_extents(entry.get("shape")):
        raise InvalidUse(f'{where}: its entry is not {{"shape": [4, 2], "dtype": "bfloat16"}}')
    dtype = str(entry.get("dtype")).removeprefix("torch.")
    if dtype not in ITEMSIZES:
        raise InvalidUse(f"{where}: there is no {dtype:.40}; the types are {', '.join(ITEMSIZES)}")
    try:
        return TensorShape(shape_of(entry["shape"]), dtype)
    except LayoutError as error:
        raise InvalidUse(f"{where}: {error}") from None


def _are_extents(shape: Any) -> bool:
    return isinstance(shape, list) and all(type(length) is int for length in shape)


def _kv_heads(folder: Path) -> int | None:
    """num_key_value_heads of the config.json beside a checkpoint, where there is one."""
    file = folder / "config.json"
    heads = _object(file).get("num_key_value_heads") if file.is_file() else None
    return heads if isinstance(heads, int) and heads > 0 else None


def _object(file: Path) -> dict[str, Any]:
    if file.stat().st_size > _LIMIT:
        raise InvalidUse(f"{file} has over {_LIMIT} bytes: it is no table of shapes")
    try:
        found = json.loads(file.read_bytes(), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise InvalidUse(f"{file} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidUse(f"{file} is not a JSON object")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A tensor that is listed twice would silently be the last one."""
    found = dict(pairs)
    if len(found) < len(pairs):
        times = Counter(name for name, _ in pairs)
        twice = max(times, key=times.__getitem__)
        raise ValueError(f"{twice!r:.80} stands twice")
    return found
