"""One NIC port that an engine uses.

May import the verbs provider (for typing) and ffi.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transport.ffi import text

if TYPE_CHECKING:
    from transport.providers.verbs.devices import UsablePort


@dataclass(frozen=True, slots=True)
class Rail:
    """One NIC port that the engine uses for RDMA, as it is now. See `Engine.rails`."""

    number: int
    """Its place among the engine's rails; `Lane.rail` of the queue pairs over it."""
    name: str
    """Device and port, "mlx5_0:1"."""
    device: str
    port: int
    link_layer: str
    """"Ethernet" (RoCE) or "InfiniBand"."""
    gid_index: int
    """Row of the port's GID table; new queue pairs use it."""
    gid: str
    """The address in it, IPv4 or IPv6."""
    gid_kind: str
    """"RoCE v2" or "IB/RoCE v1"; empty where sysfs does not tell."""
    speed: float
    """GB/s (1e9 bytes) of the link; 0 if untold."""
    mtu: int
    """Bytes of payload in one packet at most; with each peer the lesser of both."""
    numa: int
    """Node of the host, -1 if untold."""
    pci: str
    """Address of the device; empty for software devices."""
    state: str
    """"up", or "down": then nothing is sent over it, and transfers use the other rails."""
    reason: str
    """Why it is down."""
    operations: int
    """Work requests that succeeded, for all peers, those that are gone included."""
    bytes: int
    retries: int
    """Requests that were handed out again after a failure."""
    errors: int
    """Completions with an error of their own."""
    queue_pairs: int
    """Open now."""
    in_flight: int
    """Work requests that are posted and not completed."""


_COUNTS = ("mtu", "operations", "bytes", "retries", "errors", "queue_pairs", "in_flight")


def rail_of(number: int, port: UsablePort, native: Any) -> Rail:
    """`native` is a struct tn_verbs_rail_stats."""
    facts, gid = port.facts, port.gid
    return Rail(
        number=number,
        name=facts.name,
        device=facts.device,
        port=facts.number,
        link_layer="Ethernet" if facts.ethernet else "InfiniBand",
        gid_index=gid.index,
        gid=str(gid.address),
        gid_kind=gid.kind.value,
        speed=facts.rate,
        numa=facts.numa,
        pci=facts.pci,
        state="up" if native.up else "down",
        reason=text(native.text),
        **{name: getattr(native, name) for name in _COUNTS},
    )
