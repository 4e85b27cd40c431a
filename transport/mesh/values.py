"""What a call to several actors gives: one value for each, with the mesh's dimensions. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transport.mesh.shape import Point, Shape

T = TypeVar("T")
U = TypeVar("U")


class ValueMesh(Generic[T]):
    """Values in row-major order of a shape. Iterating gives (point, value)."""

    __slots__ = ("_shape", "_values")

    def __init__(self, shape: Shape, values: tuple[T, ...]) -> None:
        self._shape = shape
        self._values = dict(zip(shape.ranks, values))

    @property
    def sizes(self) -> dict[str, int]:
        return dict(self._shape.sizes)

    def size(self, *names: str) -> int:
        """How many along these dimensions; of the whole without a name."""
        return self._shape.size(*names)

    def item(self, **coordinates: int) -> T:
        """The value at these coordinates; none are needed where there is one value."""
        if not coordinates and len(self._shape) == 1:
            return self._values[self._shape.ranks[0]]
        return self._values[self._shape.ranks[self._shape.index(coordinates)]]

    def values(self) -> list[T]:
        return [self._values[rank] for rank in self._shape.ranks]

    def items(self) -> Iterator[tuple[Point, T]]:
        return zip(self._shape.points(), self.values())

    __iter__ = items

    def __len__(self) -> int:
        return len(self._shape)

    def map(self, function: Callable[[T], U]) -> ValueMesh[U]:
        return ValueMesh(self._shape, tuple(map(function, self.values())))

    def slice(self, **picks: int | slice) -> ValueMesh[T]:
        return self._view(self._shape.slice(**picks))

    def flatten(self, name: str) -> ValueMesh[T]:
        return self._view(self._shape.flatten(name))

    def rename(self, **names: str) -> ValueMesh[T]:
        return self._view(self._shape.rename(**names))

    def _view(self, shape: Shape) -> ValueMesh[T]:
        view = ValueMesh.__new__(ValueMesh)
        view._shape, view._values = shape, self._values
        return view

    def __repr__(self) -> str:
        return f"ValueMesh({self._shape.describe()}: {self.values()!r:.500})"
