"""Answers one by one, as they come. May import future and shape."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from transport.mesh.future import Future

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from transport.mesh.future import Reply
    from transport.mesh.shape import Shape

T = TypeVar("T")


class Stream(Generic[T]):
    """A future for each actor, in the order in which they answer: the first is done first.

    `for future in stream: future.get()`, or `async for value in stream`.
    """

    def __init__(self, shape: Shape, end: float, overdue: Callable[[], object]) -> None:
        self._futures: list[Future[T]] = [Future(1, _only, end, overdue) for _ in shape.ranks]
        self._order = itertools.count()
        self._lock = threading.Lock()
        self._settled: dict[int, int] = {}  # index of an actor -> place in the order
        self.finished: Callable[[], None] = lambda: None

    @property
    def answered_by(self) -> int:
        """See Future."""
        return self._futures[-1].answered_by

    @answered_by.setter
    def answered_by(self, thread: int) -> None:
        self._futures[-1].answered_by = thread  # the others may be answered before it

    def settle(self, index: int, reply: Reply) -> None:
        with self._lock:
            if index not in self._settled:
                self._settled[index] = next(self._order)
            place, last = self._settled[index], len(self._settled) == len(self._futures)
        self._futures[place].settle(0, reply)
        if last:
            self.finished()

    def __len__(self) -> int:
        return len(self._futures)

    def __iter__(self) -> Iterator[Future[T]]:
        return iter(self._futures)

    async def __aiter__(self) -> AsyncIterator[T]:
        for future in self._futures:
            yield await future


def _only(values: list[Any]) -> Any:
    return values[0]
