"""Which GID is chosen: by what it is, not by where it lies."""

from __future__ import annotations

import ipaddress

import pytest

from transport.errors import Unavailable
from transport.providers.verbs.gid import Gid, Kind, choose

V1, V2 = Kind.V1, Kind.V2


def gid(index: int, address: str, kind: Kind = V2, *, visible: bool = True) -> Gid:
    value = ipaddress.ip_address(address)
    raw = value.packed if value.version == 6 else ipaddress.IPv6Address(f"::ffff:{address}").packed
    return Gid(index, raw, kind, "eth0", visible)


EMPTY = Gid(7, bytes(16))


@pytest.mark.parametrize(
    ("rows", "index"),
    [
        # The usual RoCE table; a private IPv4 address is as good as any.
        (
            [gid(0, "fe80::1", V1), gid(1, "fe80::1"), gid(2, "10.0.0.5", V1), gid(3, "10.0.0.5")],
            3,
        ),
        # The order of the table does not matter.
        ([gid(0, "10.0.0.5"), gid(1, "fe80::1"), gid(2, "fe80::1", V1)], 0),
        # No IPv4 at all: unique local and global IPv6 are fine, link-local is not.
        ([gid(0, "fe80::1", V1), gid(1, "fe80::1"), gid(2, "fd93::1", V1), gid(3, "fd93::1")], 3),
        ([gid(0, "fe80::1"), gid(1, "2001:db8::1")], 1),
        ([gid(0, "2001:db8::1"), gid(1, "192.168.7.7")], 1),
        # Version 1 of a routable address before version 2 of a link-local one.
        ([gid(0, "fe80::1"), gid(1, "10.0.0.5", V1)], 1),
        # Link-local is the last resort, and 169.254 is link-local too.
        ([gid(0, "fe80::1", V1), gid(1, "fe80::1")], 1),
        ([gid(0, "169.254.3.3"), gid(1, "fd00::3")], 1),
        # What belongs to another network namespace is not seen.
        ([gid(0, "10.0.0.5", visible=False), gid(1, "fd00::3")], 1),
        # Kinds untold (attributes missing): the second row of an address is version 2.
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
    assert choose(rows, index=0).index == 0
    with pytest.raises(Unavailable, match=r"index 7 is empty.*0, 1"):
        choose(rows, index=7)
    with pytest.raises(Unavailable, match="index 5 is not in the table"):
        choose(rows, index=5)


def test_reasons() -> None:
    with pytest.raises(Unavailable, match=r"rows of the GID table are empty.*network namespace"):
        choose([Gid(0, bytes(16)), EMPTY])
    with pytest.raises(Unavailable, match=r"this namespace does not have \(eth0\)"):
        choose([gid(0, "10.0.0.5", visible=False)])


def test_kind_is_read_as_sysfs_writes_it() -> None:
    assert Kind.parse("RoCE v2\n") is V2
    assert Kind.parse("IB/RoCE v1\n") is V1
    assert Kind.parse("") is Kind.UNKNOWN
