"""The sockets of one gloo context, so that it can be interrupted. Linux; imports stdlib and errors.

gloo 2.13 has no way to end a collective that waits for a rank: its abort() does nothing. What ends
it at once is that its connections end, so they are found when the context has been made: by the
addresses that its ranks exchanged, which no other socket of the process can have.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from transport.types import Closing

if TYPE_CHECKING:
    from collections.abc import Iterable


class Links(Closing):
    """Duplicates of the descriptors: they name the same connections also after gloo closed its."""

    def __init__(self, told: Iterable[bytes]) -> None:
        """`told` is what the ranks have put into the store: addresses are in there."""
        blobs = b"|".join(told)
        self._sockets = [sock for sock in _connected() if _known(sock, blobs)]

    def __len__(self) -> int:
        return len(self._sockets)

    def cut(self) -> None:
        """Ends the connections: whoever waits for them, here and at the peers, fails. Idempotent.

        What was handed to the kernel before still reaches the peers.
        """
        for sock in self._sockets:
            with contextlib.suppress(OSError):  # the peer did so before
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()


def _connected() -> list[socket.socket]:
    found: list[socket.socket] = []
    for name in list(Path("/proc/self/fd").iterdir()):
        if any(int(name.name) == sock.fileno() for sock in found):
            continue  # a number that was the directory's own when it was listed
        with contextlib.suppress(OSError):  # closed meanwhile
            copy = os.dup(int(name.name))
            if not stat.S_ISSOCK(os.fstat(copy).st_mode):
                os.close(copy)
                continue
            sock = socket.socket(fileno=copy)
            if sock.family in (socket.AF_INET, socket.AF_INET6) and _ends(sock):
                found.append(sock)
            else:
                sock.close()
    return found


def _ends(sock: socket.socket) -> list[bytes]:
    """Both of its addresses, each as it begins in a struct sockaddr; none if not connected."""
    try:
        return [_packed(sock.family, *end[:2]) for end in (sock.getsockname(), sock.getpeername())]
    except OSError:
        return []


def _packed(family: int, host: str, port: int) -> bytes:
    packed = socket.inet_pton(family, host.partition("%")[0])
    between = b"" if family == socket.AF_INET else bytes(4)  # sin6_flowinfo
    return struct.pack("=H", family) + struct.pack("!H", port) + between + packed


def _known(sock: socket.socket, blobs: bytes) -> bool:
    if any(end in blobs for end in _ends(sock)):
        return True
    sock.close()
    return False
