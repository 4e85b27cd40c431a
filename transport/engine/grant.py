"""Rights to many memories at once, counted by storage: what is granted twice is registered once.

May import memory, ffi and errors. A storage is registered whole, when the first grant of a part of
it is made, and its region is closed with the last one. Runtimes that hand out references to tensors
need it: two objects may have views of one storage, and each has an end of its own.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

from transport.ffi.handle import Handle
from transport.memory.host import View, extent_of, storage_of, view, whole
from transport.types import check_timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from transport.memory.region import Region
    from transport.memory.remote import RemoteRegion
    from transport.types import Access


class Share:
    """A storage that is registered, and the grants that need it."""

    __slots__ = ("__weakref__", "extent", "key", "region", "storage", "users")

    def __init__(self, key: Any, storage: Any, extent: tuple[int, int], region: Region) -> None:
        self.key = key
        self.storage = storage
        self.extent = extent  # a storage that was resized since is another memory
        self.region = region
        # Weak, so that a grant that is dropped rather than closed does not count for ever.
        self.users: weakref.WeakSet[Grant] = weakref.WeakSet()


class Shares:
    """The storages that grants of one engine have registered. Thread-safe; holds none alive."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: weakref.WeakValueDictionary[Any, Share] = weakref.WeakValueDictionary()

    def take(self, user: Grant, found: View, access: Access, register: Register) -> Share:
        """The share of the storage behind a view, with one more user."""
        storage = storage_of(found)
        if storage is None:  # nothing tells whose memory it is: a region of its own
            return self._keep(Share(None, None, (0, 0), register(found)), user)
        key, extent = (id(storage), access), extent_of(storage, found)
        share = self._joined(key, storage, extent, user)
        if share is None:  # registering may take long: not under the lock
            made = Share(key, storage, extent, register(whole(storage, found)))
            share = self._joined(key, storage, extent, user)
            if share is None:
                return self._keep(made, user)
            made.region.close()  # another thread was as quick
        return share

    def leave(self, user: Grant, shares: Iterable[Share], timeout: float | None) -> None:
        """Closes the regions of those that have no other user."""
        last: list[Share] = []
        with self._lock:
            for share in shares:
                share.users.discard(user)
                if not share.users:
                    last.append(share)
                    if self._known.get(share.key) is share:
                        del self._known[share.key]
        for share in last:
            share.region.close(timeout)

    def _joined(self, key: Any, storage: Any, extent: tuple[int, int], user: Grant) -> Share | None:
        with self._lock:
            share = self._known.get(key)
            if share is None or share.storage is not storage or share.extent != extent:
                return None
            share.users.add(user)
            return share

    def _keep(self, share: Share, user: Grant) -> Share:
        with self._lock:
            share.users.add(user)
            if share.key is not None:
                self._known[share.key] = share
        return share


class Grant(Handle):
    """The right to use some tensors, until it is closed. Made by `Engine.grant`.

    Keeps their memory alive. Keep it as long as peers shall use the memory: one that is dropped is
    closed by the next call of its engine.
    """

    _instead = "send its handles"
    _loss = "; its handles become stale: keep the grant while peers use them"

    def __init__(
        self, parent: object, shares: Shares, things: list[Any], access: Access, register: Register
    ) -> None:
        self._parent = parent  # the engine must outlive its grants
        self._shares = shares
        self._taken: dict[Share, None] = {}
        handles: list[RemoteRegion] = []
        try:
            for thing in things:
                share = shares.take(self, view(thing), access, register)
                self._taken[share] = None
                handles.append(share.region.remote(thing))
        except BaseException:
            shares.leave(self, self._taken, None)
            raise
        self._handles = tuple(handles)
        self._open()

    @property
    def handles(self) -> tuple[RemoteRegion, ...]:
        """One for each tensor, with its dtype, shape and strides, in the order that was given."""
        self._check()
        return self._handles

    @property
    def nbytes(self) -> int:
        """Bytes of the storages that it has registered, alone or with other grants."""
        return sum(share.region.nbytes for share in self._taken)

    def close(self, timeout: float | None = None) -> None:
        """Takes the right back, unless another grant has the same storage. Idempotent.

        Waits for peers that still touch the memory, as `Region.close` does, `timeout` seconds at
        most for each storage.
        """
        check_timeout(timeout)
        closed, self._closed = self._closed, True
        if closed or self._foreign():
            return
        taken, self._taken = self._taken, {}
        self._shares.leave(self, taken, timeout)

    def _ended(self) -> bool:
        return any(share.region.closed for share in self._taken)

    def _describe(self) -> str:
        return f"of {len(self._handles)}"


if TYPE_CHECKING:
    Register = Callable[[View], Region]
