"""More sockets for a link that is up: how one proves that it belongs to it.

May import channel, messages and errors; knows neither C nor the tables of peers.

    opener                                      acceptor
      preamble, Join(link, number, proof) ---->
               <------ preamble, Joined(proof) or Refuse
      from here on the socket is C's on both sides

The proofs are HMAC-SHA256 (RFC 2104) under a key that both sides have derived from the job's secret
and from all that was said in the handshake of the link. Each number is good for one socket, and
they only grow: what somebody has seen of one joins nothing again.
"""

from __future__ import annotations

import contextlib
import hmac
from typing import TYPE_CHECKING

from transport.control import messages as m
from transport.control.handshake import Refused
from transport.errors import PeerLost

if TYPE_CHECKING:
    from transport.control.channel import Channel

_OPENER, _ACCEPTOR = b"opener", b"acceptor"


class LinkKey:
    """One link's key, which does not show itself, and the name by which the peer finds it."""

    __slots__ = ("__key", "name")

    def __init__(self, key: bytes) -> None:
        self.__key = key
        self.name = hmac.digest(key, b"name", "sha256")[: m.LINK_BYTES]

    def proof(self, role: bytes, number: int) -> bytes:
        return hmac.digest(self.__key, role + b"\0" + number.to_bytes(8, "little"), "sha256")

    def __repr__(self) -> str:
        return "<LinkKey>"


async def ask(channel: Channel, key: LinkKey, number: int) -> None:
    """The opening side. Raises Refused, PeerRefused, PeerLost or VersionMismatch."""
    join = m.Join(key.name, number, key.proof(_OPENER, number))
    await channel.write(m.PREAMBLE + m.frame(join))
    m.check_preamble(await channel.read(m.PREAMBLE_BYTES))
    answer = m.decode_handshake(await channel.read_frame(), m.Joined)
    if isinstance(answer, m.Refuse):
        raise Refused(answer.code, f"the peer refused: {m.printable(answer.text)}", heard=True)
    if not hmac.compare_digest(answer.proof, key.proof(_ACCEPTOR, number)):
        raise Refused(m.SECRET, "the peer that answered does not have this link's key")


def check(join: m.Join, key: LinkKey | None, last: int) -> None:
    """Whether the socket belongs to the link with that key, of which `last` was the latest number.

    Raises Refused.
    """
    if key is None:
        raise Refused(m.UNKNOWN, "there is no such link")
    if not hmac.compare_digest(join.proof, key.proof(_OPENER, join.number)):
        raise Refused(m.SECRET, "the proof is wrong: the socket does not belong to the link")
    if join.number <= last:
        raise Refused(m.SECRET, "the proof was used before")


async def accept(channel: Channel, join: m.Join, key: LinkKey) -> None:
    """The accepting side, once it has checked."""
    await channel.write(m.PREAMBLE + m.frame(m.Joined(key.proof(_ACCEPTOR, join.number))))


async def refuse(channel: Channel, refusal: Refused) -> None:
    with contextlib.suppress(PeerLost):  # our reason counts, not that it went away
        await channel.write(m.PREAMBLE + m.frame(m.Refuse(refusal.code, str(refusal))))
        await channel.drain()
