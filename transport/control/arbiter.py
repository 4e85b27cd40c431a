"""Which of two connections between the same two engines lives, when both sides connect at once.

Pure: no I/O, imports nothing of this package. Both sides apply the same rules to what they know and
come to one link:

- The attempt of the engine with the smaller incarnation wins once it has reached the other side
  (the other has answered with its challenge): its engine then refuses the opposite one as a
  duplicate. Before that it accepts it and gives its own attempt up, so that a side that cannot
  reach the other does not keep it from connecting.
- A link that came up after this connection had come in makes it a duplicate: the peer does not know
  yet. A link that is older is dead on the peer's side, for a peer with a live link does not connect
  again: the new one replaces it.
- Of two inbound connections of one peer the later one lives.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Verdict(enum.Enum):
    """What to do with a proven inbound connection."""

    ACCEPT = "accept"
    """Bring it up; give up our own attempt and any earlier inbound one."""
    REPLACE = "replace"
    """The peer lost the live link: put that down, then accept."""
    DUPLICATE = "duplicate"
    """Refuse; the peer waits for the other connection."""


@dataclass(frozen=True)
class Situation:
    """What one side knows when an inbound connection has proven itself.

    Moments are numbers of a counter that only grows (per engine); None: there is none.
    """

    mine: bytes
    theirs: bytes
    came_at: int  # before the connection's hello was read
    challenged: bool = False  # our own attempt to this peer has been answered and is under way
    link_at: int | None = None  # when the live link came up
    inbound_at: int | None = None  # came_at of an accepted connection that is not up yet


def judge(situation: Situation) -> Verdict:
    """The decision of the accepting side."""
    if situation.link_at is not None:
        newer = situation.link_at > situation.came_at
        return Verdict.DUPLICATE if newer else Verdict.REPLACE
    if situation.inbound_at is not None and situation.inbound_at > situation.came_at:
        return Verdict.DUPLICATE
    if situation.challenged and situation.mine < situation.theirs:
        return Verdict.DUPLICATE
    return Verdict.ACCEPT
