"""Machines that a test describes (fakeverbs.py) are found as described: the double and sysfs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fakeverbs import LIBRARY, Device, Double, Gid, Port, environment, write_sysfs

from transport.providers.verbs.devices import Request, UsablePort, discover
from transport.testing.processes import run_program

if TYPE_CHECKING:
    from pathlib import Path


def find(
    double: Double, root: Path, devices: list[Device], **request: object
) -> tuple[list[UsablePort], dict[str, str]]:
    double.configure(devices)
    return discover(
        Request(library=LIBRARY, sysfs=write_sysfs(root, devices), **request)  # type: ignore[arg-type]
    )


def roce(*gids: Gid, **knobs: int) -> Port:
    return Port(gids=dict(enumerate(gids)), knobs=knobs)


def gid(address: str, kind: str = "RoCE v2", interface: str = "lo") -> Gid:
    return Gid(address, kind, interface)


def test_rows_of_another_namespace(double: Double, tmp_path: Path) -> None:
    """A4: the row's interface is not here."""
    table = roce(gid("10.1.0.1", interface="no_such_if"), gid("fd93::9"))
    rails, _ = find(double, tmp_path, [Device("mlx5_0", (table,))])
    assert rails[0].gid.index == 1


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
