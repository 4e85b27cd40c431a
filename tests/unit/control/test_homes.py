"""Hosts with several addresses: what is told, and what is tried first."""

from __future__ import annotations

import ipaddress

import pytest

from transport.config import Settings
from transport.control.address import parse_all
from transport.control.homes import Homes
from transport.errors import InvalidUse
from transport.topology.network import Network


def network(**interfaces):
    """`eth0="10.0.0.5/24 fd00::5/64"`."""
    return Network(
        frozenset(interfaces),
        {
            found.ip: (found.network.prefixlen, name)
            for name, texts in interfaces.items()
            for found in map(ipaddress.ip_interface, texts.split())
        },
    )


HOST = network(
    lo="127.0.0.1/8 ::1/128",
    eth0="10.0.0.5/24 fd00::5/64 fe80::5/64",
    ib0="192.168.7.5/16",
    docker0="172.17.0.1/16",
)


@pytest.mark.parametrize(
    ("wishes", "version", "told"),
    [
        ((), 4, ["10.0.0.5", "192.168.7.5"]),
        ((), 6, ["fd00::5"]),
        (("ib0",), 4, ["192.168.7.5"]),
        (("192.168.0.0/16",), 4, ["192.168.7.5"]),
        (("^eth0",), 4, ["192.168.7.5"]),
        (("^10.0.0.0/8",), 4, ["192.168.7.5"]),
        (("docker0", "eth0"), 4, ["10.0.0.5", "172.17.0.1"]),
        (("lo",), 4, ["127.0.0.1"]),
        (("lo",), 6, ["::1"]),
        (("ib0",), 6, []),
        (("eth1",), 4, []),
    ],
)
def test_what_peers_are_told(wishes, version, told):
    assert list(Homes(wishes).told(version, HOST)) == told


def test_the_host_itself_where_there_is_nothing_else():
    alone = network(lo="127.0.0.1/8")
    assert Homes().told(4, alone) == ("127.0.0.1",)
    assert Homes().told(6, alone) == ()
    many = network(lo="127.0.0.1/8", **{f"eth{i}": f"10.{i}.0.1/16" for i in range(30)})
    assert len(Homes().told(4, many)) == 8


def order(addresses, wishes=(), prefer_unix=True):
    found = Homes(wishes).order(parse_all(addresses), prefer_unix=prefer_unix, network=HOST)
    return [str(address) for address in found]


def test_the_peers_network_is_preferred():
    told = ["unix:@x", "name:1", "8.8.8.8:1", "127.0.0.1:1", "192.168.9.9:1", "[fd00::9]:1"]
    assert order(told) == [
        "unix:@x",
        "192.168.9.9:1",
        "[fd00::9]:1",
        "name:1",
        "8.8.8.8:1",
        "127.0.0.1:1",
    ]
    assert order(told, prefer_unix=False)[-1] == "unix:@x"


def test_addresses_of_unwanted_interfaces_are_not_tried():
    told = ["10.0.0.9:1", "192.168.9.9:1", "8.8.8.8:1", "name:1"]
    assert order(told, ("ib0",)) == ["192.168.9.9:1", "8.8.8.8:1", "name:1"]
    assert order(told, ("^ib0",)) == ["10.0.0.9:1", "8.8.8.8:1", "name:1"]
    assert order(told, ("^8.8.0.0/16", "^10.0.0.0/24")) == ["192.168.9.9:1", "name:1"]
    assert order(["127.0.0.1:1"], ("ib0",)) == ["127.0.0.1:1"]


def test_nothing_known_changes_nothing():
    told = ["b:1", "10.0.0.9:1", "[fe80::1%eth0]:1", "unix:@x"]
    found = Homes().order(parse_all(told), prefer_unix=False, network=Network())
    assert [str(address) for address in found] == told


@pytest.mark.parametrize("wish", ["^", "10.0.0.0/99", "^fd00::/200"])
def test_wishes_that_make_no_sense(wish):
    with pytest.raises(InvalidUse, match="TCP_INTERFACES"):
        Settings(tcp_interfaces=(wish,))
