"""Where a process of a mesh is reached by others than its owner, and how they knock.

May import strangers, control's handshake and channel (only when TCP is used), errors, config. A
unix socket serves the same user (SO_PEERCRED). TCP is opened only where the owner is on another
host, and proves the job's secret both ways before anything else is read.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import random
import secrets
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Any, cast

from transport.config import Settings
from transport.errors import PeerLost, PeerRefused, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable

    from transport.control.handshake import Party
    from transport.mesh.wheel import Wheel

    Adopt = Callable[[socket.socket], object]

_PEERCRED = struct.Struct("3i")  # struct ucred: pid, uid, gid (unix(7))
_BACKLOG = 1024
_UNPROVEN = 256  # connections that are being proven at once
_PAUSE = 0.02  # seconds before whoever was not let in knocks again; doubled each time
_SEPARATOR = " "


class Door:
    """Listens; gives sockets whose other end is proven to `adopt`, on any thread."""

    def __init__(self, wheel: Wheel, adopt: Adopt) -> None:
        self._wheel = wheel
        self._adopt = adopt
        self._addresses: list[str] = []
        self._sockets: list[socket.socket] = []
        name = f"tensor-transport/mesh/{secrets.token_hex(16)}"
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.bind(f"\0{name}")
        self._listen(sock, f"unix:@{name}")
        self._wheel.add(sock.fileno(), lambda events: self._accept(sock))

    @property
    def text(self) -> str:
        """All addresses."""
        return _SEPARATOR.join(self._addresses)

    def open_tcp(self, host: str) -> None:
        """Also on this address of this host."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.bind((host, 0))
        port = sock.getsockname()[1]
        self._listen(sock, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        threading.Thread(target=self._admit, args=(sock,), name="door", daemon=True).start()

    def _listen(self, sock: socket.socket, address: str) -> None:
        sock.listen(_BACKLOG)
        sock.setblocking(False)
        self._sockets.append(sock)
        self._addresses.append(address)

    def _accept(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):  # nobody, or no descriptor left: the next time
            self._take_unix(sock.accept()[0])

    def _take_unix(self, sock: socket.socket) -> None:
        if _uid(sock) == os.geteuid():
            self._adopt(sock)
        else:
            sock.close()

    def _admit(self, sock: socket.socket) -> None:
        """Runs for as long as the process, in a thread that wakes for newcomers alone."""
        import asyncio

        from transport.mesh.strangers import Strangers

        asyncio.run(Strangers(_UNPROVEN, self._take_tcp).accept(sock))

    async def _take_tcp(self, sock: socket.socket) -> None:
        with contextlib.suppress(TransportError, OSError):
            self._adopt(await _prove(sock, Settings.from_env().connect_timeout, initiator=False))


def knock(door: str, timeout: float) -> socket.socket:
    """A socket to the process behind a door, the same host's first. Raises PeerError."""
    end = time.monotonic() + timeout
    error: TransportError = PeerLost("it has no door")
    for address in door.split(_SEPARATOR) if door else ():
        try:
            if address.startswith("unix:@"):
                return _knock_unix(address, timeout)
            return _knock_tcp(address, end)
        except OSError as failed:
            error = PeerLost(f"{address}: {failed.strerror or failed}")
        except TransportError as failed:
            error = failed
    raise error


def _knock_tcp(address: str, end: float) -> socket.socket:
    """Again and again when it hangs up: among many that knock we may have had to give way."""
    host, _, port = address.rpartition(":")
    pause = _PAUSE
    while True:
        left = max(end - time.monotonic(), _PAUSE)
        sock = socket.create_connection((host.strip("[]"), int(port)), left)
        try:
            return _proven(sock, max(end - time.monotonic(), _PAUSE))
        except PeerLost:
            wait = pause * (0.5 + random.random())  # not all at the same time
            if time.monotonic() + wait >= end:
                raise
            time.sleep(wait)
            pause *= 2


def _knock_unix(address: str, timeout: float) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout)
        sock.connect("\0" + address.removeprefix("unix:@"))
        if _uid(sock) != os.geteuid():
            raise PeerRefused("the process behind the door belongs to another user")
    except BaseException:
        sock.close()
        raise
    return sock


def _uid(sock: socket.socket) -> int:
    return int(_PEERCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1])


# ------------------------------------------------------------------------------------------- proof
def _proven(sock: socket.socket, timeout: float) -> socket.socket:
    """Takes the socket; blocks for the time of the handshake. Raises PeerError."""
    import asyncio

    # In another thread: in this one an event loop may run, an async actor's.
    with concurrent.futures.ThreadPoolExecutor(1, "knock") as thread:
        return thread.submit(asyncio.run, _prove(sock, timeout, initiator=True)).result()


async def _prove(sock: socket.socket, timeout: float, *, initiator: bool) -> socket.socket:
    """Takes the socket. Raises PeerError, OSError."""
    import asyncio

    from transport.control import handshake
    from transport.control.channel import Channel

    channel = Channel(sock)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        who = _party(Settings.from_env())
        if initiator:
            proof = handshake.initiate(channel, who, None)
        else:  # there is nothing to negotiate: who asks for an engine's link is refused
            proof = handshake.respond(channel, who, cast(Any, None), _no_link)
        await asyncio.wait_for(proof, timeout)
        return socket.socket(fileno=channel.detach())
    except asyncio.TimeoutError:
        channel.close()
        raise PeerLost("it did not prove itself in time") from None
    except BaseException:
        channel.close()
        raise


def _party(settings: Settings) -> Party:
    from transport.control.handshake import Party
    from transport.control.messages import Identity
    from transport.control.secret import resolve

    identity = Identity(secrets.token_bytes(16), "mesh", os.getpid(), 1, ())
    return Party(identity, resolve(None, settings))


def _no_link(peer: object, facts: object) -> None:
    from transport.control import messages
    from transport.control.handshake import Refused

    raise Refused(messages.CLOSING, "this is the door of a mesh, not of an engine")
