"""Recorded machines: a few lines of text are made into the sysfs tree that such a machine has.

May import the standard library only. Lines of a record (`#` begins a comment):

    node NUMBER cpus=0-55 distance=10,21
    nic NAME pci0000:15/0000:15:01.0/0000:16:00.0 numa=0 driver=mlx5_core port=ACTIVE,InfiniBand,400
    gpu pci0000:15/0000:15:01.0/0000:17:00.0 numa=0 vendor=0x10de class=0x030200
    soft NAME net=eth0 port=ACTIVE,Ethernet,25
    net NAME PATH numa=0
    module NAME
"""

from __future__ import annotations

import os
from pathlib import Path

RECORDS = Path(__file__).with_name("machines")
_STATES = {"DOWN": 1, "INIT": 2, "ARMED": 3, "ACTIVE": 4}


def names() -> list[str]:
    return sorted(file.stem for file in RECORDS.glob("*.txt"))


def expand(record: str, root: Path) -> Path:
    """Makes the tree of a record, by its name or its text, below `root`; returns what is /sys."""
    file = RECORDS / f"{record}.txt"
    root.mkdir(parents=True, exist_ok=True)
    text = record if "\n" in record else file.read_text()
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if words:
            _LINES[words[0]](root, *_arguments(words[1:]))
    return root


def _arguments(words: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    plain = [word for word in words if "=" not in word]
    named: dict[str, list[str]] = {}
    for word in words:
        if "=" in word:
            key, _, value = word.partition("=")
            named.setdefault(key, []).append(value)
    return plain, named


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def _link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent))


def _node(root: Path, plain: list[str], named: dict[str, list[str]]) -> None:
    folder = root / "devices/system/node" / f"node{plain[0]}"
    _write(folder / "cpulist", named.get("cpus", [""])[0])
    _write(folder / "distance", named["distance"][0].replace(",", " "))


def _pci(root: Path, path: str, named: dict[str, list[str]]) -> Path:
    device = root / "devices" / path
    device.mkdir(parents=True, exist_ok=True)
    if "numa" in named:
        _write(device / "numa_node", named["numa"][0])
    for key in ("vendor", "class"):
        if key in named:
            _write(device / key, named[key][0])
    if "driver" in named:
        _link(device / "driver", root / "bus/pci/drivers" / named["driver"][0])
    _link(root / "bus/pci/devices" / device.name, device)
    return device


def _nic(root: Path, plain: list[str], named: dict[str, list[str]]) -> None:
    name, path = plain
    device = _pci(root, path, named)
    folder = device / "infiniband" / name
    _link(root / "class/infiniband" / name, folder)
    _link(folder / "device", device)
    _ports(folder, named)


def _soft(root: Path, plain: list[str], named: dict[str, list[str]]) -> None:
    folder = root / "devices/virtual/infiniband" / plain[0]
    _link(root / "class/infiniband" / plain[0], folder)
    _write(folder / "parent", named["net"][0])
    _ports(folder, named)


def _ports(folder: Path, named: dict[str, list[str]]) -> None:
    _write(folder / "node_type", named.get("node_type", ["1: CA"])[0].replace("_", " "))
    for number, text in enumerate(named.get("port", []), 1):
        state, layer, rate = text.split(",")
        port = folder / "ports" / str(number)
        _write(port / "state", f"{_STATES[state]}: {state}")
        _write(port / "link_layer", layer)
        _write(port / "rate", f"{rate} Gb/sec (4X)")


def _gpu(root: Path, plain: list[str], named: dict[str, list[str]]) -> None:
    _pci(root, plain[0], {"vendor": ["0x10de"], "class": ["0x030200"], **named})


def _net(root: Path, plain: list[str], named: dict[str, list[str]]) -> None:
    _link(root / "class/net" / plain[0] / "device", _pci(root, plain[1], named))


def _module(root: Path, plain: list[str], named: dict[str, list[str]]) -> None:
    (root / "module" / plain[0]).mkdir(parents=True, exist_ok=True)


_LINES = {
    "node": _node, "nic": _nic, "soft": _soft, "gpu": _gpu, "net": _net, "module": _module,
}  # fmt: skip
