"""A peer that proves itself with the secret and then says whatever it likes on its link.

May import the handshake; what it sends is made here, byte by byte.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct

from transport.control import handshake
from transport.control.address import parse
from transport.control.doors import dial
from transport.control.handshake import Party
from transport.control.messages import Identity
from transport.control.secret import Secret

_HEADER = struct.Struct("<IBBhQQQQ16sQ")  # struct tn_header
_MAGIC = 0x4B4C4E54
PING, PONG, READ, DATA, WRITE, WRITE_DONE, NOTIFY = range(1, 8)
NOTIFY_DONE, CREDIT, CONTROL, SEGMENT, SEGMENT_FD, BYE = range(8, 14)


class _NoProvider:
    """Only the stream is used."""

    def begin(self, facts):
        del facts

    def offers(self):
        return {}

    def consider(self, offers, reasons):
        del reasons
        for offer in offers.values():
            for fd in offer.fds:
                os.close(fd)

    def reasons(self):
        return {}

    def settle(self, providers, reasons):
        del providers, reasons


def connect(address, secret, incarnation=None):
    """The socket of a link that is up at the other end."""

    async def prove():
        channel = await dial(parse(address))
        me = Identity(incarnation or os.urandom(16), "hostile", os.getpid(), 64, ())
        await handshake.initiate(channel, Party(me, Secret(secret.encode())), _NoProvider())
        return socket.socket(fileno=channel.detach())

    link = asyncio.run(prove())
    link.settimeout(60)
    return link


def frame(
    kind,
    payload=b"",
    *,
    length=None,
    flags=0,
    status=0,
    number=0,
    region=0,
    generation=0,
    key=bytes(16),
    offset=0,
    magic=_MAGIC,
):
    """Any frame, allowed or not."""
    size = len(payload) if length is None else length
    header = _HEADER.pack(magic, kind, flags, status, number, size, region, generation, key, offset)
    return header + payload


def ends(link):
    """Whether the other end closes the connection, soon; what it says before is thrown away."""
    link.settimeout(60)
    with contextlib.suppress(ConnectionError):
        while link.recv(1 << 16):
            pass
    return True
