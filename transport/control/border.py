"""The few native calls of the control plane, typed. May import ffi, messages and errors.

The rest of the control plane calls nothing of C but through here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transport.control.messages import MAX_CONTROL
from transport.errors import Status
from transport.ffi import NativePeer, check, ffi, lib, text

if TYPE_CHECKING:
    from transport.ffi import NativeEngine

CONTROL, PEER_DOWN, RETIRED, PROVIDER, WIDEN = 1, 2, 3, 4, 5  # enum tn_event_kind


@dataclass(frozen=True, slots=True)
class Event:
    """struct tn_event with its control message."""

    kind: int
    cookie: int
    status: int = 0
    text: str = ""
    data: bytes = b""


class Border:
    """One engine's peers and events. Any thread may call, but events are for one thread to take."""

    def __init__(self, engine: NativeEngine) -> None:
        self._engine = engine
        self._event = ffi.new("struct tn_event *")
        self._buffer = ffi.new("uint8_t[]", MAX_CONTROL)

    @property
    def event_fd(self) -> int:
        return check(lib.tn_engine_event_fd(self._engine.pointer))

    def next_event(self) -> Event | None:
        event = self._event
        got = lib.tn_engine_next_event(self._engine.pointer, event, self._buffer)
        if check(got) == 0:
            return None
        data = b""
        if event.kind == CONTROL:
            data = bytes(ffi.buffer(self._buffer, event.length))
        return Event(event.kind, event.cookie, event.status, text(event.text), data)

    def open_peer(self, incarnation: bytes, cookie: int) -> NativePeer:
        return self._opened(
            lambda out: lib.tn_peer_open(self._engine.pointer, incarnation, cookie, out)
        )

    def open_self(self, cookie: int) -> NativePeer:
        return self._opened(lambda out: lib.tn_peer_open_self(self._engine.pointer, cookie, out))

    def _opened(self, call: Any) -> NativePeer:
        out = ffi.new("struct tn_peer **")
        check(call(out))
        return NativePeer(out[0])

    def up(self, peer: NativePeer, fd: int, provider: int, notify_depth: int) -> None:
        check(lib.tn_peer_up(peer.pointer, fd, provider, notify_depth))

    def join(self, peer: NativePeer, fd: int) -> None:
        check(lib.tn_peer_join(peer.pointer, fd))

    def down(self, peer: NativePeer, status: int, text: str) -> None:
        lib.tn_peer_down(peer.pointer, status, text.encode("utf-8", "replace"))

    def send(self, peer: NativePeer, data: bytes) -> bool:
        status = lib.tn_peer_send(peer.pointer, data, len(data))
        if status == Status.AGAIN:
            return False
        check(status)
        return True

    def release(self, peer: NativePeer) -> None:
        lib.tn_peer_release(peer.pointer)
