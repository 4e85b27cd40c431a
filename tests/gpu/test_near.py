"""NICs near a GPU are preferred for its memory, whatever number it has in this process (I4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sysfs_tree

from transport.providers.verbs.devices import UsablePort
from transport.providers.verbs.gid import Gid
from transport.providers.verbs.near import Near
from transport.providers.verbs.ports import Port

if TYPE_CHECKING:
    from pathlib import Path

    from gpu_double import GpuDouble

# The double's GPUs, each below a switch of its own with a NIC; one socket.
_MACHINE = """
node 0 cpus=0-31 distance=10
gpu pci0000:10/0000:10:01.0/0000:1a:00.0/0000:1b:00.0 numa=0 driver=nvidia
nic mlx5_0 pci0000:10/0000:10:01.0/0000:1a:01.0/0000:1c:00.0 numa=0 driver=mlx5_core port=ACTIVE,InfiniBand,400
gpu pci0000:20/0000:20:01.0/0000:2a:00.0/0000:2b:00.0 numa=0 driver=nvidia
nic mlx5_1 pci0000:20/0000:20:01.0/0000:2a:01.0/0000:2c:00.0 numa=0 driver=mlx5_core port=ACTIVE,InfiniBand,400
"""  # noqa: E501  (records are so)


def near(tmp_path: Path, *devices: str) -> Near:
    rails = [UsablePort(Port(device, 1, 4), Gid(0, bytes(16))) for device in devices]
    return Near(rails, sysfs_tree.expand(_MACHINE, tmp_path / "sys"), ())


def test_by_the_address_of_the_gpu(gpu: GpuDouble, tmp_path: Path):
    found = near(tmp_path, "mlx5_1", "mlx5_0")
    assert [found.of_gpu(ordinal) for ordinal in (0, 1, -1)] == [0b10, 0b01, 0]
    assert found.of_memory(1 << 20, 4096) == 0  # one node: host memory has no preference


def test_one_rail_is_no_choice(gpu: GpuDouble, tmp_path: Path):
    assert near(tmp_path, "mlx5_1").of_gpu(0) == 0
