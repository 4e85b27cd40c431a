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


@dataclass(frozen=True, slots=True)
class Gid:
    """One row. `visible` is False when its network interface is not in this namespace."""

    index: int
    raw: bytes
    kind: Kind = Kind.UNKNOWN
    interface: str = ""
    visible: bool = True

    @property
    def empty(self) -> bool:
        return not any(self.raw)

    @property
    def address(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
        v6 = ipaddress.IPv6Address(self.raw)
        return v6.ipv4_mapped or v6

    def __str__(self) -> str:
        words = (str(self.index), str(self.address), self.kind.value, self.interface)
        return " ".join(word for word in words if word)


def _is_local(gid: Gid) -> bool:
    """An address that no router forwards."""
    address = gid.address
    if isinstance(address, ipaddress.IPv4Address):
        return address in _LINK_LOCAL_V4
    return address.is_link_local


def _rank(gid: Gid) -> tuple[bool, bool, bool, int]:
    """Smaller is better: routable, then version 2, then IPv4, then the smaller index.

    Routable comes first because a link-local row reaches one switch at best; between versions an
    untold one counts with version 2, which every current device speaks.
    """
    is_v4 = isinstance(gid.address, ipaddress.IPv4Address)
    return (_is_local(gid), gid.kind is Kind.V1, not is_v4, gid.index)


def _untold(rows: Sequence[Gid]) -> list[Gid]:
    """Of rows of one address and untold kind only the last: drivers list v1 before v2."""
    last: dict[bytes, int] = {}
    for gid in rows:
        if gid.kind is Kind.UNKNOWN:
            last[gid.raw] = max(gid.index, last.get(gid.raw, 0))
    return [gid for gid in rows if gid.kind is not Kind.UNKNOWN or last[gid.raw] == gid.index]


def choose(rows: Sequence[Gid], *, ethernet: bool = True, index: int = -1) -> Gid:
    """The row to use; `index` >= 0 takes that one. Raises Unavailable, which names the cause."""
    if index >= 0:
        return _given(rows, index)
    filled = [gid for gid in rows if not gid.empty]
    if not filled:
        raise Unavailable(
            f"all {len(rows)} rows of the GID table are empty",
            "give the port's network interface an address; a container needs the interface in its "
            "own network namespace",
        )
    if not ethernet:
        return filled[0]  # InfiniBand: the port's own GID comes first
    visible = [gid for gid in filled if gid.visible]
    if not visible:
        names = ", ".join(sorted({gid.interface for gid in filled}))
        raise Unavailable(
            f"the GIDs belong to network interfaces that this namespace does not have ({names})",
            "move the interface into this network namespace, or set TRANSPORT_VERBS_GID_INDEX",
        )
    return min(_untold(visible), key=_rank)


def _given(rows: Sequence[Gid], index: int) -> Gid:
    found = next((gid for gid in rows if gid.index == index), None)
    if found is None or found.empty:
        what = "is not in the table" if found is None else "is empty"
        used = ", ".join(str(gid.index) for gid in rows if not gid.empty) or "none"
        raise Unavailable(f"GID index {index} {what}", f"rows in use: {used}")
    return found
