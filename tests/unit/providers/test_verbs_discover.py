"""Devices as libibverbs and sysfs tell of them together: the double, with trees to go with it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from fakeverbs import LIBRARY, Device, Double, Gid, Port, environment, write_sysfs

from transport.providers.verbs.devices import Rail, Request, discover
from transport.testing.processes import run_program

if TYPE_CHECKING:
    from pathlib import Path


def find(
    double: Double, root: Path, devices: list[Device], **request: object
) -> tuple[list[Rail], dict[str, str]]:
    double.configure(devices)
    return discover(
        Request(library=LIBRARY, sysfs=write_sysfs(root, devices), **request)  # type: ignore[arg-type]
    )


def roce(*gids: Gid, **knobs: int) -> Port:
    return Port(gids=dict(enumerate(gids)), knobs=knobs)


def gid(address: str, kind: str = "RoCE v2", interface: str = "lo") -> Gid:
    return Gid(address, kind, interface)


def test_a_private_ipv4_gid_is_no_overlay(double: Double, tmp_path: Path) -> None:
    """A1: link-local rows were preferred to 10/8."""
    v1 = "IB/RoCE v1"
    table = roce(gid("fe80::1", v1), gid("fe80::1"), gid("10.1.2.3", v1), gid("10.1.2.3"))
    rails, _ = find(double, tmp_path, [Device("mlx5_0", (table,))])
    assert [rail.gid.index for rail in rails] == [3]


def test_only_ipv6_rows(double: Double, tmp_path: Path) -> None:
    """A2, A3: an address family must not be required."""
    table = roce(gid("fe80::9"), gid("fd93::9", "IB/RoCE v1"), gid("fd93::9"))
    rails, _ = find(double, tmp_path, [Device("ionic_0", (table,))])
    assert rails[0].gid.index == 2


def test_rows_of_another_namespace(double: Double, tmp_path: Path) -> None:
    """A4: the row's interface is not here."""
    table = roce(gid("10.1.0.1", interface="no_such_if"), gid("fd93::9"))
    rails, _ = find(double, tmp_path, [Device("mlx5_0", (table,))])
    assert rails[0].gid.index == 1


def test_an_empty_table_is_named(double: Double, tmp_path: Path) -> None:
    """A5: all GIDs are zero in a container."""
    rails, refused = find(double, tmp_path, [Device("mlx5_0", (Port(gids={}),))])
    assert not rails
    assert "empty" in refused["mlx5_0:1"]


def test_what_cannot_be_used_is_named(double: Double, tmp_path: Path) -> None:
    """No RC on EFA, the connection manager for iWARP, ports that are down: none is an error."""
    devices = [
        Device("efa_0", kind=2, driver="efa"),
        Device("chelsio_0", kind=1, driver="iw_cxgb4"),
        Device("mlx5_0", (Port(state=1), Port())),
        Device("mlx5_1", knobs={"open_errno": 13}),
    ]
    rails, refused = find(double, tmp_path, devices)
    assert [rail.name for rail in rails] == ["mlx5_0:2"]
    assert "RC" in refused["efa_0:1"]
    assert "iWARP" in refused["chelsio_0:1"]
    assert "down" in refused["mlx5_0:1"]
    assert "opened" in refused["mlx5_1:0"]
    assert len(refused) == 4


def test_facts_come_from_both(double: Double, tmp_path: Path) -> None:
    limits = {"max_mr_size": 1 << 20, "max_qp_rd_atom": 1, "atomic_cap": 0}
    port = Port(ethernet=False, rate=400, knobs={"active_mtu": 5, "lid": 0x17})
    rails, _ = find(double, tmp_path, [Device("ib_7", (port,), numa=1, knobs=limits)])
    facts = rails[0].facts
    assert (facts.device, facts.ethernet, facts.lid, facts.active_mtu) == ("ib_7", False, 23, 4096)
    assert (facts.rate, facts.numa, facts.driver) == (50, 1, "mlx5_core")
    assert (facts.max_region, facts.max_reads_in, facts.atomics) == (1 << 20, 1, 0)


@pytest.mark.parametrize("wanted", [None, 0x8002, 0x0002])
def test_keys(double: Double, tmp_path: Path, wanted: int | None) -> None:
    devices = [Device("mlx5_0", (Port(knobs={"pkeys": 3}),))]
    double.configure(devices)
    double.put("fake0:1.pkey.2", "0x8002")
    rails, _ = discover(Request(library=LIBRARY, sysfs=tmp_path, pkey=wanted))
    expected = (0, 0xFFFF) if wanted is None else (2, 0x8002)
    assert (rails[0].pkey_index, rails[0].pkey) == expected


def test_without_sysfs(double: Double, tmp_path: Path) -> None:
    """K5: nothing is there to read."""
    double.configure([Device("mlx5_0")])
    rails, refused = discover(Request(library=LIBRARY, sysfs=tmp_path / "none"))
    assert rails[0].gid.address.packed[:2] == bytes((10, 9))
    assert not refused


def test_a_machine_without_rdma(double: Double, tmp_path: Path) -> None:
    """K4: the library is there, the kernel's part is not."""
    double.put("devices", -1)
    assert discover(Request(library=LIBRARY, sysfs=tmp_path)) == ([], {})


def test_another_process_is_told_by_its_environment(tmp_path: Path) -> None:
    devices = [Device("mlx5_0"), Device("mlx5_1", (roce(gid("fd93::5")),))]
    code = f"""
import os
os.environ.update({environment(devices)!r})
from pathlib import Path
from transport.providers.verbs.devices import Request, discover
rails, _ = discover(Request(library={LIBRARY!r}, sysfs=Path({os.fspath(tmp_path)!r})))
print(*[f"{{rail.name}}/{{rail.gid.address}}" for rail in rails])
"""
    status, out, errors = run_program(code)
    assert status == 0, errors
    assert out.split()[1] == "mlx5_1:1/fd93::5"
