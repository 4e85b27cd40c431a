"""By which address of this machine processes on other hosts reach this one. Imports stdlib only.

A process learns it from its links: the address of its own end of one that leads to another host.
The engine for calls, which is made later, listens there too.
"""

from __future__ import annotations

import socket
from ipaddress import IPv6Address, ip_address

_hosts: list[str] = []


def note(sock: socket.socket) -> None:
    """A link leads through this connected socket."""
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        host = own_host(sock)
        if host not in _hosts and not ip_address(host.partition("%")[0]).is_loopback:
            _hosts.append(host)


def own_host(sock: socket.socket) -> str:
    """The address of this end. One that listens for both kinds gives IPv4's as "::ffff:10.0.0.1",
    on which nobody can listen."""
    host = str(sock.getsockname()[0])
    found = ip_address(host.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return host if mapped is None else str(mapped)


def hosts() -> tuple[str, ...]:
    """In the order in which they were noted; none where all links stay on this host."""
    return tuple(_hosts)
