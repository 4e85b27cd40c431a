"""Notifications that peers sent here: bounded per peer, never dropped, each after its data.

May import progress, peer, ffi and errors. Unread ones are kept in C; a peer that has used up its
credits waits on its own side.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transport.engine.peer import Peer
from transport.errors import InvalidUse
from transport.ffi import ffi, lib
from transport.types import check_timeout

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from transport.engine.core import Core
    from transport.memory.region import Region

_SLICE_NS = 50_000_000


@dataclass(frozen=True, slots=True)
class Notification:
    """What a peer said once its data was here."""

    payload: bytes
    peer: Peer | None
    """Who sent it; None when it has gone since."""
    region: Region | None
    """The region that it names; None when that was closed meanwhile."""


class Notifications:
    """The unread notifications of one engine. Each is given to one caller; any thread may ask."""

    def __init__(self, parent: Any, core: Core) -> None:
        self._parent = parent
        self._core = core

    def poll(self) -> Notification | None:
        """The oldest unread one, or None."""
        found = ffi.new("struct tn_notification *")
        with self._core:
            if not lib.tn_notification_poll(self._core.native.pointer, found):
                return None
        payload = bytes(ffi.buffer(found.payload, found.length))
        record = self._core.plane.record(found.peer_cookie)
        peer = None if record is None else Peer(self._parent, self._core, record)
        return Notification(payload, peer, self._core.region(found.region_number))

    def wait(self, timeout: float | None = None) -> Notification:
        """Blocks until there is one. Raises TimeoutError after `timeout` seconds."""
        limit = check_timeout(timeout)
        end = None if limit is None else time.monotonic() + limit
        while True:
            found = self.poll()
            if found is not None:
                return found
            left = _SLICE_NS if end is None else int((end - time.monotonic()) * 1e9)
            if left <= 0:
                raise TimeoutError(f"no notification came within {timeout} s")
            with self._core:
                lib.tn_notification_wait(self._core.native.pointer, min(left, _SLICE_NS))

    async def next(self) -> Notification:
        """Waits on the running event loop until there is one."""
        while True:
            came = asyncio.Event()
            with self._core:  # first ask to be told, then look: none is missed in between
                self._core.queues.of_running_loop().want_notifications(came.set)
            found = self.poll()
            if found is not None:
                return found
            await came.wait()

    def __iter__(self) -> Iterator[Notification]:
        """Waits for one after the other; ends when the engine is closed."""
        while True:
            try:
                found = self.wait()
            except InvalidUse:
                if not self._core.gate.closed:
                    raise
                return
            yield found

    async def __aiter__(self) -> AsyncIterator[Notification]:
        while True:
            try:
                found = await self.next()
            except InvalidUse:
                if not self._core.gate.closed:
                    raise
                return
            yield found
