"""Where a process of a mesh is reached by others than its owner, and how they knock.

May import control's handshake, doors and channel (only when TCP is used), errors, config. A unix
socket serves the same user (SO_PEERCRED). TCP is opened only where the owner is on another host,
and proves the job's secret both ways before anything else is read.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
import threading
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
_UNPROVEN = 64  # connections that are being proven at once
_SEPARATOR = " "


class Door:
    """Listens; gives sockets whose other end is proven to `adopt`, on any thread."""

    def __init__(self, wheel: Wheel, adopt: Adopt) -> None:
        self._wheel = wheel
        self._adopt = adopt
        self._unproven = threading.BoundedSemaphore(_UNPROVEN)
        self._addresses: list[str] = []
        self._sockets: list[socket.socket] = []
        name = f"tensor-transport/mesh/{secrets.token_hex(16)}"
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.bind(f"\0{name}")
        self._listen(sock, f"unix:@{name}", self._take_unix)

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
        self._listen(sock, f"[{host}]:{port}" if ":" in host else f"{host}:{port}", self._take_tcp)

    def _listen(self, sock: socket.socket, address: str, take: Adopt) -> None:
        sock.listen(_BACKLOG)
        sock.setblocking(False)
        self._sockets.append(sock)
        self._addresses.append(address)
        self._wheel.add(sock.fileno(), lambda events: self._accept(sock, take))

    def _accept(self, sock: socket.socket, take: Adopt) -> None:
        with contextlib.suppress(OSError):  # nobody, or no descriptor left: the next time
            take(sock.accept()[0])

    def _take_unix(self, sock: socket.socket) -> None:
        if _uid(sock) == os.geteuid():
            self._adopt(sock)
        else:
            sock.close()

    def _take_tcp(self, sock: socket.socket) -> None:
        if not self._unproven.acquire(blocking=False):
            sock.close()
            return
        threading.Thread(target=self._prove, args=(sock,), name="door", daemon=True).start()

    def _prove(self, sock: socket.socket) -> None:
        try:
            with contextlib.suppress(TransportError, OSError):
                self._adopt(_proven(sock, initiator=False))
        finally:
            self._unproven.release()


def knock(door: str, timeout: float) -> socket.socket:
    """A socket to the process behind a door, the same host's first. Raises PeerError."""
    error: TransportError = PeerLost("it has no door")
    for address in door.split(_SEPARATOR) if door else ():
        try:
            return _knock(address, timeout)
        except OSError as failed:
            error = PeerLost(f"{address}: {failed.strerror or failed}")
        except TransportError as failed:
            error = failed
    raise error


def _knock(address: str, timeout: float) -> socket.socket:
    if not address.startswith("unix:@"):
        host, _, port = address.rpartition(":")
        sock = socket.create_connection((host.strip("[]"), int(port)), timeout)
        return _proven(sock, initiator=True)
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
def _proven(sock: socket.socket, *, initiator: bool) -> socket.socket:
    """Takes the socket; blocks for the time of the handshake. Raises PeerError."""
    import asyncio

    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        return asyncio.run(_prove_within(sock, initiator))
    except asyncio.TimeoutError:
        raise PeerLost("it did not prove itself in time") from None


async def _prove_within(sock: socket.socket, initiator: bool) -> socket.socket:
    import asyncio

    from transport.control import handshake
    from transport.control.channel import Channel

    settings, channel = Settings.from_env(), Channel(sock)
    try:
        who = _party(settings)
        if initiator:
            proof = handshake.initiate(channel, who, None)
        else:  # there is nothing to negotiate: who asks for an engine's link is refused
            proof = handshake.respond(channel, who, cast(Any, None), _no_link)
        await asyncio.wait_for(proof, settings.connect_timeout)
        return socket.socket(fileno=channel.detach())
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
