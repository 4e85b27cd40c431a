"""Which GID is chosen: by what it is, not by where it lies."""

from __future__ import annotations

import ipaddress

import pytest

from transport.errors import Unavailable
from transport.providers.verbs.gid import Gid, Kind, Place, Wish, choose

V1, V2 = Kind.V1, Kind.V2
ELSEWHERE, UNTOLD = Place.ELSEWHERE, Place.UNTOLD


def gid(
    index: int, address: str, kind: Kind = V2, *, place: Place = Place.HERE, overlay: bool = False
) -> Gid:
    value = ipaddress.ip_address(address)
    raw = value.packed if value.version == 6 else ipaddress.IPv6Address(f"::ffff:{address}").packed
    return Gid(index, raw, kind, "eth0", place, overlay)


EMPTY = Gid(7, bytes(16))


@pytest.mark.parametrize(
    ("rows", "index"),
    [
        # A1, A13: the usual RoCE table; a private IPv4 address is as good as any.
        (
            [gid(0, "fe80::1", V1), gid(1, "fe80::1"), gid(2, "10.0.0.5", V1), gid(3, "10.0.0.5")],
            3,
        ),
        # The order of the table does not matter.
        ([gid(0, "10.0.0.5"), gid(1, "fe80::1"), gid(2, "fe80::1", V1)], 0),
        # A2, A3: no IPv4 at all: unique local and global IPv6 are fine, link-local is not.
        ([gid(0, "fe80::1", V1), gid(1, "fe80::1"), gid(2, "fd93::1", V1), gid(3, "fd93::1")], 3),
        ([gid(0, "fe80::1"), gid(1, "2001:db8::1")], 1),
        ([gid(0, "2001:db8::1"), gid(1, "192.168.7.7")], 1),
        # Version 1 of a routable address before version 2 of a link-local one.
        ([gid(0, "fe80::1"), gid(1, "10.0.0.5", V1)], 1),
        # Link-local is the last resort, and 169.254 is link-local too.
        ([gid(0, "fe80::1", V1), gid(1, "fe80::1")], 1),
        ([gid(0, "169.254.3.3"), gid(1, "fd00::3")], 1),
        # A4: what belongs to another network namespace is not seen.
        ([gid(0, "10.0.0.5", place=ELSEWHERE), gid(1, "fd00::3")], 1),
        # M#4304: the routable row is behind many others.
        (
            [*(gid(n, f"fe80::{n + 1}", (V1, V2)[n % 2]) for n in range(6)), gid(7, "10.2.0.9")],
            7,
        ),
        # An overlay leads nowhere, be it IPv4; it is better than nothing.
        ([gid(0, "172.17.0.1", overlay=True), gid(1, "10.0.0.5")], 1),
        ([gid(0, "172.17.0.1", overlay=True), gid(1, "fe80::5")], 1),
        ([gid(0, "172.17.0.1", overlay=True)], 0),
        # An address that an interface here has before one of which nothing is told (A4, A5).
        ([gid(0, "10.0.0.5", place=UNTOLD), gid(1, "fd00::3", V1)], 1),
        ([gid(0, "10.0.0.5", place=UNTOLD), gid(1, "fe80::3")], 0),
        # A5: kinds untold (attributes missing): the second row of an address is version 2.
        (
            [
                gid(0, "fe80::1", Kind.UNKNOWN),
                gid(1, "fe80::1", Kind.UNKNOWN),
                gid(2, "10.0.0.5", Kind.UNKNOWN),
                gid(3, "10.0.0.5", Kind.UNKNOWN),
            ],
            3,
        ),
        ([EMPTY, gid(9, "10.0.0.5")], 9),
    ],
)
def test_ethernet(rows: list[Gid], index: int) -> None:
    assert choose(rows).index == index
    assert choose(rows[::-1]).index == index


def test_infiniband_takes_the_ports_own() -> None:
    rows = [gid(0, "fe80::1", V1), gid(1, "10.0.0.5", V1)]
    assert choose(rows, ethernet=False).index == 0


def test_a_given_index_wins_if_it_is_filled() -> None:
    rows = [gid(0, "fe80::1", V1), gid(1, "10.0.0.5"), EMPTY]
    assert choose(rows, wish=Wish(index=0)).index == 0
    with pytest.raises(Unavailable, match=r"index 7 is empty.*0, 1"):
        choose(rows, wish=Wish(index=7))
    with pytest.raises(Unavailable, match="index 5 is not in the table"):
        choose(rows, wish=Wish(index=5))


def test_by_address_wherever_it_is() -> None:
    """M#4304: an override that survives a table whose order changed."""
    rows = [gid(0, "fe80::1", V1), gid(1, "10.0.0.5", V1), gid(2, "10.0.0.5"), gid(3, "fd00::3")]
    for order in (rows, rows[::-1]):
        assert choose(order, wish=Wish(address=ipaddress.ip_address("10.0.0.5"))).index == 2
        assert choose(order, wish=Wish(address=ipaddress.ip_address("fd00::3"))).index == 3
    with pytest.raises(Unavailable, match=r"no GID has the address 10.0.0.6.*fe80::1, 10.0.0.5"):
        choose(rows, wish=Wish(address=ipaddress.ip_address("10.0.0.6")))


def test_by_network_in_the_order_asked_for() -> None:
    rows = [gid(0, "10.1.0.5"), gid(1, "10.2.0.5", V1), gid(2, "10.2.0.5"), gid(3, "fd00::3")]

    def of(*networks: str) -> Wish:
        return Wish(networks=tuple(ipaddress.ip_network(text) for text in networks))

    assert choose(rows, wish=of("10.2.0.0/16")).index == 2
    assert choose(rows, wish=of("192.168.0.0/16", "fd00::/8", "10.0.0.0/8")).index == 3
    with pytest.raises(Unavailable, match=r"no GID is of the network 192.168.0.0/16"):
        choose(rows, wish=of("192.168.0.0/16"))
    assert choose(rows, ethernet=False, wish=of("10.2.0.0/16")).index == 2


def test_classes_in_words() -> None:
    words = [
        gid(0, "10.0.0.1").describe(),
        gid(0, "fd00::1").describe(),
        gid(0, "fe80::1").describe(),
        gid(0, "172.17.0.1", overlay=True).describe(),
        gid(0, "10.0.0.1", place=ELSEWHERE).describe(),
        EMPTY.describe(),
    ]
    assert words == [
        "IPv4",
        "global IPv6",
        "link-local",
        "overlay network",
        "in another network namespace",
        "empty",
    ]


def test_reasons() -> None:
    with pytest.raises(Unavailable, match=r"rows of the GID table are empty.*network namespace"):
        choose([Gid(0, bytes(16)), EMPTY])
    with pytest.raises(Unavailable, match=r"this namespace does not have \(eth0\)"):
        choose([gid(0, "10.0.0.5", place=ELSEWHERE)])


def test_kind_is_read_as_sysfs_writes_it() -> None:
    assert Kind.parse("RoCE v2\n") is V2
    assert Kind.parse("IB/RoCE v1\n") is V1
    assert Kind.parse("") is Kind.UNKNOWN
