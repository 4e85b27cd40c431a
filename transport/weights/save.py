"""One version of published state into safetensors files.

May import engine, sharding, types and errors. The files are one more layout: each takes whole
tensors, which come straight from the publishers into the mapped file.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from transport.errors import InvalidUse, NativeError
from transport.sharding.layout import Layout
from transport.sharding.state import StateLayout
from transport.types import Closing
from transport.weights.files import VERSION, version_of
from transport.weights.subscription import Subscription
from transport.weights.word import MAX_VERSION
from transport.weights.writer import Writer, write_text

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

    from transport.engine.engine import Engine
    from transport.sharding.run import Progress
    from transport.weights.subscription import Fetched, Version

INDEX = "model.safetensors.index.json"
_SUFFIX = ".safetensors"
_MOST_FILES = 99_999  # as many as have five digits
_RESERVED = {VERSION: str(MAX_VERSION), "format": "pt"}


def save(
    engine: Engine,
    name: str,
    path: str | os.PathLike[str],
    sources: Iterable[str],
    *,
    version: Version = "latest",
    files: int = 1,
    part: int | None = None,
    deadline: float | None = None,
    progress: Progress | None = None,
) -> Fetched:
    """Writes one version of what `sources` publish, unsharded, as Hugging Face checkpoints are.

    `path` is one `.safetensors` file; or a folder, made if it is not there, for so many `files` of
    about one size, and an index. With `part` (from 0) only that one of them is written: each rank
    of a job writes its own, all of the same `version`, a number; whoever is the last writes the
    index. Files appear under their names when they are whole and on the disk. Use a folder for each
    version. Raises what `fetch` raises, InvalidUse, and NativeError where the disk is full.
    """
    _check(Path(path), files, part, version)
    with (
        _Folder(Path(path), files, range(files) if part is None else [part]) as folder,
        Subscription(engine, name, sources, folder.receive, 0, ahead=False) as subscription,
    ):
        done = subscription.fetch(version, deadline=deadline, progress=progress)
        folder.commit(done.version)
    return done


def _check(path: Path, files: Any, part: Any, version: Any) -> None:
    if isinstance(files, bool) or not isinstance(files, int) or not 1 <= files <= _MOST_FILES:
        raise InvalidUse(f"files is between 1 and {_MOST_FILES}, not {files!r:.80}")
    if path.suffix == _SUFFIX and files > 1:
        raise InvalidUse(f"{files} files need a folder, not {path}")
    if part is None:
        return
    if isinstance(part, bool) or not isinstance(part, int) or not 0 <= part < files:
        raise InvalidUse(f"part is between 0 and {files - 1}, not {part!r:.80}")
    if isinstance(version, str):
        raise InvalidUse("parts that are written apart must be of one version: give its number")


class _Folder(Closing):
    """Files in the making."""

    def __init__(self, path: Path, files: int, chosen: Iterable[int]) -> None:
        self._single = path.suffix == _SUFFIX
        self._folder = path.parent if self._single else path
        self._names = [path.name] if self._single else _names(files)
        self._chosen = list(chosen)
        self._group: StateLayout | None = None
        self._places: dict[str, int] = {}
        self._writers: dict[int, Writer] = {}

    def receive(self, group: StateLayout) -> tuple[StateLayout, Mapping[str, Any]]:
        """The layout of the chosen files, and their memory."""
        if group != self._group:
            self.close()
            self._group = group
            self._places = _shared_out(group, len(self._names))
            self._open(group)
        into = {name: it for w in self._writers.values() for name, it in w.tensors.items()}
        layouts = [(name, group[name].layout) for name in group if name in into]
        whole = {name: Layout.whole(it.shape, it.dtype) for name, it in layouts}
        return StateLayout(whole), into

    def commit(self, version: int) -> None:
        """Puts the files where they belong, and the index, if they are the last ones."""
        for writer in self._writers.values():
            writer.commit({**_RESERVED, VERSION: str(version)})
        if len(self._names) > 1 and all(
            (self._folder / name).is_file() and version_of(self._folder / name) == version
            for name in self._names
        ):
            write_text(self._folder / INDEX, self._index())

    def close(self) -> None:
        while self._writers:
            self._writers.popitem()[1].close()

    def _open(self, group: StateLayout) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            words, number = error.strerror or "failed", error.errno or 0
            raise NativeError(words, operation=f"mkdir {self._folder}", errno=number) from None
        for number in self._chosen:
            shapes = {
                name: (it.layout.shape, it.layout.dtype)
                for name, it in group.items()
                if self._places[name] == number
            }
            path = self._folder / self._names[number]
            self._writers[number] = Writer(path, shapes, _RESERVED)

    def _index(self) -> bytes:
        assert self._group is not None
        index = {
            "metadata": {"total_size": self._group.nbytes},
            "weight_map": {name: self._names[number] for name, number in self._places.items()},
        }
        return msgspec.json.format(msgspec.json.encode(index), indent=2)


def _names(files: int) -> list[str]:
    if files == 1:
        return ["model.safetensors"]
    return [f"model-{number + 1:05}-of-{files:05}.safetensors" for number in range(files)]


def _shared_out(group: StateLayout, files: int) -> dict[str, int]:
    """The file of each tensor: neighbours stay together, and each file is to have its share of what
    those before it have left, so that one huge tensor takes from no file but its own."""
    left, number, filled, places = group.nbytes, 0, 0, dict[str, int]()
    for name, entry in group.items():
        nbytes = entry.layout.nbytes
        # The next file is begun where that brings this one nearer to its share.
        if number < files - 1 and filled and (2 * filled + nbytes) * (files - number) > 2 * left:
            left, number, filled = left - filled, number + 1, 0
        places[name] = number
        filled += nbytes
    return places
