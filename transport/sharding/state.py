"""The layouts of a whole state dict. Pure; may import layout, wire and errors."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping
from functools import cached_property
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from transport.errors import LayoutError
from transport.sharding.layout import Layout
from transport.sharding.sharing import check_sharing
from transport.sharding.wire import decode_state, encode_state


class Entry(NamedTuple):
    """A tensor's layout, and the name of the local tensor that holds it on every rank."""

    layout: Layout
    tensor: str


class StateLayout(Mapping[str, Entry]):
    """Tensor name -> Entry, in order. Immutable; comparable by content through `key`.

    Made from {name: Layout or Entry or (Layout, local tensor's name)}. Equal layouts are kept once:
    100,000 tensors have some hundred.
    """

    def __init__(self, entries: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
        items: Any = entries.items() if isinstance(entries, Mapping) else _pairs(entries)
        shared: dict[bytes, Layout] = {}
        seen: dict[int, Layout] = {}  # what is asked of 100,000 tensors is a look-up
        kept: list[Layout] = []  # so that no id is given out again
        made: dict[str, Entry] = {}
        for name, given in items:
            layout, tensor = given if type(given) is Entry else _entry(name, given)
            if not isinstance(name, str):
                raise LayoutError(f"the name of a tensor is text, not {name!r:.80}")
            known = seen.get(id(layout))
            if known is None:
                known = seen[id(layout)] = shared.setdefault(layout.key, layout)
                kept.append(layout)
            made[name] = Entry(known, tensor)
        self._entries = made
        self._sound: set[int] = set()  # ranks whose local tensors were looked at

    def __getitem__(self, name: str) -> Entry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def items(self) -> ItemsView[str, Entry]:
        return self._entries.items()  # not by looking up each of 100,000 names

    @cached_property
    def layouts(self) -> tuple[Layout, ...]:
        """The distinct ones, in order of first use."""
        return tuple({id(e.layout): e.layout for e in self._entries.values()}.values())

    @cached_property
    def key(self) -> bytes:
        """A digest of the content, order included."""
        places = {id(layout): i for i, layout in enumerate(self.layouts)}
        which = [places[id(entry.layout)] for entry in self._entries.values()]
        names = [*self._entries, *(entry.tensor for entry in self._entries.values())]
        made = blake2b(np.array([*which, *map(len, names)], np.int64).tobytes(), digest_size=16)
        made.update("".join(names).encode())
        for layout in self.layouts:
            made.update(layout.key)
        return made.digest()

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Sorted: those that take part in any of them."""
        found: set[int] = set()
        for layout in self.layouts:
            found.update(layout.ranks.tolist())
        return tuple(sorted(found))

    @property
    def nbytes(self) -> int:
        """Of all tensors, each once."""
        return sum(entry.layout.nbytes for entry in self._entries.values())

    def local_shapes(self, rank: int) -> dict[str, tuple[tuple[int, ...], str]]:
        """Local tensor name -> its shape and dtype, of the tensors that `rank` takes part in.

        Raises LayoutError where two entries need different shapes of one local tensor, or the same
        elements of it.
        """
        held = {id(layout): _local(layout, rank) for layout in self.layouts}
        shapes: dict[str, tuple[tuple[int, ...], str]] = {}
        for name, entry in self._entries.items():
            local = held[id(entry.layout)]
            if local is None:
                continue
            if shapes.setdefault(entry.tensor, local) != local:
                raise LayoutError(
                    f"{name!r} needs {entry.tensor!r} of rank {rank} to be {local}, "
                    f"others need {shapes[entry.tensor]}"
                )
        self._check_sharing(rank)
        return shapes

    @cached_property
    def _shared(self) -> dict[str, list[str]]:
        """Local tensor -> its tensors, for those that hold several."""
        found: dict[str, list[str]] = {}
        for name, entry in self._entries.items():
            found.setdefault(entry.tensor, []).append(name)
        return {tensor: names for tensor, names in found.items() if len(names) > 1}

    def _check_sharing(self, rank: int) -> None:
        if rank in self._sound:
            return
        alike: set[tuple[int, ...]] = set()  # the layers of a model share their tensors alike
        for tensor, names in self._shared.items():
            layouts = [self._entries[name].layout for name in names]
            once = tuple(map(id, layouts))
            if once in alike:
                continue
            alike.add(once)
            held = [n for n, layout in enumerate(layouts) if _local(layout, rank) is not None]
            check_sharing(rank, tensor, [names[n] for n in held], [layouts[n] for n in held])
        self._sound.add(rank)

    def encode(self) -> bytes:
        """As bytes, for another engine. Equal layouts and meshes are in it once."""
        return encode_state(self.layouts, [(n, e.layout, e.tensor) for n, e in self.items()])

    @classmethod
    def decode(cls, data: bytes) -> StateLayout:
        """The opposite of `encode`. Raises LayoutError for bytes that describe no layouts."""
        return cls({name: Entry(layout, tensor) for name, layout, tensor in decode_state(data)})

    def __eq__(self, other: object) -> bool:
        return self.key == other.key if isinstance(other, StateLayout) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.key)

    def __reduce__(self) -> tuple[Any, ...]:
        return StateLayout.decode, (self.encode(),)

    def __repr__(self) -> str:
        return f"<StateLayout tensors={len(self)} layouts={len(self.layouts)}>"


def _pairs(entries: Any) -> Iterator[tuple[Any, Any]]:
    """Raises LayoutError where these are no pairs."""
    for pair in entries if isinstance(entries, Iterable) else [entries]:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise LayoutError(f"layouts are given by name, {{'w': layout}}, not as {entries!r:.80}")
        yield pair[0], pair[1]


def _entry(name: str, given: Any) -> Entry:
    if isinstance(given, Layout):
        return Entry(given, name)
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], Layout):
        return Entry(given[0], str(given[1]))
    raise LayoutError(f"{name!r} is described by {given!r:.80}, which is no layout")


def _local(layout: Layout, rank: int) -> tuple[tuple[int, ...], str] | None:
    table = layout.table
    row = int(table.ranks.searchsorted(rank))
    if row == len(table.ranks) or table.ranks[row] != rank:
        return None
    return tuple(table.local_shapes[row].tolist()), layout.dtype
