"""Which rails of two engines belong together. Pure: both sides compute the same lanes.

May import errors, msgspec and the standard library. Rails are told apart by what they are (network,
kind, NUMA node, name, GID), never by where they stand in a list: two hosts list theirs differently.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from transport.errors import PeerRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

MAX_RAILS: Final = 8
MAX_LANES: Final = 32
GID_BYTES: Final = 16

_V4_MAPPED_BITS = 96
_LOCAL = tuple(ipaddress.ip_network(text) for text in ("fe80::/10", "::ffff:169.254.0.0/112"))

_Name = Annotated[str, msgspec.Meta(max_length=80)]
_Raw = Annotated[bytes, msgspec.Meta(min_length=GID_BYTES, max_length=GID_BYTES)]
_Small = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF)]


class RailFacts(msgspec.Struct, frozen=True, array_like=True):
    """What a peer is told of one rail. Decoding checks every range: it comes from outside."""

    number: Annotated[int, msgspec.Meta(ge=0, lt=MAX_RAILS)]
    name: _Name  # device and port, "mlx5_0:1"
    gid: _Raw
    # Leading bits of the GID that name its network, 96 more than those of an IPv4 one; 0: untold.
    prefix: Annotated[int, msgspec.Meta(ge=0, le=128)]
    lid: _Small
    ethernet: bool
    version: Annotated[int, msgspec.Meta(ge=0, le=2)]  # of RoCE; 0: InfiniBand, or untold
    mtu: _Small  # bytes
    rate: Annotated[float, msgspec.Meta(ge=0, le=1e6)]  # GB/s; 0: untold
    numa: Annotated[int, msgspec.Meta(ge=-1, le=0xFFFF)]  # node of this host; -1: untold
    reads_out: _Small  # RDMA reads at once that it starts; 0: it takes no part in them
    reads_in: _Small  # that it serves
    atomics: bool  # whether the device carries out atomic operations

    @property
    def is_v4(self) -> bool:
        return self.gid[:12] == bytes(10) + b"\xff\xff"

    @property
    def is_local(self) -> bool:
        """An address that no router forwards. InfiniBand's default prefix looks like one."""
        address = ipaddress.IPv6Address(self.gid)
        return any(address in network for network in _LOCAL)


Rails = Annotated[list[RailFacts], msgspec.Meta(max_length=MAX_RAILS)]
"""The list as it travels."""


def checked(rails: Sequence[RailFacts]) -> Sequence[RailFacts]:
    """Raises PeerRefused where two rails have one number."""
    if len({rail.number for rail in rails}) != len(rails):
        raise PeerRefused("two of the peer's rails have the same number")
    return rails


def match(
    lower: Sequence[RailFacts], higher: Sequence[RailFacts], qps: int = 1, limit: int = MAX_LANES
) -> list[tuple[int, int]]:
    """The lanes, as pairs of rail numbers: of the engine with the lower incarnation, of the other.

    Rails of one network go together; only where none is shared do those that routers may connect;
    only where none can be routed, any two of one kind. Each rail is used once per round, and there
    are rounds until no rail that has a partner is idle. Then everything `qps` times, the first of
    every pair first. Empty where nothing fits: `mismatch` says why.
    """
    pairs = next(filter(None, (_rounds(lower, higher, tier) for tier in _TIERS)), [])
    return [(a.number, b.number) for _ in range(qps) for a, b in pairs][:limit]


def can_read(a: RailFacts, b: RailFacts) -> bool:
    """Whether `a` can read from `b`."""
    return bool(a.reads_out and b.reads_in)


def without_atomics(rails: Sequence[RailFacts], whose: str) -> str:
    """Which of one side's rails have no atomic operations, in words; "" if all have."""
    names = sorted(ascii(rail.name)[1:-1] for rail in rails if not rail.atomics)
    verb = "has" if len(names) == 1 else "have"
    return f"{whose} {', '.join(names)} {verb} no atomic operations" if names else ""


def mismatch(lower: Sequence[RailFacts], higher: Sequence[RailFacts]) -> str:
    """Why there is no lane, in words for either side."""
    kinds = [sorted({_kind(rail) for rail in side}) or ["no rails"] for side in (lower, higher)]
    ends = [", ".join(side) for side in kinds]
    return f"no rail of one engine can reach one of the other: {ends[0]} here or there, {ends[1]}"


def _kind(rail: RailFacts) -> str:
    if not rail.ethernet:
        return "InfiniBand"
    family = "IPv4" if rail.is_v4 else "IPv6"
    return f"RoCE v{rail.version} with {family}" if rail.version else f"RoCE with {family}"


def _fits(a: RailFacts, b: RailFacts) -> bool:
    """Packets of one kind: versions of RoCE differ, and version 2 is IPv4 or IPv6."""
    if a.ethernet != b.ethernet:
        return False
    if not a.ethernet or 1 in (a.version, b.version):
        return not a.ethernet or 2 not in (a.version, b.version)
    return a.is_v4 == b.is_v4


def _shares_network(a: RailFacts, b: RailFacts) -> bool:
    if not _fits(a, b):
        return False
    if not a.ethernet:
        return a.gid[:8] == b.gid[:8]
    if a.is_local or b.is_local or not (a.prefix and b.prefix):
        return False  # every link has the link-local network: it says nothing
    return _common_bits(a.gid, b.gid) >= max(a.prefix, b.prefix)


def _routes(a: RailFacts, b: RailFacts) -> bool:
    return _fits(a, b) and not (a.is_local or b.is_local)


_TIERS: tuple[Callable[[RailFacts, RailFacts], bool], ...] = (_shares_network, _routes, _fits)


def _common_bits(a: bytes, b: bytes) -> int:
    return 128 - (int.from_bytes(a, "big") ^ int.from_bytes(b, "big")).bit_length()


_Pair = tuple[RailFacts, RailFacts]


def _rounds(
    lower: Sequence[RailFacts],
    higher: Sequence[RailFacts],
    tier: Callable[[RailFacts, RailFacts], bool],
) -> list[_Pair]:
    """The pairs of all rounds; each round takes the best pairs that have an idle rail."""
    able = [(a, b) for a in lower for b in higher if tier(a, b)]
    offered = sorted(able, key=lambda pair: _distance(pair, _places(able, *pair)))
    idle = ({a.number for a, _ in offered}, {b.number for _, b in offered})
    chosen: list[_Pair] = []
    while idle[0] or idle[1]:
        for a, b in list(_one_round(offered, idle)):
            chosen.append((a, b))
            idle[0].discard(a.number)
            idle[1].discard(b.number)
    return chosen


def _one_round(offered: list[_Pair], idle: tuple[set[int], set[int]]) -> Iterator[_Pair]:
    used: tuple[set[int], set[int]] = (set(), set())
    for a, b in offered:
        wanted = a.number in idle[0] or b.number in idle[1]
        if wanted and a.number not in used[0] and b.number not in used[1]:
            used[0].add(a.number)
            used[1].add(b.number)
            yield a, b


def _places(offered: list[_Pair], a: RailFacts, b: RailFacts) -> tuple[int, int]:
    """The place of each among the rails that the other could have, in the order of GIDs."""
    rivals = [x for x, y in offered if y is b], [y for x, y in offered if x is a]
    ahead_a = sum(_order(x) < _order(a) for x in rivals[0])
    return ahead_a, sum(_order(y) < _order(b) for y in rivals[1])


def _order(rail: RailFacts) -> tuple[bytes, str, int]:
    return rail.gid, rail.name, rail.number


def _distance(pair: _Pair, places: tuple[int, int]) -> tuple[object, ...]:
    """Smaller is nearer; the same with the sides exchanged, so that neither has a say.

    Within a network equal names hint at equal slots; between networks the addresses know better.
    """
    a, b = pair
    shared = _shares_network(a, b)
    return (
        0 if shared else -_common_bits(a.gid, b.gid),
        a.rate != b.rate and bool(a.rate and b.rate),
        a.numa != b.numa and min(a.numa, b.numa) >= 0,
        shared and a.name != b.name,
        abs(places[0] - places[1]),
        sum(places),
        a.name != b.name,
        sorted((_order(a), _order(b))),
        _order(a),
    )
