"""One-sided reads and writes over TCP sockets: works wherever two engines can connect.

May import types and ffi. The link is native/providers/tcp and is made by tn_peer_up; what the two
sides agree on here is how many sockets it may have. The one that connected opens those beside the
first, when a transfer is large enough to need them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transport.errors import PeerRefused
from transport.ffi import check, lib
from transport.types import LinkFacts, Offer, Viability

if TYPE_CHECKING:
    from transport.config import Settings
    from transport.ffi import NativeEngine, NativePeer
    from transport.providers.base import Connection

__all__ = ["PROVIDER"]


class TcpConnection:
    """How many sockets one peer may have: the lesser of what both sides want."""

    def __init__(self, streams: int) -> None:
        self._streams = streams
        self._opens = False

    def offer(self) -> Offer:
        return Offer(bytes((self._streams,)))

    def accept(self, offer: Offer, facts: LinkFacts) -> None:
        if len(offer.data) != 1 or not offer.data[0] or offer.fds:
            raise PeerRefused("the peer's offer for tcp is not one number of streams")
        self._streams = min(self._streams, offer.data[0])
        self._opens = facts.initiator

    def attach(self, peer: NativePeer) -> None:
        check(lib.tn_peer_streams(peer.pointer, self._streams, self._opens))

    def close(self) -> None:
        pass


class TcpEndpoint:
    """Each peer's sockets carry its own requests."""

    def __init__(self, streams: int) -> None:
        self._streams = streams

    def connection(self, facts: LinkFacts) -> Connection | None:
        return None if facts.is_unix else TcpConnection(self._streams)

    def describe(self) -> str:
        return f"tcp: up to {self._streams} sockets for each peer"

    def close(self) -> None:
        pass


class TcpProvider:
    """Always there."""

    name = "tcp"
    identifier = 2

    def probe(self, settings: Settings) -> Viability:
        return Viability(True, "sockets are always there")

    def open(self, engine: NativeEngine, settings: Settings) -> TcpEndpoint:
        return TcpEndpoint(settings.tcp_streams)


PROVIDER = TcpProvider()
