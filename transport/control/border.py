"""The few native calls of the control plane, typed, so that the rest of it needs no C to be tested.

May import ffi, errors and types; calls nothing else of C than what is here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from transport.control.messages import MAX_CONTROL
from transport.errors import Status

if TYPE_CHECKING:
    from transport.ffi import NativeEngine, NativePeer

CONTROL, PEER_DOWN, RETIRED = 1, 2, 3  # enum tn_event_kind


@dataclass(frozen=True, slots=True)
class Event:
    """struct tn_event with its control message."""

    kind: int
    cookie: int
    status: int = 0
    text: str = ""
    data: bytes = b""


class Border(Protocol):
    """What the control plane asks of the native engine. All may be called from any thread."""

    @property
    def event_fd(self) -> int: ...
    def next_event(self) -> Event | None: ...
    def open_peer(self, incarnation: bytes, cookie: int) -> NativePeer: ...
    def open_self(self, cookie: int) -> NativePeer: ...
    def up(self, peer: NativePeer, fd: int, provider: int, notify_depth: int) -> None:
        """Takes the descriptor, also on failure."""

    def down(self, peer: NativePeer, status: int, text: str) -> None: ...
    def send(self, peer: NativePeer, data: bytes) -> bool:
        """False: no room now."""
        ...

    def release(self, peer: NativePeer) -> None: ...


class NativeBorder:
    """The real one."""

    def __init__(self, engine: NativeEngine) -> None:
        from transport import ffi

        self._door = ffi
        self._engine = engine
        self._event = ffi.ffi.new("struct tn_event *")
        self._buffer = ffi.ffi.new("uint8_t[]", MAX_CONTROL)

    @property
    def event_fd(self) -> int:
        return self._door.check(self._door.lib.tn_engine_event_fd(self._engine.pointer))

    def next_event(self) -> Event | None:
        event, door = self._event, self._door
        got = door.lib.tn_engine_next_event(self._engine.pointer, event, self._buffer)
        if door.check(got) == 0:
            return None
        data = b""
        if event.kind == CONTROL:
            data = bytes(door.ffi.buffer(self._buffer, event.length))
        return Event(event.kind, event.cookie, event.status, door.text(event.text), data)

    def open_peer(self, incarnation: bytes, cookie: int) -> NativePeer:
        lib = self._door.lib
        return self._opened(
            lambda out: lib.tn_peer_open(self._engine.pointer, incarnation, cookie, out)
        )

    def open_self(self, cookie: int) -> NativePeer:
        lib = self._door.lib
        return self._opened(lambda out: lib.tn_peer_open_self(self._engine.pointer, cookie, out))

    def _opened(self, call: Any) -> NativePeer:
        out = self._door.ffi.new("struct tn_peer **")
        self._door.check(call(out))
        return self._door.NativePeer(out[0])

    def up(self, peer: NativePeer, fd: int, provider: int, notify_depth: int) -> None:
        self._door.check(self._door.lib.tn_peer_up(peer.pointer, fd, provider, notify_depth))

    def down(self, peer: NativePeer, status: int, text: str) -> None:
        self._door.lib.tn_peer_down(peer.pointer, status, text.encode("utf-8", "replace"))

    def send(self, peer: NativePeer, data: bytes) -> bool:
        status = self._door.lib.tn_peer_send(peer.pointer, data, len(data))
        if status == Status.AGAIN:
            return False
        self._door.check(status)
        return True

    def release(self, peer: NativePeer) -> None:
        self._door.lib.tn_peer_release(peer.pointer)
