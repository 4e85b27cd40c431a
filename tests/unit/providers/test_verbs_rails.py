"""Lanes between the rails of two engines: by network and affinity, never by position."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.errors import PeerRefused
from transport.providers.verbs.rails import (
    MAX_LANES,
    MAX_RAILS,
    RailFacts,
    Rails,
    can_read,
    checked,
    match,
    mismatch,
    without_atomics,
)

if TYPE_CHECKING:
    import random


def rail(number: int, network: str, **other: Any) -> RailFacts:
    """`network` is an address with its prefix length."""
    interface = ipaddress.ip_interface(network)
    is_v4 = interface.version == 4
    facts = {
        "number": number,
        "name": f"mlx5_{number}:1",
        "gid": bytes(10) + b"\xff\xff" + interface.packed if is_v4 else interface.packed,
        "prefix": interface.network.prefixlen + 96 * is_v4,
        "lid": 0,
        "ethernet": True,
        "version": 2,
        "mtu": 4096,
        "rate": 50.0,
        "numa": -1,
        "reads_out": 16,
        "reads_in": 16,
        "atomics": True,
    }
    return RailFacts(**(facts | other))


def infiniband(number: int, guid: int, prefix: int = 0xFE80 << 48, **other: Any) -> RailFacts:
    gid = prefix.to_bytes(8, "big") + guid.to_bytes(8, "big")
    return rail(number, "::/64", gid=gid, ethernet=False, version=0, lid=number + 1, **other)


def test_by_network_not_by_position() -> None:
    """I3: two hosts list their NICs differently; a rail-only fabric joins equal networks only."""
    here = [rail(0, "10.0.1.5/24"), rail(1, "10.0.2.5/24"), rail(2, "10.0.3.5/24")]
    there = [rail(0, "10.0.3.9/24"), rail(1, "10.0.1.9/24"), rail(2, "10.0.2.9/24")]
    assert sorted(match(here, there)) == [(0, 1), (1, 2), (2, 0)]


def test_networks_that_only_one_side_has_are_left_alone() -> None:
    """I3, I4: asymmetric lists; the storage NIC of one host has no partner."""
    here = [rail(0, "192.168.0.5/24"), rail(1, "10.0.1.5/24")]
    there = [rail(0, "10.0.1.9/24"), rail(1, "10.0.2.9/24")]
    assert match(here, there) == [(1, 0)]


def test_routable_pairs_where_no_network_is_shared() -> None:
    here = [rail(0, "10.1.1.5/24"), rail(1, "10.1.2.5/24"), rail(2, "fe80::1/64")]
    there = [rail(0, "10.9.2.9/24"), rail(1, "10.9.1.9/24")]
    assert sorted(match(here, there)) == [(0, 1), (1, 0)]


def test_link_local_pairs_are_the_last_resort() -> None:
    here, there = [rail(0, "fe80::5/64")], [rail(0, "fe80::9/64")]
    assert match(here, there) == [(0, 0)]
    assert match([*here, rail(1, "fd00::5/64")], [*there, rail(1, "fd01::9/64")]) == [(1, 1)]
    assert match([rail(0, "169.254.3.3/16")], [rail(0, "169.254.3.4/16")]) == [(0, 0)]


def test_kinds_do_not_mix() -> None:
    ethernet, fabric = [rail(0, "10.0.0.1/24")], [infiniband(0, 7)]
    assert match(ethernet, fabric) == []
    assert "InfiniBand" in mismatch(ethernet, fabric)
    assert match(ethernet, [rail(0, "fd00::1/64")]) == []
    assert "RoCE v2 with IPv6" in mismatch(ethernet, [rail(0, "fd00::1/64")])
    assert match(ethernet, [rail(0, "10.0.0.2/24", version=1)]) == []
    assert match(ethernet, [rail(0, "10.0.0.2/24", version=0)]) == [(0, 0)]
    assert match([], fabric) == []
    assert "no rails" in mismatch([], fabric)


def test_infiniband_by_subnet_prefix_then_numa_then_name() -> None:
    """I4: where the fabric says nothing, equal NUMA nodes and equal names go together."""
    here = [infiniband(n, 0x90 - n, numa=n // 2) for n in range(4)]
    there = [infiniband(n, 0x20 + n, numa=n // 2) for n in range(4)]
    assert sorted(match(here, there)) == [(n, n) for n in range(4)]
    assert match([infiniband(0, 1, 5), infiniband(1, 2, 6)], [infiniband(0, 3, 6)]) == [(1, 0)]


def test_equal_rates_go_together() -> None:
    here = [rail(0, "10.0.0.1/24", rate=12.5), rail(1, "10.0.0.2/24", rate=50.0)]
    there = [rail(0, "10.0.0.3/24", rate=50.0), rail(1, "10.0.0.4/24", rate=12.5)]
    assert sorted(match(here, there)) == [(0, 1), (1, 0)]


def test_no_rail_is_idle_when_the_sides_are_unequal() -> None:
    here = [rail(n, f"10.0.0.{n + 1}/24") for n in range(2)]
    there = [rail(n, f"10.0.0.{n + 101}/24") for n in range(5)]
    pairs = match(here, there)
    assert {b for _, b in pairs} == set(range(5))
    assert len(pairs) == 5
    # In every round each rail of the shorter side is used once.
    assert {a for a, _ in pairs[:2]} == {a for a, _ in pairs[2:4]} == {0, 1}


def test_queue_pairs_multiply_and_the_limit_keeps_every_pair() -> None:
    here = [rail(n, f"10.0.{n}.1/24") for n in range(MAX_RAILS)]
    there = [rail(n, f"10.0.{n}.2/24") for n in range(MAX_RAILS)]
    lanes = match(here, there, 8)
    assert len(lanes) == MAX_LANES
    assert lanes == match(here, there) * (MAX_LANES // MAX_RAILS)


_NETWORKS = ["10.0.0.{}/24", "10.0.1.{}/24", "172.16.0.{}/16", "fd00::{}/64", "fe80::{}/64"]


@st.composite
def sides(draw: st.DrawFn) -> tuple[list[RailFacts], list[RailFacts]]:
    """Two hosts on the same fabrics; no address is there twice."""

    def one(number: int, address: int) -> RailFacts:
        numa = draw(st.integers(-1, 1))
        if draw(st.integers(0, 5)) == 0:
            return infiniband(number, address, draw(st.integers(1, 2)), numa=numa)
        network = draw(st.sampled_from(_NETWORKS)).format(address)
        rate = draw(st.sampled_from([0.0, 12.5, 50.0]))
        known = draw(st.booleans())
        facts = rail(number, network, numa=numa, rate=rate, version=draw(st.integers(0, 2)))
        return facts if known else msgspec.structs.replace(facts, prefix=0)

    count = st.integers(0, 5)
    return (
        [one(n, 1 + n) for n in range(draw(count))],
        [one(n, 101 + n) for n in range(draw(count))],
    )


@given(sides())
def test_symmetric(both: tuple[list[RailFacts], list[RailFacts]]) -> None:
    lower, higher = both
    assert match(lower, higher) == [(a, b) for b, a in match(higher, lower)]


@given(sides(), st.randoms(use_true_random=False))
def test_order_and_numbers_do_not_matter(
    both: tuple[list[RailFacts], list[RailFacts]], chance: random.Random
) -> None:
    lower, higher = both

    def renumbered(rails: list[RailFacts]) -> list[RailFacts]:
        shuffled = chance.sample(rails, len(rails))
        return [msgspec.structs.replace(rail, number=n) for n, rail in enumerate(shuffled)]

    def gids(a: list[RailFacts], b: list[RailFacts]) -> list[tuple[bytes, bytes]]:
        return [(a[x].gid, b[y].gid) for x, y in match(a, b)]

    assert gids(lower, higher) == gids(renumbered(lower), renumbered(higher))


@given(sides())
def test_no_rail_is_idle_that_has_a_partner(
    both: tuple[list[RailFacts], list[RailFacts]],
) -> None:
    """Whoever could be matched alone with some rail of the tier in use is matched."""
    lower, higher = both
    lanes = match(lower, higher)
    alone = {(a.number, b.number) for a in lower for b in higher if match([a], [b])}
    assert set(lanes) <= alone
    assert bool(lanes) == bool(alone)
    assert len(set(lanes)) == len(lanes)
    tier = {(a.number, b.number) for a in lower for b in higher if _same_net(a, b)}
    if tier:
        assert {a for a, _ in lanes} == {a for a, _ in tier}
        assert {b for _, b in lanes} == {b for _, b in tier}


def _same_net(a: RailFacts, b: RailFacts) -> bool:
    """Of the networks above, said without the code under test."""
    if not a.ethernet or not b.ethernet:
        return a.ethernet == b.ethernet and a.gid[:8] == b.gid[:8]
    if not (a.prefix == b.prefix and a.prefix) or a.gid[:2] == b"\xfe\x80":
        return False
    versions = {a.version, b.version}
    return versions != {1, 2} and a.gid[: a.prefix // 8] == b.gid[: a.prefix // 8]


@given(sides())
def test_there_and_back(both: tuple[list[RailFacts], list[RailFacts]]) -> None:
    decode = msgspec.msgpack.Decoder(Rails).decode
    assert decode(msgspec.msgpack.encode(both[0])) == both[0]


@pytest.mark.parametrize(
    "change",
    [
        {"number": MAX_RAILS},
        {"number": -1},
        {"gid": b"short"},
        {"prefix": 129},
        {"lid": 1 << 16},
        {"version": 3},
        {"rate": float("nan")},
        {"numa": -2},
        {"name": "x" * 81},
        {"mtu": "4096"},
        {"atomics": 1},
    ],
)
def test_what_a_peer_may_not_say(change: dict[str, Any]) -> None:
    wrong = msgspec.msgpack.encode([msgspec.structs.replace(rail(0, "10.0.0.1/24"), **change)])
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(wrong, type=Rails)


def test_who_can_read() -> None:
    """M#4342: devices that start, or serve, no reads."""
    able = rail(0, "10.0.0.1/24")
    starts_none, serves_none = (
        msgspec.structs.replace(able, reads_out=0),
        msgspec.structs.replace(able, reads_in=0),
    )
    assert can_read(able, able)
    assert can_read(serves_none, able)
    assert not can_read(able, serves_none)
    assert not can_read(starts_none, able)


def test_numbers_are_unique() -> None:
    assert checked([rail(0, "10.0.0.1/24"), rail(1, "10.0.0.2/24")])
    with pytest.raises(PeerRefused, match="same number"):
        checked([rail(0, "10.0.0.1/24"), rail(0, "10.0.0.2/24")])


def test_who_has_no_atomics_is_named() -> None:
    """The name is the peer's own text: nothing in it moves a terminal."""
    able = rail(0, "10.0.0.1/24")
    without = msgspec.structs.replace(able, atomics=False)
    assert without_atomics([able], "the peer's") == ""
    assert without_atomics([able, without], "the peer's") == (
        "the peer's mlx5_0:1 has no atomic operations"
    )
    strange = msgspec.structs.replace(without, name="a\x1b[2J")
    assert without_atomics([without, strange], "the peer's") == (
        "the peer's a\\x1b[2J, mlx5_0:1 have no atomic operations"
    )
