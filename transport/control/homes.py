"""Hosts with several addresses: which of ours others are told, and which of theirs are tried first.

May import address, errors and topology. Opens no socket but the kernel's own list of addresses.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transport.control.address import Address, TcpAddress, in_order
from transport.topology.network import Network, here, is_overlay_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transport.topology.network import Address as Number

_MOST = 8  # addresses that one door is told by
_ON_LINK, _ROUTED, _LOOPBACK = range(3)


@dataclass(frozen=True)
class Homes:
    """The interfaces to use, as TRANSPORT_TCP_INTERFACES names them; () is every one.

    A wish is an interface (eth0) or a network (10.1.0.0/16); with ^ before it, one to leave out.
    """

    wishes: tuple[str, ...] = ()

    def told(self, version: int, network: Network | None = None) -> tuple[str, ...]:
        """What a door on every address of this host is known by, IPv4 or IPv6.

        The host's own address only where it has no other; networks of containers, and tunnels, only
        where they are asked for.
        """
        network = network or here()
        found: dict[bool, list[str]] = {False: [], True: []}
        for number, (_, interface) in network.addresses.items():
            if number.version == version and self._offers(number, interface):
                found[number.is_loopback].append(str(number))
        return tuple((found[False] or found[True])[:_MOST])

    def order(
        self, addresses: Iterable[Address], *, prefer_unix: bool, network: Network | None = None
    ) -> tuple[Address, ...]:
        """The order in which to try a peer's: those on a network of ours before those behind a
        router. What lies on an interface that is not to be used is left out.
        """
        network = network or here()
        ranked = [(self._rank(address, network), address) for address in addresses]
        kept = sorted((pair for pair in ranked if pair[0] >= 0), key=lambda pair: pair[0])
        return in_order((address for _, address in kept), prefer_unix=prefer_unix)

    def _offers(self, number: Number, interface: str) -> bool:
        if number.is_link_local or number.is_unspecified:
            return False  # it means nothing without an interface of the peer's
        named = any(self._matches(wish, number, interface) for wish in self.wishes)
        return self._allows(number, interface) and (named or not is_overlay_name(interface))

    def _allows(self, number: Number, interface: str) -> bool:
        wanted = [wish for wish in self.wishes if not wish.startswith("^")]
        unwanted = [wish[1:] for wish in self.wishes if wish.startswith("^")]
        if any(self._matches(wish, number, interface) for wish in unwanted):
            return False
        return not wanted or any(self._matches(wish, number, interface) for wish in wanted)

    def _matches(self, wish: str, number: Number, interface: str) -> bool:
        network = _network(wish)
        return wish == interface if network is None else number in network

    def _rank(self, address: Address, network: Network) -> int:
        """Negative: not to be tried."""
        number = _number(address)
        if number is None:
            return _ROUTED
        interface = _on_link(number, network)
        if interface is None:
            unwanted = [wish for wish in self.wishes if wish.startswith("^")]
            return _ROUTED if Homes(tuple(unwanted))._allows(number, "") else -1
        if number.is_loopback:
            return _LOOPBACK
        return _ON_LINK if self._allows(number, interface) else -1


def _network(wish: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    if "/" not in wish:
        return None
    try:
        return ipaddress.ip_network(wish, strict=False)
    except ValueError:
        return None


def _number(address: Address) -> Number | None:
    if not isinstance(address, TcpAddress):
        return None
    try:
        return ipaddress.ip_address(address.host)
    except ValueError:
        return None  # a name: whoever resolves it knows its order


def _on_link(number: Number, network: Network) -> str | None:
    """The interface that reaches it without a router; of several networks the narrowest."""
    found: tuple[int, str] | None = None
    for held, (prefix, interface) in network.addresses.items():
        if held.version != number.version or (found is not None and found[0] >= prefix):
            continue
        if number in ipaddress.ip_network((held, prefix), strict=False):
            found = prefix, interface
    return None if found is None else found[1]
