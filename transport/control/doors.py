"""Sockets that listen, and sockets that connect. May import address, channel, errors.

What is bound is exactly what was asked for; what goes into handles is what others can connect to.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transport.control.address import Address, TcpAddress, UnixName, UnixPath, is_unix, parse
from transport.control.channel import Channel
from transport.errors import InvalidUse, PeerLost, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transport.control.homes import Homes

_BACKLOG = 1024
_MAX_DOORS = 15  # beside the abstract name; a hello has room for 16 addresses
_PAUSE = 0.005  # before a unix listener whose backlog is full is tried again
_WILDCARDS = ("0.0.0.0", "::")


@dataclass(frozen=True)
class Door:
    """A listening socket and the addresses by which others reach it."""

    sock: socket.socket
    address: Address
    inode: tuple[int, int] | None = None  # of a path, so that only our own is removed
    others: tuple[Address, ...] = ()  # of a host with several

    def close(self) -> None:
        self.sock.close()
        if isinstance(self.address, UnixPath) and self.inode == _inode(self.address.path):
            with contextlib.suppress(OSError):
                Path(self.address.path).unlink()


def open_doors(
    listen: str | Iterable[str] | None,
    advertise: str | None,
    incarnation: bytes,
    homes: Homes,
) -> tuple[Door, ...]:
    """Binds all of them or none. None: only the abstract name; (): no door at all."""
    texts = (listen,) if isinstance(listen, str) else tuple(listen or ())
    if listen is not None and not texts:
        return ()
    if len(texts) > _MAX_DOORS:
        raise InvalidUse(f"listening on {len(texts)} addresses, over {_MAX_DOORS}")
    if advertise is not None:
        _check_advertise(advertise)
    name = UnixName(f"tensor-transport/{incarnation.hex()}")
    doors: list[Door] = []
    try:
        doors.extend(_open(address, advertise, homes) for address in (name, *map(parse, texts)))
    except BaseException:
        for door in doors:
            door.close()
        raise
    return tuple(sorted(doors, key=lambda door: not is_unix(door.address)))


def _open(address: Address, advertise: str | None, homes: Homes) -> Door:
    try:
        if isinstance(address, TcpAddress):
            return _open_tcp(address, advertise, homes)
        return _open_unix(address)
    except OSError as error:
        reason = f"cannot listen on {address}: {error.strerror or error}"
        remedy = "choose another path"
        if isinstance(address, TcpAddress):
            remedy = "choose another address, or port 0 for any free one"
        raise Unavailable(reason, remedy) from None


def _open_tcp(address: TcpAddress, advertise: str | None, homes: Homes) -> Door:
    family, sockaddr = _resolve_now(address)
    hosts = (advertise,) if advertise else _hosts(sockaddr, address, homes)
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(sockaddr)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
        port = int(sock.getsockname()[1])
    except BaseException:
        sock.close()
        raise
    first, *others = (TcpAddress(host, port) for host in hosts)
    return Door(sock, first, others=tuple(others))


def _check_advertise(host: str) -> None:
    address = TcpAddress(host, 0)
    if parse(str(address)) != address:
        raise InvalidUse(f"advertise= takes a host name or number, not {host!r}")


def _resolve_now(address: TcpAddress) -> tuple[int, Any]:
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    family, _, _, _, sockaddr = found[0]
    return family, sockaddr


def _hosts(sockaddr: Any, address: TcpAddress, homes: Homes) -> tuple[str, ...]:
    """The number that is bound, with its scope where it was asked for with one; or all of the
    host's, where every one is bound."""
    if sockaddr[0] not in _WILDCARDS:
        return (address.host if "%" in address.host else str(sockaddr[0]),)
    told = homes.told(6 if sockaddr[0] == "::" else 4)
    if not told:
        raise InvalidUse(
            f"{address} is every address of this host, and none is usable: say advertise= by what "
            "peers reach it, or look at TRANSPORT_TCP_INTERFACES"
        )
    return told


def _open_unix(address: UnixPath | UnixName) -> Door:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The file gets the mode of the socket's inode (Linux): private from its first moment on.
        os.fchmod(sock.fileno(), 0o600)
        _bind_unix(sock, address)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    inode = _inode(address.path) if isinstance(address, UnixPath) else None
    return Door(sock, address, inode)


def _bind_unix(sock: socket.socket, address: UnixPath | UnixName) -> None:
    try:
        sock.bind(address.sockaddr)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        if not taken or not isinstance(address, UnixPath) or not _is_dead(address.path):
            raise
        Path(address.path).unlink()
        sock.bind(address.sockaddr)


def _is_dead(path: str) -> bool:
    """A socket file that nobody listens on any more."""
    if not stat.S_ISSOCK(Path(path).lstat().st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(path) == errno.ECONNREFUSED


def _inode(path: str) -> tuple[int, int] | None:
    with contextlib.suppress(OSError):
        facts = Path(path).lstat()
        return facts.st_dev, facts.st_ino
    return None


# ------------------------------------------------------------------------------------------ outward
async def dial(address: Address) -> Channel:
    """A connected channel. Raises PeerLost; the caller bounds it in time."""
    if not isinstance(address, TcpAddress):
        return await _connect(socket.AF_UNIX, address.sockaddr)
    why = f"{address.host} has no address"
    for family, _, _, _, sockaddr in await _resolve(address):
        try:
            return await _connect(family, sockaddr)
        except PeerLost as failed:
            why = str(failed)  # an error that is kept keeps this frame, and its callers'
    raise PeerLost(why)


async def _resolve(address: TcpAddress) -> list[Any]:
    kind = socket.SOCK_STREAM
    with contextlib.suppress(socket.gaierror):  # a number needs no thread
        return socket.getaddrinfo(
            address.host, address.port, type=kind, flags=socket.AI_NUMERICHOST
        )
    loop = asyncio.get_running_loop()
    try:
        return await loop.getaddrinfo(address.host, address.port, type=kind)
    except socket.gaierror as error:
        raise PeerLost(f"the name {address.host} is not found: {error.strerror}") from None


async def _connect(family: int, sockaddr: Any) -> Channel:
    try:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            await _connect_socket(sock, sockaddr)
            return Channel(sock)
        except BaseException:
            sock.close()
            raise
    except OSError as error:
        # asyncio puts words and the address of its own into strerror.
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise PeerLost(reason.lower()) from None


async def _connect_socket(sock: socket.socket, sockaddr: Any) -> None:
    sock.setblocking(False)
    if sock.family == socket.AF_UNIX:
        await _connect_unix(sock, sockaddr)
    else:
        await asyncio.get_running_loop().sock_connect(sock, sockaddr)
        _check_not_itself(sock)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


async def _connect_unix(sock: socket.socket, sockaddr: str) -> None:
    """A full backlog is EAGAIN here, and nothing becomes writable when it has room (unix(7))."""
    while True:
        try:
            sock.connect(sockaddr)
            return
        except BlockingIOError:
            await asyncio.sleep(_PAUSE)


def _check_not_itself(sock: socket.socket) -> None:
    """A connection to a free ephemeral port of this host can meet itself (RFC 9293, 3.5)."""
    if sock.getsockname() == sock.getpeername():
        raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
