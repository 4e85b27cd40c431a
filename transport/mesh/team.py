"""What a mesh of actors stands on: the members that answer for its ranks. Imports member only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from transport.mesh.member import Member
    from transport.mesh.messages import Message


class Team(Protocol):
    """The owner's processes, or what another process knows of them."""

    @property
    def deadline(self) -> float:
        """Seconds for a call that has none of its own."""
        ...

    def member(self, rank: int) -> Member:
        """Whoever answers for this rank now; maybe one that crashed."""
        ...

    @property
    def id(self) -> bytes:
        """Of the mesh."""
        ...

    @property
    def name(self) -> str: ...

    def door(self, rank: int) -> str:
        """Where other processes reach this rank."""
        ...

    def tell_all(self, message: Message) -> None:
        """To all members to which there is a link."""

    def check(self) -> None:
        """Settles what is overdue."""
