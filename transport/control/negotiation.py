"""The providers' part in one handshake: which of them both sides can use for this peer.

May import messages, types and errors. Providers are reached as objects that meet providers.base.
Whatever goes wrong with one provider becomes its reason and the others go on.
"""

from __future__ import annotations

import logging
import os
from functools import partial
from typing import TYPE_CHECKING

from transport.control.messages import MAX_REASONS, MAX_WORDS, printable
from transport.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from transport.ffi import NativePeer
    from transport.providers.base import Connection, Endpoint
    from transport.types import LinkFacts, Offer

logger = logging.getLogger(__name__)


class Negotiation:
    """Holds one connection per provider until they are attached to the native peer."""

    def __init__(
        self, endpoints: Mapping[str, Endpoint], absent: Mapping[str, str] | None = None
    ) -> None:
        """`absent`: providers that this engine is without, and why, for the peer to know."""
        self._endpoints = endpoints
        self._connections: dict[str, Connection] = {}
        self._offers: dict[str, Offer] = {}
        self._reasons = {name: _cut(why) for name, why in (absent or {}).items()}
        self._facts: LinkFacts | None = None

    def begin(self, facts: LinkFacts) -> None:
        self._facts = facts
        for name, endpoint in self._endpoints.items():
            self._try(name, partial(self._open, name, endpoint, facts))

    def _open(self, name: str, endpoint: Endpoint, facts: LinkFacts) -> None:
        connection = endpoint.connection(facts)
        if connection is None:
            self._reasons[name] = f"not for {'unix' if facts.is_unix else 'TCP'} links"
            return
        self._connections[name] = connection
        self._offers[name] = connection.offer()

    def offers(self) -> dict[str, Offer]:
        return dict(self._offers)

    def reasons(self) -> dict[str, str]:
        return dict(tuple(self._reasons.items())[-MAX_REASONS:])

    def consider(self, offers: Mapping[str, Offer], reasons: Mapping[str, str]) -> None:
        for name, offer in offers.items():
            connection = self._connections.get(name)
            if connection is None or self._facts is None:
                _close(offer)
            else:
                self._try(name, partial(connection.accept, offer, self._facts))
        for name in self._connections.keys() - offers.keys():
            self._drop(name, _theirs(reasons, name))

    def settle(self, providers: tuple[str, ...], reasons: Mapping[str, str]) -> None:
        for name in self._connections.keys() - set(providers):
            self._drop(name, _theirs(reasons, name))

    def attach(self, peer: NativePeer) -> tuple[str, ...]:
        """Gives every connection that is left to the native peer; the names of those."""
        attached: list[str] = []
        for name, connection in tuple(self._connections.items()):
            if self._try(name, partial(connection.attach, peer)):
                del self._connections[name]
                attached.append(name)
        return tuple(attached)

    def close(self) -> None:
        """Idempotent. Closes what was not attached."""
        for name in tuple(self._connections):
            self._drop(name, "the connection was given up")

    def _try(self, name: str, action: Callable[[], None]) -> bool:
        try:
            action()
        except TransportError as error:
            self._drop(name, str(error))
        except Exception as error:
            logger.exception("provider %s failed while a peer was being connected", name)
            self._drop(name, f"{type(error).__name__}: {error}")
        else:
            return True
        return False

    def _drop(self, name: str, reason: str) -> None:
        self._reasons[name] = _cut(reason)
        self._offers.pop(name, None)
        connection = self._connections.pop(name, None)
        try:
            if connection is not None:
                connection.close()
        except Exception:
            logger.exception("provider %s failed to close a connection", name)


def _cut(reason: str) -> str:
    return reason[:MAX_WORDS] or "no reason given"


def _theirs(reasons: Mapping[str, str], name: str) -> str:
    said = reasons.get(name)
    return f"the peer says: {printable(said)}" if said else "the peer does not use it for this link"


def _close(offer: Offer) -> None:
    for fd in offer.fds:
        os.close(fd)
