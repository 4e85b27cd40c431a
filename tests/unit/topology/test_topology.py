"""Distances and choices on recorded machines (group I of the fault reports)."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
import sysfs_tree

from transport.config import Settings
from transport.errors import InvalidUse
from transport.topology import Choice, Distance, Machine, Place, choose, read_machine
from transport.topology.distance import between
from transport.topology.machine import pci_address

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def machine(tmp_path: Path) -> Callable[[str], Machine]:
    def read(record: str) -> Machine:
        return read_machine(sysfs_tree.expand(record, tmp_path / "sys"))

    return read


def near(machine: Machine, place: str, text: str = "", **other: object) -> Choice:
    nic_map = Settings.from_env({"TRANSPORT_VERBS_NIC_MAP": text}).verbs_nic_map
    return choose(Place.parse(place, machine), machine, nic_map, **other)  # type: ignore[arg-type]


@pytest.mark.parametrize("record", sysfs_tree.names())
def test_every_record_is_read_and_every_distance_is_symmetric(
    record: str, machine: Callable[[str], Machine]
) -> None:
    found = machine(record)
    devices = [*found.nics, *found.gpus]
    for a, b in itertools.combinations_with_replacement(devices, 2):
        assert between(a, b, found.nodes) == between(b, a, found.nodes)
    for place in [*(f"cpu:{node.number}" for node in found.nodes), *(g.name for g in found.gpus)]:
        choice = near(found, place)
        assert choice.reason
        assert bool(choice.nics) == any(
            not nic.unusable and any(port.active for port in nic.ports) for nic in found.nics
        )


def test_nothing_here(tmp_path: Path) -> None:
    found = read_machine(tmp_path)
    assert found == Machine((), (), ())
    assert near(found, "cpu:0").reason == "there is no RDMA device"


def test_dual_port_nic(machine: Callable[[str], Machine]) -> None:
    """I4, M#4630: two functions of one card; the one whose link is down is not chosen."""
    found = machine("dual_port")
    assert between(*found.nics) is Distance.SAME
    choice = near(found, "cpu:0")
    assert (choice.nics, choice.distance) == (("mlx5_0",), Distance.NODE)
    assert near(found, "cpu:1").distance is Distance.SYS


def test_one_device_with_two_ports(machine: Callable[[str], Machine]) -> None:
    """I2: a port that is down does not take the other with it."""
    found = machine("dual_port_device")
    assert [port.active for port in found.nics[0].ports] == [True, False]
    assert near(found, "cpu:0").nics == ("mlx4_0",)


def test_all_ports_down_are_named(machine: Callable[[str], Machine]) -> None:
    """M#4630."""
    found = machine(
        "node 0 cpus=0 distance=10\nnic n0 pci0000:00/0000:01:00.0 port=DOWN,Ethernet,1"
    )
    assert near(found, "cpu:0").reason == "n0: no port is active"


def test_a_nic_per_gpu_behind_switches(machine: Callable[[str], Machine]) -> None:
    """I4, M#4628, M#4629: the NIC behind the same switch, whatever the numbers say."""
    found = machine("eight_gpus")
    assert len(found.gpus) == 8  # not the management chip
    assert found.peer_memory == "nvidia_peermem"
    for gpu, nic in zip(found.gpus, found.nics, strict=False):
        choice = near(found, gpu.name)
        assert (choice.nics, choice.distance) == ((nic.name,), Distance.PIX)
    first = found.gpus[0]
    by_name = {nic.name: between(first, nic, found.nodes) for nic in found.nics}
    assert by_name["mlx5_1"] is Distance.PXB
    assert by_name["mlx5_2"] is Distance.NODE
    assert by_name["mlx5_8"] is Distance.NODE
    assert by_name["mlx5_4"] is Distance.SYS
    assert near(found, "cpu:0").nics == ("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3")  # not the slow one
    assert near(found, "cpu:0", "cpu:0=mlx5_8").nics == ("mlx5_8",)
    assert near(found, "cpu:1").nics == ("mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7")
    # An engine that has opened some of them only.
    some = near(found, "gpu0", allowed=("mlx5_1", "mlx5_4"))
    assert (some.nics, some.distance) == (("mlx5_1",), Distance.PXB)


def test_manual_map(machine: Callable[[str], Machine]) -> None:
    """I4."""
    found = machine("eight_gpus")
    text = "gpu0=mlx5_5,mlx5_6;cpu:1=mlx5_0;0000:22:00.0=mlx5_7;gpu2=mlx5_77"
    choice = near(found, "gpu0", text)
    assert choice.nics == ("mlx5_5", "mlx5_6")
    assert choice.reason == "by TRANSPORT_VERBS_NIC_MAP"
    assert choice.distance is Distance.SYS
    assert near(found, "cpu:1", text).nics == ("mlx5_0",)
    assert near(found, "gpu1", text).nics == ("mlx5_7",)
    missing = near(found, "gpu2", text)
    assert missing.nics == ("mlx5_2",)
    assert "mlx5_77 cannot be used" in missing.reason
    assert near(found, "gpu0", text, allowed=("mlx5_3",)).nics == ("mlx5_3",)


def test_gpus_go_by_address(
    machine: Callable[[str], Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """I4, uccl#162: what a process may see renumbers its own GPUs, not the machine's."""
    found = machine("eight_gpus")
    address = found.gpus[3].address
    for permuted in ("", "3,1", "7,6,5,4,3,2,1,0", "GPU-8f6c"):
        for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
            monkeypatch.setenv(name, permuted)
        for spelling in (address, address.upper(), f"0000{address}", address[5:]):
            choice = near(found, spelling)
            assert (choice.place.name, choice.nics) == ("gpu3", ("mlx5_3",))


def test_addresses_are_spelled_in_many_ways() -> None:
    assert pci_address("00000000:0A:00.0") == "0000:0a:00.0"
    assert pci_address("0a:00.0") == "0000:0a:00.0"
    assert pci_address("0009:01:00.0") == "0009:01:00.0"
    assert pci_address("10000:01:00.0") == "10000:01:00.0"


def test_every_device_in_its_own_domain(machine: Callable[[str], Machine]) -> None:
    """I4: GH200. NUMA is all there is; a node of GPU memory has the NICs that are nearest to it."""
    found = machine("gh200")
    for gpu, nic in zip(found.gpus, found.nics, strict=True):
        choice = near(found, gpu.name)
        assert (choice.nics, choice.distance) == ((nic.name,), Distance.NODE)
    assert near(found, "cpu:4").nics == ("mlx5_0",)


def test_nics_that_verbs_cannot_use(machine: Callable[[str], Machine]) -> None:
    """I4, torchforge#493: p5en; EFA is told, with what would be near."""
    found = machine("p5en")
    assert between(found.gpus[0], found.nics[0]) is Distance.PIX
    choice = near(found, "gpu0")
    assert choice.nics == ()
    assert choice.reason.startswith("rdmap67s0, rdmap68s0, ")
    assert choice.reason.endswith("rdmap196s0: EFA: it has no reliable connections (RC)")


def test_nothing_is_told(machine: Callable[[str], Machine]) -> None:
    """I4: a cloud guest. All NICs are used rather than the first of them."""
    found = machine("cloud_vm")
    for place in ("gpu0", "gpu1", "cpu:1"):
        choice = near(found, place)
        assert (choice.nics, choice.distance) == (("mlx5_0", "mlx5_1"), Distance.UNTOLD)
        assert "equally good" in choice.reason


def test_bond(machine: Callable[[str], Machine]) -> None:
    """A6."""
    assert near(machine("bond"), "cpu:1").nics == ("mlx5_bond_0",)


def test_software_devices_stand_where_their_interface_stands(
    machine: Callable[[str], Machine],
) -> None:
    found = machine("soft")
    assert found.nics[0].path == ("pci0000:00", "0000:00:05.0")
    assert found.nics[1].path == ()
    choice = near(found, "cpu:0")
    assert (choice.nics, choice.distance) == (("rxe0",), Distance.NODE)  # there is one node only


def test_names_that_are_not_here(machine: Callable[[str], Machine]) -> None:
    found = machine("gh200")
    for name in ("gpu9", "0000:ff:00.0", "cpu:x", ""):
        with pytest.raises(InvalidUse, match=r"there is no GPU .*gpu0 \(0009:01:00.0\)"):
            Place.parse(name, found)


def test_two_nics_with_an_amd_accelerator_and_an_integrated_screen(
    machine: Callable[[str], Machine],
) -> None:
    found = machine(
        "node 0 cpus=0 distance=10\n"
        "gpu pci0000:00/0000:00:02.0 vendor=0x8086 class=0x030000 driver=i915\n"
        "gpu pci0000:40/0000:40:01.0/0000:41:00.0 vendor=0x1002 class=0x120000 driver=amdgpu\n"
    )
    assert [(gpu.name, gpu.vendor, gpu.address) for gpu in found.gpus] == [
        ("gpu0", "AMD", "0000:41:00.0")
    ]
