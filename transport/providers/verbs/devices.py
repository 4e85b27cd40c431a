"""The ports of this host that an engine can use, why the others cannot, and their order.

May import errors, gid, network, ports, rails.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from transport.errors import Unavailable
from transport.providers.verbs import gid as gids
from transport.providers.verbs import ports
from transport.providers.verbs.rails import RailFacts
from transport.topology import network

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transport.config import Settings
    from transport.providers.verbs.ports import Port

_FULL_MEMBER = 0x8000
# A port slower than this part of the fastest would hold up what is spread over all of them.
_SLOW = 0.5


@dataclass(frozen=True, slots=True)
class UsablePort:
    """One port that can be used, the GID by which it is known, and its P_Key."""

    facts: Port
    gid: gids.Gid
    pkey_index: int = 0
    pkey: int = 0xFFFF

    @property
    def name(self) -> str:
        return self.facts.name

    def offer(self, number: int) -> RailFacts:
        """What a peer is told."""
        facts = self.facts
        return RailFacts(
            number=number,
            name=facts.name,
            gid=self.gid.raw,
            prefix=self.gid.prefix if facts.ethernet else 64,
            lid=facts.lid,
            ethernet=facts.ethernet,
            version=self.gid.version if facts.ethernet else 0,
            mtu=facts.active_mtu,
            rate=facts.rate,
            numa=facts.numa,
            reads_out=min(facts.max_reads_out, 0xFFFF),
            reads_in=min(facts.max_reads_in, 0xFFFF),
            atomics=bool(facts.atomics),
        )

    def __str__(self) -> str:
        facts = self.facts
        kind = "RoCE" if facts.ethernet else "InfiniBand"
        return (
            f"{facts.device} port {facts.number} ({kind}, MTU {facts.active_mtu}, GID {self.gid})"
        )


@dataclass(frozen=True, slots=True)
class Request:
    """What the settings say about devices."""

    library: str | None = None
    sysfs: Path = Path("/sys")
    devices: tuple[str, ...] = ()
    limit: int = 8
    gid: gids.Wish = field(default_factory=gids.Wish)
    pkey: int | None = None
    only: frozenset[str] | None = None  # devices that were adopted

    @classmethod
    def of(cls, settings: Settings) -> Request:
        wish = gids.Wish(settings.verbs_gid_index, settings.verbs_gid, settings.verbs_gid_subnet)
        return cls(
            settings.verbs_lib,
            settings.verbs_sysfs,
            settings.verbs_devices,
            settings.verbs_rails,
            wish,
            settings.verbs_pkey,
        )

    @property
    def wanted(self) -> list[str]:
        return [name for name in self.devices if not name.startswith("^")]

    def place(self, port: Port) -> int | None:
        """Where among those asked for; None if it was not."""
        if self.only is not None and port.device not in self.only:
            return None
        if {f"^{port.device}", f"^{port.name}"} & set(self.devices):
            return None
        wanted = self.wanted
        found = [i for i, name in enumerate(wanted) if name in (port.device, port.name)]
        if not wanted:
            return 0
        return found[0] if found else None


def discover(request: Request) -> tuple[list[UsablePort], dict[str, str]]:
    """The rails to use, best first, and why the other ports are not, by "device:port".

    Raises Unavailable where there is no libibverbs.
    """
    listed = ports.list_ports(request.library, request.sysfs)
    here = network.here()
    rails: list[UsablePort] = []
    refused: dict[str, str] = {}
    for port in listed:
        if request.place(port) is None and port.number:
            continue
        try:
            rails.append(_rail(port, request, here))
        except Unavailable as error:
            refused[port.name] = str(error)
    absent = [name for name in request.wanted if not _names_one(name, listed)]
    refused |= dict.fromkeys(absent, "there is no such device or port")
    rails.sort(key=lambda rail: _preference(rail, request))
    return _cut(rails, request, refused), refused


def _names_one(name: str, listed: Sequence[Port]) -> bool:
    return any(name in (port.device, port.name) for port in listed)


def _preference(rail: UsablePort, request: Request) -> tuple[int, float, str, int]:
    place = request.place(rail.facts) or 0
    return (place, -rail.facts.rate, rail.facts.device, rail.facts.number)


def _cut(rails: list[UsablePort], request: Request, refused: dict[str, str]) -> list[UsablePort]:
    """Leaves out slow ports that nobody named, and what is beyond the limit."""
    best = max((rail.facts.rate for rail in rails), default=0.0)
    kept: list[UsablePort] = []
    for rail in rails:
        rate = rail.facts.rate
        if not request.wanted and 0 < rate < best * _SLOW:
            reason = f"at {rate:.3g} GB/s it is slower than half of the fastest ({best:.3g} GB/s)"
            refused[rail.name] = f"{reason}: name it in TRANSPORT_VERBS_DEVICES to use it"
        elif len(kept) == request.limit:
            refused[rail.name] = f"TRANSPORT_VERBS_RAILS allows {request.limit}"
        else:
            kept.append(rail)
    return kept


def check_port(port: Port) -> None:
    """Raises Unavailable where no reliable connection can be made over it."""
    if port.unusable:
        raise Unavailable(port.unusable, "use another device, or tcp")
    if not port.number:
        raise Unavailable(
            "the device cannot be opened",
            "is /dev/infiniband/uverbs* there, and readable for this user?",
        )
    if not port.active:
        raise Unavailable(
            f"the port is not active ({port.state_name})",
            "is the cable plugged in and the link up?",
        )


def _rail(port: Port, request: Request, here: network.Network) -> UsablePort:
    check_port(port)
    rows = ports.gid_rows(request.library, port, request.sysfs, here)
    index, key = _pkey(ports.pkeys(request.library, port, request.sysfs), request.pkey)
    return UsablePort(port, choose_gid(port, rows, request.gid), index, key)


def choose_gid(port: Port, rows: Sequence[gids.Gid], wish: gids.Wish) -> gids.Gid:
    """As gid.choose. An InfiniBand port whose table is empty is still reached by its LID."""
    try:
        return gids.choose(rows, ethernet=port.ethernet, wish=wish)
    except Unavailable:
        if port.ethernet or not port.lid or wish != gids.Wish() or any(not r.empty for r in rows):
            raise
        return gids.Gid(0, bytes(16))


def again(rail: UsablePort, request: Request) -> UsablePort:
    """The rail with its GID as the port's table has it now. Raises Unavailable if it has none.

    The same value of the same kind is kept wherever it is now, so that peers need not learn
    another; only where it has gone is there a new choice.
    """
    rows = ports.gid_rows(request.library, rail.facts, request.sysfs, network.here())
    return replace(rail, gid=_kept(rail.gid, rows) or choose_gid(rail.facts, rows, request.gid))


def _kept(old: gids.Gid, rows: Sequence[gids.Gid]) -> gids.Gid | None:
    here = [row for row in rows if row.place is not gids.Place.ELSEWHERE and not row.empty]
    same = [row for row in here if (row.raw, row.kind) == (old.raw, old.kind)]
    # Rows of untold kind come in pairs: its own row before another of the same address.
    return next((row for row in same if row.index == old.index), same[-1] if same else None)


def _pkey(table: dict[int, int], wanted: int | None) -> tuple[int, int]:
    """Index and key. Full members (bit 15) go before limited ones, which cannot talk together."""
    if wanted is None:
        return next(iter(table.items()), (0, 0xFFFF))
    same = {i: key for i, key in table.items() if (key ^ wanted) & ~_FULL_MEMBER == 0}
    found = [i for i, key in same.items() if key == wanted]
    found += [i for i, key in same.items() if key != wanted and key & _FULL_MEMBER]
    if not found:
        held = ", ".join(f"{key:#06x}" for key in table.values()) or "none"
        raise Unavailable(f"the port has no P_Key {wanted:#06x}", f"its keys: {held}")
    return found[0], same[found[0]]
