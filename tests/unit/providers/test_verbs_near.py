"""Rails near memory, as masks, on recorded machines."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import sysfs_tree

from transport.config import Settings
from transport.providers.verbs.devices import UsablePort
from transport.providers.verbs.gid import Gid
from transport.providers.verbs.near import Near
from transport.providers.verbs.ports import Port
from transport.topology import Place

if TYPE_CHECKING:
    from pathlib import Path


def near(record: str, tmp_path: Path, *devices: str, text: str = "") -> Near:
    rails = [UsablePort(Port(device, 1, 4), Gid(0, bytes(16))) for device in devices]
    nic_map = Settings.from_env({"TRANSPORT_VERBS_NIC_MAP": text}).verbs_nic_map
    return Near(rails, sysfs_tree.expand(record, tmp_path / "sys"), nic_map)


def test_by_numa_node(tmp_path: Path) -> None:
    """I3: rails of the memory's own node; numbers are places among the engine's rails."""
    found = near("eight_gpus", tmp_path, "mlx5_6", "mlx5_0", "mlx5_1")
    assert [found.of_node(node) for node in (0, 1, -1, 7)] == [0b110, 0b001, 0, 0]
    assert found.of_place(Place.parse("gpu1", found._machine)) == 0b100  # type: ignore[arg-type]


def test_no_preference(tmp_path: Path) -> None:
    assert near("eight_gpus", tmp_path, "mlx5_0").of_node(0) == 0
    assert near("cloud_vm", tmp_path / "cloud", "mlx5_0", "mlx5_1").of_node(1) == 0
    assert near("soft", tmp_path / "soft", "rxe0", "rxe1").of_node(0) == 0


def test_the_map_wins(tmp_path: Path) -> None:
    """I4."""
    found = near("cloud_vm", tmp_path, "mlx5_0", "mlx5_1", text="cpu:1=mlx5_1")
    assert [found.of_node(node) for node in (0, 1)] == [0, 0b10]


def test_memory_of_this_process(tmp_path: Path) -> None:
    """This machine may have one node, or not tell: node 0 or no preference."""
    found = near("gh200", tmp_path, "mlx5_0", "mlx5_1", text="cpu:0=mlx5_1")
    buffer = ctypes.create_string_buffer(1 << 16)
    assert found.of_memory(ctypes.addressof(buffer), len(buffer)) in (0, 0b10, 0b01)
    assert found.of_memory(ctypes.addressof(buffer), 0) == 0
    assert found.of_memory(8, 8) == 0  # no memory there
