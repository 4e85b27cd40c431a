"""A connected socket during the handshake: exact reads, bounded frames, descriptors, one owner.

May import messages and errors. It never reads beyond the frame that was asked for, because the
socket goes to C afterwards with whatever the peer has sent by then. Whatever descriptors came along
belong to the channel until they are taken, so that closing it closes them on every path.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import socket
import struct
from typing import TYPE_CHECKING

from transport.control.messages import LENGTH, MAX_DESCRIPTORS, MAX_FRAME
from transport.errors import PeerLost, PeerRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_PEERCRED = struct.Struct("3i")  # struct ucred: pid, uid, gid (unix(7))
_INTS = array.array("i").itemsize


class Channel:
    """Owns a non-blocking stream socket and the descriptors that were received on it."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._received: list[int] = []
        self.is_unix = sock.family == socket.AF_UNIX
        self.pid, self.uid = _credentials(sock) if self.is_unix else (0, -1)

    async def read(self, length: int) -> bytes:
        """Exactly so many bytes. Descriptors that come with them are dropped by the kernel."""
        return await self._read(length, lambda want: self._socket.recv(want))

    async def read_frame(self, *, descriptors: bool = False) -> bytes:
        """A frame's body. Without `descriptors` none is ever installed in this process."""
        if descriptors and self.is_unix:
            header = await self._read(LENGTH.size, self._receive_with_descriptors)
        else:
            header = await self.read(LENGTH.size)
        (length,) = LENGTH.unpack(header)
        if not 0 < length <= MAX_FRAME:
            raise PeerRefused(f"the peer broke the handshake protocol: a frame of {length} bytes")
        return await self.read(length)

    async def write(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        """All of it; descriptors travel with the first byte."""
        view = memoryview(data)
        rights: list[tuple[int, int, array.array[int]]] = []
        if descriptors:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        while view:
            try:
                sent = self._socket.sendmsg([view], rights, socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                await self._until(writable=True)
                continue
            except OSError as error:
                raise _lost(error) from None
            view, rights = view[sent:], []

    async def drain(self, seconds: float = 0.5) -> None:
        """Says that nothing more comes and reads on for a moment: closing a TCP socket with unread
        bytes resets it, and the peer would lose what was last said to it."""
        with contextlib.suppress(OSError, PeerLost, asyncio.TimeoutError):
            self._socket.shutdown(socket.SHUT_WR)
            await asyncio.wait_for(self.read(MAX_FRAME), seconds)

    @property
    def received(self) -> int:
        """How many descriptors have come and not been taken."""
        return len(self._received)

    def take(self, count: int) -> tuple[int, ...]:
        """The next `count` received descriptors; the caller owns them from now on."""
        taken, self._received = self._received[:count], self._received[count:]
        return tuple(taken)

    def detach(self) -> int:
        """The socket's descriptor; the caller owns it from now on."""
        return self._socket.detach()

    def close(self) -> None:
        """Idempotent. Closes the socket and every descriptor that nobody has taken."""
        received, self._received = self._received, []
        for fd in received:
            os.close(fd)
        self._socket.close()

    async def _read(self, length: int, receive: Callable[[int], bytes]) -> bytes:
        parts: list[bytes] = []
        while length:
            try:
                part = receive(length)
            except (BlockingIOError, InterruptedError):
                await self._until(writable=False)
                continue
            except OSError as error:
                raise _lost(error) from None
            if not part:
                raise PeerLost("the peer closed the connection during the handshake")
            parts.append(part)
            length -= len(part)
        return b"".join(parts)

    def _receive_with_descriptors(self, want: int) -> bytes:
        room = socket.CMSG_SPACE(MAX_DESCRIPTORS * _INTS)
        data, ancillary, flags, _ = self._socket.recvmsg(want, room, socket.MSG_CMSG_CLOEXEC)
        for level, kind, rights in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(rights[: len(rights) - len(rights) % _INTS])
                self._received.extend(fds)
        if len(self._received) > MAX_DESCRIPTORS:
            raise PeerRefused("the peer broke the handshake protocol: too many descriptors")
        if flags & socket.MSG_CTRUNC:
            raise PeerRefused(
                "the peer's descriptors did not all arrive: it sent too many, or this process may"
                " have no more (ulimit -n)"
            )
        return data

    async def _until(self, *, writable: bool) -> None:
        loop, fd = asyncio.get_running_loop(), self._socket.fileno()
        ready: asyncio.Future[None] = loop.create_future()
        add = loop.add_writer if writable else loop.add_reader
        remove = loop.remove_writer if writable else loop.remove_reader
        add(fd, _set, ready)
        try:
            await ready
        finally:
            remove(fd)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _credentials(sock: socket.socket) -> tuple[int, int]:
    """Process and user at the other end when it connected or listened, as the kernel knows."""
    with contextlib.suppress(OSError):
        raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size)
        pid, uid, _ = _PEERCRED.unpack(raw)
        return pid, uid
    return 0, -1


def _lost(error: OSError) -> PeerLost:
    return PeerLost(f"the connection broke during the handshake: {error.strerror or error}")
