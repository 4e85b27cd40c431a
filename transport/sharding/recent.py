"""Keeps what was worked out last. Pure; imports nothing of this package."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Recent(Generic[T]):
    """A few values by the digest of what they were made from; the one used longest ago goes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: OrderedDict[bytes, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: bytes, make: Callable[[], T]) -> T:
        """The value, made where it is not here. Two threads may make it both; one is kept."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        made = make()
        with self._lock:
            made = self._kept.setdefault(key, made)
            while len(self._kept) > self._limit:
                self._kept.popitem(last=False)
        return made

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
