"""One generation of a group as one member sees it: what carriers are made of. Plain data.

May import hub, meeting, card, errors.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transport.errors import InvalidUse

if TYPE_CHECKING:
    from collections.abc import Collection

    from transport.collectives.card import Card
    from transport.collectives.hub import Hub, HubPeer, Mailbox
    from transport.collectives.meeting import Meeting
    from transport.control.records import PeerRecord


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

    def records(self, absent: Collection[int]) -> dict[int, PeerRecord]:
        """Of all but these ranks; of none once they were let go."""
        found: dict[int, PeerRecord] = {}
        for rank, peer in enumerate(self.peers):
            if rank not in absent:
                with contextlib.suppress(InvalidUse):
                    found[rank] = peer.record
        return found

    def rank_of(self, incarnation: bytes) -> int | None:
        """Whose engine that is."""
        found = (rank for rank, peer in enumerate(self.peers) if peer.incarnation == incarnation)
        return next(found, None)
