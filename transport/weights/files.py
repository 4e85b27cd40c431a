"""Safetensors files as sources: mapped, and read as the memory of peers is.

May import engine, memory, sharding and errors. A checkpoint's files are the ranks of its layout, so
that a cold start is planned and carried out as a sync is: what a rank needs is read, no more.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from transport.errors import InvalidUse
from transport.memory.remote import RemoteRegion
from transport.sharding.importers.safetensors import read_safetensors
from transport.types import UNDECODABLE, Closing

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator
    from pathlib import Path

    from transport.engine.engine import Engine
    from transport.memory.region import Region
    from transport.sharding.state import StateLayout

VERSION = "version"
"""The key of a file's metadata that says which version of the weights it has."""


class _About(msgspec.Struct):
    """A header, without what it says of the tensors."""

    metadata: dict[str, str] = msgspec.field(default_factory=dict, name="__metadata__")


class Files(Closing, Mapping[int, "Mapping[str, RemoteRegion]"]):
    """A .safetensors file, those that an index.json names, or a folder of them; {file: handles}.

    Headers are read and checked when it is made (InvalidUse, LayoutError); a file is mapped when
    its handles are asked for.
    """

    def __init__(self, engine: Engine, path: str | os.PathLike[str]) -> None:
        self._engine = engine
        self._files = read_safetensors(path)
        self._regions: dict[int, Region] = {}
        self._handles: dict[int, dict[str, RemoteRegion]] = {}

    @property
    def layout(self) -> StateLayout:
        """File i has its tensors whole, as rank i."""
        return self._files.layouts

    @property
    def version(self) -> int | None:
        """What `save` has noted in the files; None where it has not. Raises InvalidUse for files of
        several versions, which a save that did not end leaves behind.
        """
        found = {version_of(path) for path in self._files.paths}
        if len(found) > 1:
            raise InvalidUse(f"{self._files.paths[0].parent} has files of versions {found}")
        return found.pop() if found else None

    def __getitem__(self, number: int) -> Mapping[str, RemoteRegion]:
        known = self._handles.get(number)
        if known is None:
            known = self._handles[number] = self._map(number)
        return known

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self._files.paths)))

    def __len__(self) -> int:
        return len(self._files.paths)

    def close(self) -> None:
        """Idempotent."""
        self._handles.clear()
        while self._regions:
            self._regions.popitem()[1].close()

    def _map(self, number: int) -> dict[str, RemoteRegion]:
        path, layout = self._files.paths[number], self._files.layouts
        spans = {name: it for name, it in self._files.spans.items() if it.file == number}
        end = max((it.offset + it.nbytes for it in spans.values()), default=0)
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if len(mapped) < end:
            raise InvalidUse(f"{path} has become shorter: {len(mapped)} bytes, not {end}")
        region = self._engine.register(np.frombuffer(mapped, np.uint8), access="read")
        self._regions[number] = region
        owner, base = region.remote()._owner, region.remote().offset
        return {
            name: RemoteRegion(
                owner, base + it.offset, layout[name].layout.dtype, layout[name].layout.shape
            )
            for name, it in spans.items()
        }


def version_of(path: Path) -> int | None:
    """What the metadata of a file says, whose header has been checked."""
    with path.open("rb") as file:
        text = file.read(int.from_bytes(file.read(8), "little"))
    try:
        noted = msgspec.json.decode(text, type=_About).metadata.get(VERSION, "")
    except UNDECODABLE:  # an odd one is no reason not to load the tensors
        return None
    return int(noted) if noted.isascii() and noted.isdigit() and len(noted) < 19 else None
