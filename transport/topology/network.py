"""The network interfaces of this namespace and their addresses, as far as the kernel tells.

May import the standard library only. Never raises: what cannot be found out is absent.
(rtnetlink(7), message RTM_GETADDR.)
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Interface = ipaddress.IPv4Interface | ipaddress.IPv6Interface

_RTM_NEWADDR, _RTM_GETADDR = 20, 22
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_REQUEST_DUMP = 0x301
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_HEADER = struct.Struct("=IHHII")
_ADDRESS = struct.Struct("=BBBBI")
_ATTRIBUTE = struct.Struct("=HH")
_ROOM = 1 << 18

# Prefixes of the names that container and tunnel software gives to its interfaces.
_OVERLAYS = (
    "docker", "br-", "virbr", "lxc", "lxd", "podman", "cni", "flannel", "cali", "tunl", "vxlan",
    "cilium", "weave", "kube", "nodelocaldns", "geneve", "gre", "ipip", "sit", "tun", "tap", "wg",
    "tailscale", "zt",
)  # fmt: skip
_DOCKER = ipaddress.ip_network("172.17.0.0/16")


def is_overlay_name(interface: str) -> bool:
    """Whether a network of containers or a tunnel has such a name."""
    return interface.startswith(_OVERLAYS)


@dataclass(frozen=True, slots=True)
class Network:
    """What this namespace has. `names` is None where even that is unknown."""

    names: frozenset[str] | None = None
    addresses: dict[Address, tuple[int, str]] = field(default_factory=dict)  # prefix, interface

    def interface(self, address: Address) -> str:
        return self.addresses.get(address, (0, ""))[1]

    def prefix(self, address: Address) -> int:
        """Bits of its network, counted as in an IPv4 or IPv6 address; 0 if unknown."""
        return self.addresses.get(address, (0, ""))[0]

    def is_overlay(self, address: Address, interface: str) -> bool:
        """By the interface's name; where that is not told, by the ranges of such interfaces here.

        Never by private ranges as such: 10/8 and the like are what real fabrics use (A1).
        """
        if interface:
            return is_overlay_name(interface)
        return address in _DOCKER or any(
            address in ipaddress.ip_network((held, prefix), strict=False)
            for held, (prefix, name) in self.addresses.items()
            if held.version == address.version and is_overlay_name(name)
        )


def here() -> Network:
    """Of the calling thread's network namespace."""
    names: dict[int, str] = {}
    with contextlib.suppress(OSError):
        names = dict(socket.if_nameindex())
    found: dict[Address, tuple[int, str]] = {}
    with contextlib.suppress(OSError, ValueError, struct.error):
        for index, interface in _dump():
            found[interface.ip] = interface.network.prefixlen, names.get(index, "")
    return Network(frozenset(names.values()) if names else None, found)


def _dump() -> Iterator[tuple[int, Interface]]:
    request = _HEADER.pack(_HEADER.size + _ADDRESS.size, _RTM_GETADDR, _REQUEST_DUMP, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
        netlink.settimeout(5)
        netlink.send(request + _ADDRESS.pack(socket.AF_UNSPEC, 0, 0, 0, 0))
        while True:
            for kind, body in _parts(netlink.recv(_ROOM), _HEADER, lambda h: (h[0], h[1])):
                if kind in (_NLMSG_DONE, _NLMSG_ERROR):
                    return
                if kind == _RTM_NEWADDR:
                    yield from _address(body)


def _parts(
    data: bytes, head: struct.Struct, of: Callable[[tuple[int, ...]], tuple[int, int]]
) -> Iterator[tuple[int, bytes]]:
    """Messages and attributes alike: a head with length and kind, and padding to 4 bytes."""
    at = 0
    while at + head.size <= len(data):
        length, kind = of(head.unpack_from(data, at))
        if length < head.size:
            return
        yield kind, data[at + head.size : at + length]
        at += (length + 3) & ~3


def _address(body: bytes) -> Iterator[tuple[int, Interface]]:
    _, prefix, _, _, index = _ADDRESS.unpack_from(body)
    attributes = dict(_parts(body[_ADDRESS.size :], _ATTRIBUTE, lambda h: (h[0], h[1])))
    # A point-to-point link's own address is IFA_LOCAL; elsewhere only IFA_ADDRESS may be there.
    raw = attributes.get(_IFA_LOCAL) or attributes.get(_IFA_ADDRESS)
    if raw:
        yield index, ipaddress.ip_interface((raw, prefix))
