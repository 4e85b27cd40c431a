"""The table of which carrier is the fastest for what, as `transport bench collectives` finds it.

May import card, config and errors. Rank 0 reads it when a group is made; its rules travel to all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from transport.collectives.card import Rule
from transport.config import Settings
from transport.errors import InvalidUse
from transport.types import UNDECODABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

SCHEMA = 1
_MAX_BYTES = 1 << 20
_MAX_RULES = 4096

DEFAULT: tuple[Rule, ...] = (
    Rule("*", "cpu", 0, "onesided"),  # what gloo refuses
    Rule("*", "cpu", 0, "gloo"),
    Rule("*", "cuda", 0, "onesided"),  # what NCCL refuses, and where there is none
    Rule("*", "cuda", 0, "nccl"),
    Rule("*", "cpu", 0, "onesided", 8, True),
)
"""Of what docs/status.md measured; bytes are those of one part."""


class _Row(msgspec.Struct, forbid_unknown_fields=True):
    kind: str
    device: str
    least: int
    carrier: str
    ranks: int = 0
    near: bool = False


class _File(msgspec.Struct, forbid_unknown_fields=True):
    schema: int
    rules: list[_Row]


def rules() -> tuple[Rule, ...]:
    """What the setting collectives_table names, or the default. Raises InvalidUse for a file that
    is no table."""
    file = Settings.from_env().collectives_table
    return DEFAULT if file is None else (*DEFAULT, *read(file))


def read(file: Path) -> tuple[Rule, ...]:
    """The rules of a file. Raises InvalidUse."""
    try:
        data = file.read_bytes()[: _MAX_BYTES + 1]
    except OSError as error:
        raise InvalidUse(f"TRANSPORT_COLLECTIVES_TABLE: {file} cannot be read: {error}") from None
    try:
        found = msgspec.json.decode(data, type=_File)
        rows = [msgspec.structs.asdict(row) for row in found.rules]
        made = tuple(msgspec.convert(list(row.values()), Rule) for row in rows)
    except UNDECODABLE as error:
        raise InvalidUse(f"{file} is no table of collectives: {error}") from None
    if found.schema != SCHEMA or len(made) > _MAX_RULES:
        raise InvalidUse(f"{file} is no table of schema {SCHEMA} with at most {_MAX_RULES} rules")
    return made


def write(file: Path, found: Iterable[Rule]) -> None:
    """Raises OSError."""
    rows = [_Row(it.kind, it.device, it.least, it.carrier, it.ranks, it.near) for it in found]
    data = msgspec.json.encode(_File(SCHEMA, rows))
    file.write_bytes(msgspec.json.format(data) + b"\n")


def learn(
    kind: str, device: str, times: Mapping[int, Mapping[str, float]], *, ranks: int, near: bool
) -> list[Rule]:
    """Rules from measured seconds, by bytes of a part and carrier: the fastest from each size on.

    Neighbouring sizes with the same winner are one rule.
    """
    made: list[Rule] = []
    for size in sorted(times):
        best = min(times[size], key=lambda name: times[size][name])
        if not made or made[-1].carrier != best:
            made.append(Rule(kind, device, size if made else 0, best, ranks, near))
    return made
