"""One generation of a group as one member sees it: what carriers are made of. Plain data.

May import hub, meeting, card.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transport.collectives.card import Card
    from transport.collectives.hub import Hub, HubPeer, Mailbox
    from transport.collectives.meeting import Meeting


@dataclass(frozen=True, slots=True)
class Group:
    """All ranks of it have one; `peers` and `cards` are by rank, the own one included."""

    name: str
    generation: int
    id: bytes
    rank: int
    size: int
    hub: Hub
    mailbox: Mailbox
    peers: tuple[HubPeer, ...]
    cards: tuple[Card, ...]
    meeting: Meeting
    """Of this generation alone: keys that carriers use ("nccl/...") meet nobody else's."""

    @property
    def one_machine(self) -> bool:
        """Whether all ranks reach each other over the loopback interface."""
        return len({card.machine for card in self.cards}) == 1

    def rank_of(self, incarnation: bytes) -> int | None:
        """Whose engine that is."""
        found = (rank for rank, peer in enumerate(self.peers) if peer.incarnation == incarnation)
        return next(found, None)
