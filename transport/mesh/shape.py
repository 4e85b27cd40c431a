"""Named dimensions of a mesh, and views of it. Pure; imports errors only.

A shape lists, in row-major order, which members of the whole mesh it shows. A view is another
list; the members are never copied.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from transport.errors import InvalidUse, OutOfRange


@dataclass(frozen=True)
class Point(Mapping[str, int]):
    """Coordinates by dimension name, and the `rank`: the place in row-major order."""

    rank: int
    sizes: Mapping[str, int]

    def __getitem__(self, name: str) -> int:
        rest = self.rank
        for other in reversed(tuple(self.sizes)):
            rest, coordinate = divmod(rest, self.sizes[other])
            if other == name:
                return coordinate
        raise KeyError(f"no dimension {name!r}; there are {', '.join(self.sizes)}")

    def __iter__(self) -> Iterator[str]:
        return iter(self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def __hash__(self) -> int:
        return hash((self.rank, tuple(self.sizes.items())))

    def __repr__(self) -> str:
        return f"Point({', '.join(f'{name}={self[name]}' for name in self)})"


class Shape:
    """`sizes` by name, and the `ranks` that it shows."""

    __slots__ = ("ranks", "sizes")

    def __init__(self, sizes: Mapping[str, int], ranks: tuple[int, ...] | None = None) -> None:
        for name, size in sizes.items():
            if not _is_count(size):
                raise InvalidUse(f"dimension {name!r} has a size of at least 1, not {size!r}")
        self.sizes: dict[str, int] = dict(sizes)
        count = math.prod(self.sizes.values())
        self.ranks = tuple(range(count)) if ranks is None else ranks
        if len(self.ranks) != count:
            raise InvalidUse(f"{len(self.ranks)} members do not make {self.describe()}")

    def __len__(self) -> int:
        return len(self.ranks)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Shape):
            return NotImplemented
        mine, theirs = tuple(self.sizes.items()), tuple(other.sizes.items())
        return self.ranks == other.ranks and mine == theirs

    def __hash__(self) -> int:
        return hash((self.ranks, tuple(self.sizes.items())))

    def __repr__(self) -> str:
        return f"Shape({self.describe()})"

    def describe(self) -> str:
        return " x ".join(f"{name}={size}" for name, size in self.sizes.items()) or "1"

    def point(self, index: int) -> Point:
        return Point(index, self.sizes)

    def points(self) -> Iterator[Point]:
        return map(self.point, range(len(self)))

    def index(self, coordinates: Mapping[str, int]) -> int:
        """Of the member with these coordinates, one for each dimension. Raises OutOfRange."""
        self._check_names(coordinates)
        missing = [name for name in self.sizes if name not in coordinates]
        if missing:
            raise InvalidUse(f"one member needs all coordinates; missing: {', '.join(missing)}")
        index = 0
        for name, size in self.sizes.items():
            index = index * size + _one(name, coordinates[name], size)
        return index

    def size(self, *names: str) -> int:
        """Members along these dimensions; of the whole without a name."""
        self._check_names(names)
        return math.prod(self.sizes[name] for name in names or self.sizes)

    def slice(self, **picks: int | slice) -> Shape:
        """A number picks one place and drops the dimension; a slice keeps it."""
        self._check_names(picks)
        chosen: list[range] = []
        kept: dict[str, int] = {}
        for name, size in self.sizes.items():
            places = _places(name, picks.get(name, slice(None)), size)
            chosen.append(places)
            if isinstance(picks.get(name), slice) or name not in picks:
                kept[name] = len(places)
        indexes = [0]
        for places, size in zip(chosen, self.sizes.values()):
            indexes = [index * size + place for index in indexes for place in places]
        return Shape(kept, tuple(self.ranks[index] for index in indexes))

    def flatten(self, name: str) -> Shape:
        """All in one dimension, in row-major order."""
        return Shape({name: len(self)}, self.ranks)

    def rename(self, **names: str) -> Shape:
        """`rename(old="new")`."""
        self._check_names(names)
        renamed = [names.get(name, name) for name in self.sizes]
        if len(set(renamed)) != len(renamed):
            raise InvalidUse(f"two dimensions would be named alike: {', '.join(renamed)}")
        return Shape(dict(zip(renamed, self.sizes.values())), self.ranks)

    def split(self, name: str, **sizes: int) -> Shape:
        """`split("rank", replica=2, shard=4)`: one dimension becomes several."""
        self._check_names([name])
        if math.prod(sizes.values()) != self.sizes[name]:
            raise InvalidUse(f"{sizes} does not make up the {self.sizes[name]} of {name!r}")
        parts: dict[str, int] = {}
        for other, size in self.sizes.items():
            for new, count in sizes.items() if other == name else [(other, size)]:
                if new in parts:
                    raise InvalidUse(f"two dimensions would be named {new!r}")
                parts[new] = count
        return Shape(parts, self.ranks)

    def _check_names(self, names: Any) -> None:
        for name in names:
            if name not in self.sizes:
                there = ", ".join(self.sizes) or "none"
                raise InvalidUse(f"there is no dimension {name!r}; there are: {there}")


def _is_count(size: object) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and size >= 1


def _places(name: str, pick: object, size: int) -> range:
    if isinstance(pick, slice):
        places = range(size)[pick]
        if not places:
            raise OutOfRange(f"{name}={pick} of {size} is empty")
        return places
    place = _one(name, pick, size)
    return range(place, place + 1)


def _one(name: str, place: object, size: int) -> int:
    if not isinstance(place, int) or isinstance(place, bool):
        raise InvalidUse(f"{name}= takes a number or a slice, not {place!r}")
    if not -size <= place < size:
        raise OutOfRange(f"{name}={place} is outside 0 to {size - 1}")
    return place % size
