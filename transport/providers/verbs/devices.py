"""Rails: the RDMA ports of this host, from libibverbs, with what only sysfs tells about their GIDs.

May import ffi, errors, gid. Every sysfs file may be missing or unreadable (containers).
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transport.errors import Unavailable
from transport.ffi import check, ffi, lib, text
from transport.providers.verbs import gid as gids

if TYPE_CHECKING:
    from collections.abc import Iterable

SYSFS = Path("/sys/class/infiniband")

_ACTIVE = 4
_ETHERNET = 2
_MAX_PORTS = 256
_MAX_GIDS = 256  # an address vector names no higher index
_LANES = {1: 1, 2: 4, 4: 8, 8: 12, 16: 2}
# Gbit/s per lane by the code of the InfiniBand specification.
_LANE_RATE = {1: 2.5, 2: 5, 4: 10, 8: 10, 16: 14, 32: 25, 64: 50, 128: 100}


@dataclass(frozen=True, slots=True)
class Rail:
    """One port that can be used, and the GID by which it is known. Sizes in bytes."""

    device: str
    port: int
    ethernet: bool
    mtu: int
    max_message: int
    max_region: int
    rate: float  # GB/s, 1e9 bytes; 0 if unknown
    gid: gids.Gid

    def __str__(self) -> str:
        kind = "RoCE" if self.ethernet else "InfiniBand"
        return f"{self.device} port {self.port} ({kind}, MTU {self.mtu}, GID {self.gid})"


def discover(
    library: str | None = None,
    devices: Iterable[str] = (),
    gid_index: int = -1,
    sysfs: Path = SYSFS,
) -> tuple[list[Rail], dict[str, str]]:
    """The usable rails, best first, and why the other ports are not, by "device:port".

    `devices` restricts and orders them. Raises Unavailable where there is no libibverbs.
    """
    wanted = list(devices)
    rails: list[Rail] = []
    refused: dict[str, str] = {}
    for facts in _ports(library):
        device = text(facts.device)
        if wanted and device not in wanted:
            continue
        try:
            rails.append(_rail(library, facts, gid_index, sysfs))
        except Unavailable as error:
            refused[f"{device}:{facts.port}"] = str(error)
    refused |= {
        name: "there is no such device" for name in wanted if not _seen(name, rails, refused)
    }
    rails.sort(key=lambda rail: _preference(rail, wanted))
    return rails, refused


def _seen(name: str, rails: list[Rail], refused: dict[str, str]) -> bool:
    return any(rail.device == name for rail in rails) or any(
        key.rpartition(":")[0] == name for key in refused
    )


def _preference(rail: Rail, wanted: list[str]) -> tuple[int, float, str, int]:
    place = wanted.index(rail.device) if wanted else 0
    return (place, -rail.rate, rail.device, rail.port)


def _ports(library: str | None) -> Any:
    ports = ffi.new("struct tn_verbs_port[]", _MAX_PORTS)
    count = check(lib.tn_verbs_ports(_path(library), ports, _MAX_PORTS))
    return [ports[i] for i in range(min(count, _MAX_PORTS))]


def _path(library: str | None) -> Any:
    return library.encode() if library else ffi.NULL


def _rail(library: str | None, facts: Any, gid_index: int, sysfs: Path) -> Rail:
    device, port = text(facts.device), facts.port
    if not port:
        raise Unavailable(
            "the device cannot be opened",
            "is /dev/infiniband/uverbs* there, and readable for this user?",
        )
    if facts.is_iwarp:
        raise Unavailable("iWARP is not supported", "use a RoCE or InfiniBand device, or tcp")
    if facts.state != _ACTIVE:
        raise Unavailable("the port is not active", "is the cable plugged in and the link up?")
    ethernet = facts.link_layer == _ETHERNET
    rows = _gid_rows(library, device, port, sysfs)
    return Rail(
        device=device,
        port=port,
        ethernet=ethernet,
        mtu=facts.active_mtu,
        max_message=facts.max_message,
        max_region=facts.max_region,
        rate=_LANES.get(facts.active_width, 0) * _LANE_RATE.get(facts.active_speed, 0) / 8,
        gid=gids.choose(rows, ethernet=ethernet, index=gid_index),
    )


def _gid_rows(library: str | None, device: str, port: int, sysfs: Path) -> list[gids.Gid]:
    raw = ffi.new("uint8_t[]", _MAX_GIDS * 16)
    count = check(lib.tn_verbs_gids(_path(library), device.encode(), port, raw, _MAX_GIDS))
    table = bytes(ffi.buffer(raw, count * 16))
    attributes = sysfs / device / "ports" / str(port) / "gid_attrs"
    interfaces = {name for _, name in socket.if_nameindex()}
    return [
        _row(index, table[index * 16 : index * 16 + 16], attributes, interfaces)
        for index in range(count)
        if any(table[index * 16 : index * 16 + 16])
    ] or [gids.Gid(index, bytes(16)) for index in range(count)]


def _row(index: int, raw: bytes, attributes: Path, interfaces: set[str]) -> gids.Gid:
    kind = gids.Kind.parse(_read(attributes / "types" / str(index)))
    interface = _read(attributes / "ndevs" / str(index))
    return gids.Gid(index, raw, kind, interface, not interface or interface in interfaces)


def _read(path: Path) -> str:
    """The file's text, or "": missing in containers, EINVAL for rows without an interface."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
