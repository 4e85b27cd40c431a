"""How a fleet and its agents meet: an address, a proof by the secret, and a socket that dies fast.

May import control's handshake, doors and channel. The proof is the engines' own (handshake.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from typing import TYPE_CHECKING, Any, cast

from transport.control import messages as m
from transport.control.doors import dial
from transport.control.handshake import Party, Refused, initiate, respond
from transport.errors import PeerError, PeerLost, PeerRefused
from transport.mesh.hosts import orders

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transport.control.address import Address
    from transport.control.channel import Channel
    from transport.control.secret import Secret
    from transport.types import LinkFacts

_PROOF_TIMEOUT = 10.0
_PAUSE = 0.1
# A host that lost its power or its network is noticed within IDLE + COUNT * EVERY seconds.
_IDLE, _EVERY, _COUNT = 5, 2, 3


def party(name: str, secret: Secret | None) -> Party:
    return Party(m.Identity(secrets.token_bytes(16), name, os.getpid(), 1, ()), secret)


async def welcome(channel: Channel, who: Party) -> orders.Greeting:
    """The accepting side: proof and greeting. Raises PeerError."""
    try:
        # It asks for no link, so there is nothing to negotiate; who asks for one is refused.
        await asyncio.wait_for(respond(channel, who, cast(Any, None), _no_link), _PROOF_TIMEOUT)
        body = await asyncio.wait_for(channel.read_frame(), _PROOF_TIMEOUT)
    except asyncio.TimeoutError:
        raise PeerLost("it did not prove itself in time") from None
    return orders.decode(body, orders.GREETING)


def _no_link(peer: m.Identity, facts: LinkFacts) -> None:
    raise Refused(m.CLOSING, "this is the door of a mesh, not of an engine")


def join(
    addresses: Sequence[Address], who: Party, greeting: orders.Greeting, timeout: float
) -> socket.socket:
    """A blocking socket, proven and greeted, to the first address that takes us.

    They are tried in turn until `timeout` seconds are over. Raises PeerLost, PeerRefused.
    """
    return asyncio.run(_join(addresses, who, greeting, timeout))


async def _join(
    addresses: Sequence[Address], who: Party, greeting: orders.Greeting, timeout: float
) -> socket.socket:
    loop = asyncio.get_running_loop()
    end, error = loop.time() + timeout, cast(PeerError, PeerLost("not tried"))
    while loop.time() < end:
        for address in addresses:
            try:
                return await asyncio.wait_for(_meet(address, who, greeting), _PROOF_TIMEOUT)
            except PeerError as failed:
                # One that refuses may be another job's; if it is ours, the next rounds say so.
                if isinstance(failed, PeerRefused) or not isinstance(error, PeerRefused):
                    error = failed
            except asyncio.TimeoutError:
                error = PeerLost(f"{address} does not answer")
        await asyncio.sleep(_PAUSE)
    shown = ", ".join(map(str, addresses[:2])) + (", ..." if len(addresses) > 2 else "")
    kind = PeerLost if isinstance(error, PeerLost) else PeerRefused
    raise kind(f"nobody at {shown} took this process within {timeout:g} s: {error}")


async def _meet(address: Address, who: Party, greeting: orders.Greeting) -> socket.socket:
    channel = await dial(address)
    try:
        await initiate(channel, who, None)
        await channel.write(orders.frame(greeting))
        # Whoever has another job hangs up; ours says one byte.
        await channel.read(1)
        return owned(channel)
    except BaseException:
        channel.close()
        raise


TAKEN = b"\x01"


def owned(channel: Channel) -> socket.socket:
    """The channel's socket, blocking, which notices within seconds that the other host is gone."""
    sock = socket.socket(fileno=channel.detach())
    sock.setblocking(True)
    guard(sock)
    return sock


def guard(sock: socket.socket) -> None:
    """tcp(7); what a unix socket has not got it does not need."""
    if sock.family == socket.AF_UNIX:
        return
    options = (
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _EVERY),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _COUNT),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * (_IDLE + _EVERY * _COUNT)),
    )
    for option in options:
        with contextlib.suppress(OSError):
            sock.setsockopt(*option)
