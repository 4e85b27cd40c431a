"""Which row of a port's GID table to use. Pure: rows in, a choice or a reason out.

Rows are ranked by what they are, never by where they lie: tables differ between drivers, between
containers, and after a link was down. (RoCE v2: InfiniBand Architecture Specification, Annex A17.)
"""

from __future__ import annotations

import enum
import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transport.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

_LINK_LOCAL_V4 = ipaddress.ip_network("169.254.0.0/16")


class Kind(enum.Enum):
    """What the kernel says of a row; the values are those of sysfs."""

    V1 = "IB/RoCE v1"
    V2 = "RoCE v2"
    UNKNOWN = ""  # old kernels and some containers do not tell

    @classmethod
    def parse(cls, text: str) -> Kind:
        words = text.strip().lower()
        return next((kind for kind in (cls.V1, cls.V2) if kind.value.lower() == words), cls.UNKNOWN)


class Place(enum.IntEnum):
    """Where the network interface of a row is, the better the smaller."""

    HERE = 0
    UNTOLD = 1
    ELSEWHERE = 2  # another network namespace: the kernel refuses connections from it


@dataclass(frozen=True, slots=True)
class Gid:
    """One row. `prefix` counts the leading bits that name its network; 0 if unknown."""

    index: int
    raw: bytes
    kind: Kind = Kind.UNKNOWN
    interface: str = ""
    place: Place = Place.HERE
    overlay: bool = False  # of a network that only containers or tunnels on this host share
    prefix: int = 0

    @property
    def empty(self) -> bool:
        return not any(self.raw)

    @property
    def address(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
        v6 = ipaddress.IPv6Address(self.raw)
        return v6.ipv4_mapped or v6

    @property
    def version(self) -> int:
        """Of RoCE; 0 if untold."""
        return {Kind.V1: 1, Kind.V2: 2}.get(self.kind, 0)

    def __str__(self) -> str:
        words = (str(self.index), str(self.address), self.kind.value, self.interface)
        return " ".join(word for word in words if word)

    def describe(self) -> str:
        """The class by which it is ranked, in words."""
        if self.empty:
            return "empty"
        if self.place is Place.ELSEWHERE:
            return "in another network namespace"
        if self.overlay:
            return "overlay network"
        if self._is_local():
            return "link-local"
        return "IPv4" if self._is_v4() else "global IPv6"

    def _is_v4(self) -> bool:
        return isinstance(self.address, ipaddress.IPv4Address)

    def _is_local(self) -> bool:
        """An address that no router forwards."""
        address = self.address
        if isinstance(address, ipaddress.IPv4Address):
            return address in _LINK_LOCAL_V4
        return address.is_link_local

    def rank(self) -> tuple[int, ...]:
        """Smaller is better.

        An overlay leads to this host only. A link-local row reaches one switch at best, so that a
        routable one comes before it, even of version 1. A version that is not told counts as 2,
        which every current device speaks. The index decides between equals only.
        """
        return (
            self.overlay,
            self._is_local(),
            self.place,
            self.kind is Kind.V1,
            not self._is_v4(),
            self.index,
        )


@dataclass(frozen=True, slots=True)
class Wish:
    """What the settings ask for; an index is stronger than an address, that than a network."""

    index: int = -1
    address: ipaddress.IPv4Address | ipaddress.IPv6Address | None = None
    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()


def choose(rows: Sequence[Gid], *, ethernet: bool = True, wish: Wish | None = None) -> Gid:
    """The row to use. Raises Unavailable, which names the cause."""
    wish = wish or Wish()
    if wish.index >= 0:
        return _given(rows, wish.index)
    filled = [gid for gid in rows if not gid.empty]
    if not filled:
        raise Unavailable(
            f"all {len(rows)} rows of the GID table are empty",
            "give the port's network interface (of a bond: the bond's) an address; a container "
            "needs the interface in its own network namespace",
        )
    if wish.address is not None or wish.networks:
        return _wanted(filled, wish)
    if not ethernet:
        return filled[0]  # InfiniBand: the port's own GID comes first
    usable = [gid for gid in filled if gid.place is not Place.ELSEWHERE]
    if not usable:
        names = ", ".join(sorted({gid.interface or str(gid.address) for gid in filled}))
        raise Unavailable(
            f"the GIDs belong to network interfaces that this namespace does not have ({names})",
            "move the interface into this network namespace, or set TRANSPORT_VERBS_GID_INDEX",
        )
    return _best(usable)


def _best(rows: Sequence[Gid]) -> Gid:
    return min(_untold(rows), key=Gid.rank)


def _untold(rows: Sequence[Gid]) -> list[Gid]:
    """Of rows of one address and untold kind only the last: drivers list v1 before v2."""
    last: dict[bytes, int] = {}
    for gid in rows:
        if gid.kind is Kind.UNKNOWN:
            last[gid.raw] = max(gid.index, last.get(gid.raw, 0))
    return [gid for gid in rows if gid.kind is not Kind.UNKNOWN or last[gid.raw] == gid.index]


def _given(rows: Sequence[Gid], index: int) -> Gid:
    found = next((gid for gid in rows if gid.index == index), None)
    if found is None or found.empty:
        what = "is not in the table" if found is None else "is empty"
        used = ", ".join(str(gid.index) for gid in rows if not gid.empty) or "none"
        raise Unavailable(f"GID index {index} {what}", f"rows in use: {used}")
    return found


def _wanted(filled: Sequence[Gid], wish: Wish) -> Gid:
    """By address, or by the first of the networks that the table has an address of."""
    held = ", ".join(dict.fromkeys(str(gid.address) for gid in filled))
    if wish.address is not None:
        found = [gid for gid in filled if gid.address == wish.address]
        if not found:
            raise Unavailable(f"no GID has the address {wish.address}", f"addresses: {held}")
        return _best(found)
    for network in wish.networks:
        found = [gid for gid in filled if gid.address in network]
        if found:
            return _best(found)
    asked = ", ".join(map(str, wish.networks))
    raise Unavailable(f"no GID is of the network {asked}", f"addresses: {held}")
