"""The double of libibverbs (native/fakes/fakeverbs), as a test handles it: its knobs, and machines
with devices of one's own, as the library and as sysfs tell of them.

May import the standard library only.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
from dataclasses import dataclass, field
from pathlib import Path

LIBRARY = str(Path(os.environ["TN_FAKES"]) / "fakeverbs.so")

_STATES = {1: "DOWN", 2: "INIT", 3: "ARMED", 4: "ACTIVE"}
_NODES = {0: "1: CA", 1: "4: RNIC", 2: "8: unspecified"}


@dataclass(frozen=True)
class Gid:
    """A row of a port's table. `kind` and `interface` are only sysfs's to tell."""

    address: str  # IPv6, or IPv4, which is mapped
    kind: str = "RoCE v2"
    interface: str = "eth0"

    @property
    def value(self) -> ipaddress.IPv6Address:
        address = ipaddress.ip_address(self.address)
        return (
            address
            if isinstance(address, ipaddress.IPv6Address)
            else ipaddress.IPv6Address(f"::ffff:{address}")
        )


@dataclass(frozen=True)
class Port:
    """`knobs` are those of native/fakes/README.md; `gids` None leaves the double's own."""

    ethernet: bool = True
    state: int = 4
    rate: float = 100.0  # Gbit/s
    gids: dict[int, Gid] | None = None
    knobs: dict[str, int] = field(default_factory=dict)

    def settings(self) -> dict[str, str]:
        rows = {} if self.gids is None else dict.fromkeys(range(max(self.gids, default=1)), "")
        rows |= {index: str(gid.value) for index, gid in (self.gids or {}).items()}
        words = {f"gid.{index}": text for index, text in rows.items()}
        if self.gids is not None:
            words["gids"] = str(max(self.gids, default=0) + 1)
        words |= {"link_layer": "2" if self.ethernet else "1", "state": str(self.state)}
        return words | {name: str(value) for name, value in self.knobs.items()}


@dataclass(frozen=True)
class Device:
    """`kind`: 0 InfiniBand or RoCE, 1 iWARP, 2 one without RC."""

    name: str
    ports: tuple[Port, ...] = (Port(),)
    kind: int = 0
    numa: int = -1
    driver: str = "mlx5_core"
    knobs: dict[str, int] = field(default_factory=dict)


def settings(devices: list[Device]) -> list[tuple[str, str]]:
    """Names and texts for the double, in order."""
    words = [("devices", str(len(devices)))]
    for number, device in enumerate(devices):
        own = f"fake{number}"
        words += [(f"{own}.name", device.name), (f"{own}.ports", str(len(device.ports)))]
        words += [(f"{own}.kind", str(device.kind))]
        words += [(f"{own}.{name}", str(value)) for name, value in device.knobs.items()]
        for at, port in enumerate(device.ports, 1):
            words += [(f"{own}:{at}.{name}", text) for name, text in port.settings().items()]
    return words


def environment(devices: list[Device]) -> dict[str, str]:
    """For a process whose double is to have these devices."""
    return {"FAKEVERBS": " ".join(f"{name}={text}" for name, text in settings(devices))}


def write_sysfs(root: Path, devices: list[Device]) -> Path:
    """What is /sys on a machine with these devices; `root`."""
    for device in devices:
        folder = root / "class" / "infiniband" / device.name
        _write(folder / "node_type", _NODES[device.kind])
        if device.numa >= 0:
            _write(folder / "device" / "numa_node", str(device.numa))
        driver = root / "bus" / "pci" / "drivers" / device.driver
        driver.mkdir(parents=True, exist_ok=True)
        (folder / "device").mkdir(exist_ok=True)
        (folder / "device" / "driver").symlink_to(driver)
        for number, port in enumerate(device.ports, 1):
            _write_port(folder / "ports" / str(number), port)
    return root


def _write_port(folder: Path, port: Port) -> None:
    _write(folder / "state", f"{port.state}: {_STATES[port.state]}")
    _write(folder / "link_layer", "Ethernet" if port.ethernet else "InfiniBand")
    _write(folder / "rate", f"{port.rate:g} Gb/sec (4X HDR)")
    _write(folder / "pkeys" / "0", "0xffff")
    for index, gid in (port.gids or {}).items():
        _write(folder / "gids" / str(index), gid.value.exploded)
        _write(folder / "gid_attrs" / "types" / str(index), gid.kind)
        _write(folder / "gid_attrs" / "ndevs" / str(index), gid.interface)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


class Double:
    """The double in this process; engines that are open in it feel each change at once."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(LIBRARY)
        self._library.fakeverbs_ctl.argtypes = [ctypes.c_char_p, ctypes.c_long]
        self._library.fakeverbs_ctl.restype = ctypes.c_long
        self._library.fakeverbs_get.argtypes = [ctypes.c_char_p]
        self._library.fakeverbs_get.restype = ctypes.c_long
        self._library.fakeverbs_set.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
        self._library.fakeverbs_set.restype = None

    def set(self, **knobs: int) -> None:
        for name, value in knobs.items():
            self.put(name, value)

    def put(self, name: str, value: int | str) -> None:
        """`name` as in native/fakes/README.md: "fake0:1.state"."""
        if isinstance(value, str):
            self._library.fakeverbs_set(name.encode(), value.encode())
        else:
            self._library.fakeverbs_ctl(name.encode(), value)

    def get(self, name: str) -> int:
        return int(self._library.fakeverbs_get(name.encode()))

    def access(self, key: int) -> int:
        """The access flags of a memory region; -1: there is none with the key."""
        return int(self._library.fakeverbs_mr_access(ctypes.c_uint32(key)))

    def configure(self, devices: list[Device]) -> None:
        self.reset()
        for name, text in settings(devices):
            self.put(name, text)

    def reset(self) -> None:
        self._library.fakeverbs_reset()
