"""RDMA devices as sysfs shows them, and why there are none. Standard library only."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transport.cli.facts import ROOT, read

if TYPE_CHECKING:
    from pathlib import Path

_NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


@dataclass(frozen=True, slots=True)
class Gid:
    index: int
    address: str
    kind: str  # "IB/RoCE v1" or "RoCE v2"
    interface: str


@dataclass(frozen=True, slots=True)
class Port:
    """One port of one device. `rate` is the kernel's text ("100 Gb/sec (4X EDR)")."""

    device: str
    number: int
    state: str
    link_layer: str
    rate: str
    gids: tuple[Gid, ...]

    @property
    def active(self) -> bool:
        return self.state.endswith("ACTIVE")


def ports(root: Path = ROOT) -> list[Port]:
    """All ports that this network namespace sees."""
    folders = sorted((root / "sys/class/infiniband").glob("*/ports/*"))
    return [_port(folder) for folder in folders]


def _port(folder: Path) -> Port:
    return Port(
        device=folder.parent.parent.name,
        number=int(folder.name),
        state=read(folder / "state") or "unknown",
        link_layer=read(folder / "link_layer") or "unknown",
        rate=read(folder / "rate") or "unknown",
        gids=tuple(_gids(folder)),
    )


def _gids(folder: Path) -> list[Gid]:
    found: list[Gid] = []
    for entry in sorted((folder / "gids").glob("*"), key=lambda entry: int(entry.name)):
        address = read(entry)
        if not address or address == _NO_GID:
            continue
        attributes = folder / "gid_attrs"
        kind = read(attributes / "types" / entry.name) or "unknown"
        interface = read(attributes / "ndevs" / entry.name) or ""
        found.append(Gid(int(entry.name), address, kind, interface))
    return found


_NO_SUBSYSTEM = (
    "this kernel has no RDMA subsystem (no /sys/class/infiniband)",
    """load the NIC's driver, or `modprobe rdma_rxe` and `rdma link add` for Soft-RoCE; \
`make rdma-shell` boots a guest that has it""",
)
_NO_DEVICE = (
    "no RDMA device in this network namespace",
    """`rdma link add rxe0 type rxe netdev INTERFACE` makes a Soft-RoCE device; in a container \
the device must be moved into its network namespace""",
)
_NO_NODE = (
    "there are RDMA devices but no /dev/infiniband/uverbs*",
    "`modprobe ib_uverbs`; in a container pass --device=/dev/infiniband",
)


def obstacle(root: Path = ROOT) -> tuple[str, str] | None:
    """Why RDMA cannot be used from here (reason, remedy); None when nothing is in the way."""
    devices = root / "sys/class/infiniband"
    if not devices.is_dir():
        return _NO_SUBSYSTEM
    if not any(devices.iterdir()):
        return _NO_DEVICE
    folder = root / "dev/infiniband"
    nodes = sorted(folder.glob("uverbs*")) if folder.is_dir() else []
    if not nodes:
        return _NO_NODE
    closed = [str(node) for node in nodes if not os.access(node, os.R_OK | os.W_OK)]
    if closed:
        return (f"no permission to open {', '.join(closed)}", "give this user read and write to it")
    return None
