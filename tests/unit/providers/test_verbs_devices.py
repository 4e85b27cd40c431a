"""Discovery through libibverbs' double and a sysfs tree of our own: what is used, what is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from fakeverbs import LIBRARY

if TYPE_CHECKING:
    from pathlib import Path

# In a process of its own: the double takes its devices from the environment when it is loaded.
_PROGRAM = """
import json
from transport.config import Settings
from transport.providers.verbs import PROVIDER, devices
settings = Settings.from_env()
rails, refused = devices.discover(devices.Request.of(settings))
viability = PROVIDER.probe(settings)
print(json.dumps({
    "rails": [[r.name, r.gid.index, str(r.gid.address), r.pkey_index, r.pkey] for r in rails],
    "refused": refused, "usable": viability.usable, "reason": viability.reason,
    "reads": [r.facts.max_reads_out for r in rails],
    "limits": [[r.facts.max_sges, r.facts.atomics, r.facts.on_demand] for r in rails],
    "offers": [[r.offer(0).prefix, r.offer(0).version, r.offer(0).numa] for r in rails],
}))
"""


def discover(knobs: str, sysfs: Path, **settings: str) -> dict[str, Any]:
    environ = {
        **os.environ,
        "FAKEVERBS": knobs,
        "TRANSPORT_VERBS_LIB": LIBRARY,
        "TRANSPORT_VERBS_SYSFS": str(sysfs),
        **{f"TRANSPORT_VERBS_{name}": value for name, value in settings.items()},
    }
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def names(found: dict[str, Any]) -> list[str]:
    return [rail[0] for rail in found["rails"]]


def attributes(sysfs: Path, device: str, port: int, *rows: tuple[str, str]) -> None:
    folder = sysfs / "class/infiniband" / device / "ports" / str(port) / "gid_attrs"
    for kind in ("types", "ndevs"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    for index, (kind, interface) in enumerate(rows):
        (folder / "types" / str(index)).write_text(kind + "\n")
        (folder / "ndevs" / str(index)).write_text(interface + "\n")


# `lo` is the interface that every namespace has.
_V1, _V2 = ("IB/RoCE v1", "lo"), ("RoCE v2", "lo")


def test_without_any_sysfs(tmp_path: Path) -> None:
    """A5, M#4304: no attribute at all; the routable row all the same."""
    found = discover("gids=8 fake0:1.gid.7=::ffff:10.1.2.3", tmp_path, GID_SUBNET="10.1.0.0/16")
    assert found["rails"] == [["fake0:1", 7, "10.1.2.3", 0, 0xFFFF]]
    assert found["usable"]


def test_the_usual_table(tmp_path: Path) -> None:
    """A1."""
    attributes(tmp_path, "fake0", 1, _V1, _V2, _V1, _V2)
    rows = "fake0:1.gid.0=fe80::7 fake0:1.gid.1=fe80::7 fake0:1.gid.2=::ffff:10.9.8.7 "
    found = discover(rows + "fake0:1.gid.3=::ffff:10.9.8.7", tmp_path)
    assert found["rails"][0][:3] == ["fake0:1", 3, "10.9.8.7"]
    assert found["offers"] == [[0, 2, -1]]


def test_version_6_only(tmp_path: Path) -> None:
    """A2, A3: unique local addresses, not index 0."""
    attributes(tmp_path, "fake0", 1, _V1, _V2, _V1, _V2)
    rows = "fake0:1.gid.0=fe80::7 fake0:1.gid.1=fe80::7 fake0:1.gid.2=fd93::7 fake0:1.gid.3=fd93::7"
    assert discover(rows, tmp_path)["rails"][0][:3] == ["fake0:1", 3, "fd93::7"]


def test_another_namespace_and_the_overrides(tmp_path: Path) -> None:
    """A4, A13, M#4304."""
    attributes(tmp_path, "fake0", 1, ("RoCE v2", "elsewhere0"), ("RoCE v2", "elsewhere1"))
    rows = "fake0:1.gid.0=::ffff:10.0.0.1 fake0:1.gid.1=fd00::1"
    found = discover(rows, tmp_path)
    assert not found["usable"]
    assert "elsewhere0, elsewhere1" in found["refused"]["fake0:1"]
    assert discover(rows, tmp_path, GID_INDEX="1")["rails"][0][1] == 1
    assert discover(rows, tmp_path, GID="10.0.0.1")["rails"][0][1] == 0
    wrong = discover(rows, tmp_path, GID="10.0.0.9")
    assert "no GID has the address 10.0.0.9" in wrong["reason"]


def test_an_empty_table_says_why(tmp_path: Path) -> None:
    """A5, A6."""
    found = discover("fake0:1.gid.0= fake0:1.gid.1=", tmp_path)
    assert "rows of the GID table are empty" in found["refused"]["fake0:1"]
    assert "network namespace" in found["reason"]


def test_devices_without_reliable_connections(tmp_path: Path) -> None:
    """torchforge#493, M#4630: named, and the others are used."""
    found = discover("devices=3 fake0.kind=2 fake0.vendor_id=0x1d0f fake1.kind=1", tmp_path)
    assert names(found) == ["fake2:1"]
    assert found["refused"]["fake0:1"].startswith("EFA: it has no reliable connections (RC)")
    assert "iWARP" in found["refused"]["fake1:1"]
    alone = discover("kind=2", tmp_path)
    assert not alone["usable"]
    assert "no reliable connections (RC)" in alone["reason"]


def test_a_driver_name_is_enough(tmp_path: Path) -> None:
    device = tmp_path / "class/infiniband/fake0/device"
    device.mkdir(parents=True)
    (device / "driver").symlink_to("/sys/bus/pci/drivers/efa")
    (device / "numa_node").write_text("1\n")
    assert discover("", tmp_path)["refused"]["fake0:1"].startswith("EFA")


def test_ports_that_are_down(tmp_path: Path) -> None:
    """M#4630: a down NIC is skipped; if all are down each is named."""
    two = discover("devices=2 fake0.ports=2 fake0:1.state=1", tmp_path)
    assert names(two) == ["fake0:2", "fake1:1"]
    assert "not active (down)" in two["refused"]["fake0:1"]
    none = discover("devices=2 state=1", tmp_path)
    assert not none["usable"]
    assert none["reason"].count("not active (down)") == 2


def test_devices_that_cannot_be_opened(tmp_path: Path) -> None:
    found = discover("devices=2 fake0.open_errno=13", tmp_path)
    assert names(found) == ["fake1:1"]
    assert "uverbs" in found["refused"]["fake0:0"]


def test_selection_by_name_and_port(tmp_path: Path) -> None:
    """I4: in the order asked for; what is not here is said."""
    knobs = "devices=3 fake1.ports=2"
    assert names(discover(knobs, tmp_path, DEVICES="fake2,fake1:2")) == ["fake2:1", "fake1:2"]
    assert names(discover(knobs, tmp_path, DEVICES="^fake1")) == ["fake0:1", "fake2:1"]
    found = discover(knobs, tmp_path, DEVICES="fake0,fake9")
    assert found["refused"] == {"fake9": "there is no such device or port"}
    assert len(names(discover(knobs, tmp_path, RAILS="2"))) == 2


def test_partition_keys_by_value(tmp_path: Path) -> None:
    knobs = "pkeys=3 fake0:1.pkey.1=0x8005 fake0:1.pkey.2=0x0007"
    assert discover(knobs, tmp_path, PKEY="0x8005")["rails"][0][3:] == [1, 0x8005]
    assert discover(knobs, tmp_path, PKEY="0x0007")["rails"][0][3:] == [2, 0x0007]
    assert "no P_Key 0x8009" in discover(knobs, tmp_path, PKEY="0x8009")["reason"]


def test_infiniband_without_gids(tmp_path: Path) -> None:
    """M#4304: reached by LID."""
    found = discover("link_layer=1 lid=5 fake0:1.gid.0= fake0:1.gid.1=", tmp_path)
    assert found["rails"][0][:3] == ["fake0:1", 0, "::"]


def test_whole_device_facts(tmp_path: Path) -> None:
    """M#4342, B17: what a device cannot do is known before it is asked."""
    knobs = "max_qp_init_rd_atom=0 max_sge=7 atomic_cap=0 odp_caps=3"
    found = discover(knobs, tmp_path)
    assert found["reads"] == [0]
    assert found["limits"] == [[7, 0, 3]]
