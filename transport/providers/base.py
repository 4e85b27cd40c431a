"""The contract of a way to move bytes: with native/providers/provider.h all that one implements.

May import types and ffi (for typing). Knows neither the engine nor the control plane.

A provider is probed once per process, opened once per engine, and asked for a Connection once per
peer. During the handshake each side's connection makes an offer; the other side's accepts it; then
the connection attaches its C link to the native peer. All calls for one connection come from one
thread and none may block for long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from transport.types import LinkFacts, Offer, Viability

if TYPE_CHECKING:
    from transport.config import Settings
    from transport.ffi import NativeEngine, NativePeer

__all__ = ["Connection", "Endpoint", "LinkFacts", "Offer", "Provider", "Viability"]


class Connection(Protocol):
    """One peer, being connected."""

    def offer(self) -> Offer:
        """What the other side must know; its descriptors stay ours until attach or close."""
        ...

    def accept(self, offer: Offer, facts: LinkFacts) -> None:
        """Takes the other side's offer and its descriptors (also on failure).

        Raises TransportError where this peer cannot be reached this way: the reason is kept and
        the other providers are used.
        """
        ...

    def attach(self, peer: NativePeer) -> None:
        """Gives the link to the native peer, which owns it from then on."""
        ...

    def close(self) -> None:
        """Gives everything back. Called only if the connection was never attached."""
        ...


class Endpoint(Protocol):
    """One engine's use of a provider."""

    def connection(self, facts: LinkFacts) -> Connection | None:
        """A new connection, or None where this provider has nothing to do on such a link."""
        ...

    def describe(self) -> str:
        """One line for reports.

        An endpoint may also have ``changed()``: called on the control thread after C's
        ``provider_changed``.
        """
        ...

    def close(self) -> None:
        """After the native engine is closed, or when opening it failed half-way."""
        ...


@runtime_checkable
class Provider(Protocol):
    """A way to move bytes."""

    @property
    def name(self) -> str: ...

    @property
    def identifier(self) -> int:
        """``enum tn_provider_id``; third parties take numbers from 5 to 9."""
        ...

    def probe(self, settings: Settings) -> Viability:
        """Whether it can be used here. Never raises for what is absent."""
        ...

    def open(self, engine: NativeEngine, settings: Settings) -> Endpoint:
        """Raises Unavailable where probe would have said so."""
        ...
