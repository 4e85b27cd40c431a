"""One-sided reads and writes over the peer's own stream: works wherever two engines can connect.

May import types only. The link is native/providers/tcp and is made by tn_peer_up, so there is
nothing to exchange and nothing to attach here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transport.types import LinkFacts, Viability

if TYPE_CHECKING:
    from transport.config import Settings
    from transport.ffi import NativeEngine
    from transport.providers.base import Connection

__all__ = ["PROVIDER"]


class TcpEndpoint:
    """Nothing is held: each peer's stream carries its own requests."""

    def connection(self, facts: LinkFacts) -> Connection | None:
        return None

    def describe(self) -> str:
        return "tcp: requests travel on each peer's stream"

    def close(self) -> None:
        pass


class TcpProvider:
    """Always there."""

    name = "tcp"
    identifier = 2

    def probe(self, settings: Settings) -> Viability:
        return Viability(True, "sockets are always there")

    def open(self, engine: NativeEngine, settings: Settings) -> TcpEndpoint:
        return TcpEndpoint()


PROVIDER = TcpProvider()
