"""Ports and GID rows as sysfs and the interfaces tell of them: missing files are the usual case."""

from __future__ import annotations

import errno
import ipaddress
from pathlib import Path

import pytest

from transport.errors import Unavailable
from transport.providers.verbs import devices
from transport.providers.verbs.devices import Request, UsablePort, check_port, choose_gid
from transport.providers.verbs.gid import Gid, Kind, Place, Wish, choose
from transport.providers.verbs.ports import Port, described
from transport.topology import network
from transport.topology.network import Network

EMPTY = bytes(16)
# Reading it gives EINVAL, as an attribute of a row without an interface does.
_EINVAL = Path("/sys/class/net/lo/speed")


def raw(address: str) -> bytes:
    value = ipaddress.ip_address(address)
    return value.packed if value.version == 6 else ipaddress.IPv6Address(f"::ffff:{value}").packed


def net(*held: str, names: str = "lo eth0 eth1") -> Network:
    """`held` like "eth0 10.0.0.5/24"."""
    addresses = {}
    for entry in held:
        name, text = entry.split()
        interface = ipaddress.ip_interface(text)
        addresses[interface.ip] = interface.network.prefixlen, name
    return Network(frozenset(names.split()), addresses)


def attributes(tmp_path: Path, **rows: tuple[str, str]) -> Path:
    """gid_attrs, by index: what types and ndevs hold; a file that is "EINVAL" cannot be read."""
    for folder in ("types", "ndevs"):
        (tmp_path / folder).mkdir()
    for index, contents in rows.items():
        for folder, text in zip(("types", "ndevs"), contents, strict=True):
            file = tmp_path / folder / index.removeprefix("row")
            if text == "EINVAL":
                file.symlink_to(_EINVAL)
            else:
                file.write_text(text + "\n")
    return tmp_path


@pytest.fixture
def unreadable() -> None:
    try:
        _EINVAL.read_text()
    except OSError as error:
        if error.errno == errno.EINVAL:
            return
    pytest.skip("einval: no sysfs file here that refuses to be read")


def test_a_table_with_all_attributes(tmp_path: Path) -> None:
    """A1 from the table to the choice: fe80 v1, fe80 v2, 10.x v1, 10.x v2 -> index 3."""
    values = [raw("fe80::1"), raw("fe80::1"), raw("10.0.0.5"), raw("10.0.0.5"), EMPTY]
    v1, v2 = ("IB/RoCE v1", "eth0"), ("RoCE v2", "eth0")
    folder = attributes(tmp_path, row0=v1, row1=v2, row2=v1, row3=v2)
    rows = described(values, folder, net("eth0 10.0.0.5/24"))
    assert [row.kind for row in rows] == [Kind.V1, Kind.V2] * 2
    found = choose(rows)
    assert (found.index, found.interface, found.prefix) == (3, "eth0", 120)


def test_attributes_are_missing(tmp_path: Path) -> None:
    """A5: no gid_attrs at all. The address on an interface here tells which row is ours."""
    values = [raw("fe80::9"), raw("fe80::9"), raw("10.0.0.5"), raw("10.0.0.5"), raw("10.7.0.1")]
    rows = described(values, tmp_path / "absent", net("eth1 10.0.0.5/16"))
    assert [row.place for row in rows[2:]] == [Place.HERE, Place.HERE, Place.UNTOLD]
    assert choose(rows).index == 3
    assert choose(described(values, tmp_path / "absent", Network())).index == 3


@pytest.mark.usefixtures("unreadable")
def test_attributes_that_cannot_be_read(tmp_path: Path) -> None:
    """A5: EINVAL for rows whose interface is in another namespace; ours is known by its address."""
    refused = ("EINVAL", "EINVAL")
    folder = attributes(tmp_path, row0=refused, row1=refused, row2=("RoCE v2", "eth0"))
    values = [raw("10.0.0.5"), raw("10.7.0.1"), raw("fd00::5")]
    rows = described(values, folder, net("eth0 10.0.0.5/24"))
    assert [row.place for row in rows] == [Place.HERE, Place.ELSEWHERE, Place.HERE]
    rows = described(values[1:2] * 2, folder, net("eth0 10.0.0.5/24"))
    with pytest.raises(Unavailable, match=r"this namespace does not have"):
        choose([row for row in rows if row.place is Place.ELSEWHERE])


def test_an_interface_that_is_not_here(tmp_path: Path) -> None:
    """A4: containers and macvlan; the first match is another's."""
    folder = attributes(tmp_path, row0=("RoCE v2", "host0"), row1=("RoCE v2", "eth0"))
    rows = described([raw("10.0.0.4"), raw("10.0.0.5")], folder, net())
    assert choose(rows).index == 1


def test_a_bond(tmp_path: Path) -> None:
    """A6: the bond's interface carries the addresses; its members' tables are empty."""
    folder = attributes(tmp_path, row0=("RoCE v2", "bond0"), row1=("RoCE v2", "bond0"))
    here = net("bond0 10.3.0.5/24", names="lo eth0 eth1 bond0")
    rows = described([raw("fe80::5"), raw("10.3.0.5")], folder, here)
    assert choose(rows).index == 1
    with pytest.raises(Unavailable, match=r"all 2 rows .* are empty.*bond"):
        choose([Gid(0, EMPTY), Gid(1, EMPTY)])


def test_overlays_are_known_by_their_interfaces(tmp_path: Path) -> None:
    """A1: never by private ranges as such."""
    here = net(
        "eth0 10.244.3.5/16",
        "cni0 10.42.0.1/24",
        "docker0 172.18.0.1/16",
        names="lo eth0 cni0 docker0",
    )
    values = [raw("10.42.0.1"), raw("10.42.0.9"), raw("172.18.0.1"), raw("10.244.3.5")]
    rows = described(values, tmp_path / "absent", here)
    assert [row.overlay for row in rows] == [True, True, True, False]
    assert choose(rows).index == 3
    assert described([raw("172.17.0.1")], tmp_path / "absent", Network())[0].overlay


def test_interfaces_of_this_host() -> None:
    here = network.here()
    assert here.names is not None
    assert "lo" in here.names
    loopback = ipaddress.ip_address("127.0.0.1")
    assert (here.prefix(loopback), here.interface(loopback)) == (8, "lo")


PORT = Port("mlx5_0", 1, state=4, ethernet=True, active_mtu=4096, rate=50.0)


@pytest.mark.parametrize(
    ("port", "reason"),
    [
        (Port("efa_0", 1, 4, unusable="EFA: it has no reliable connections (RC)"), "EFA.*RC"),
        (Port("mlx5_0", 0), "cannot be opened.*uverbs"),
        (Port("mlx5_0", 1, 1), r"not active \(down\).*cable"),
        (Port("mlx5_0", 1, 9), r"not active \(state 9\)"),
    ],
)
def test_ports_that_cannot_be_used(port: Port, reason: str) -> None:
    """M#4630, torchforge#493: named with the reason before any queue pair is asked for."""
    with pytest.raises(Unavailable, match=reason):
        check_port(port)


def test_infiniband_without_gids_is_reached_by_lid() -> None:
    """M#4304: an InfiniBand port whose table cannot be seen."""
    port = Port("mlx5_0", 1, state=4, lid=7)
    assert choose_gid(port, [Gid(0, EMPTY)], Wish()).empty
    with pytest.raises(Unavailable, match="GID index 3"):
        choose_gid(port, [Gid(0, EMPTY)], Wish(index=3))
    with pytest.raises(Unavailable, match="empty"):
        choose_gid(PORT, [Gid(0, EMPTY)], Wish())


def test_pkeys_by_value() -> None:
    table = {0: 0xFFFF, 1: 0x7FFF, 3: 0x8001, 4: 0x0001}
    assert devices._pkey(table, None) == (0, 0xFFFF)
    assert devices._pkey(table, 0x8001) == (3, 0x8001)
    assert devices._pkey(table, 0x0001) == (4, 0x0001)
    assert devices._pkey({2: 0x8001}, 0x0001) == (2, 0x8001)  # a full member serves both
    assert devices._pkey({}, None) == (0, 0xFFFF)
    for wanted in (0x8002, 0x7001):
        with pytest.raises(Unavailable, match=r"no P_Key 0x.*0xffff, 0x7fff, 0x8001"):
            devices._pkey(table, wanted)
    with pytest.raises(Unavailable):  # a limited member is not what was asked for
        devices._pkey({2: 0x0001}, 0x8001)


def test_which_devices_are_asked_for() -> None:
    first, second = Port("mlx5_0", 1), Port("mlx5_0", 2)
    other = Port("mlx5_1", 1)
    assert [Request().place(p) for p in (first, second, other)] == [0, 0, 0]
    asked = Request(devices=("mlx5_1", "mlx5_0:2"))
    assert [asked.place(p) for p in (first, second, other)] == [None, 1, 0]
    without = Request(devices=("^mlx5_0:1", "^mlx5_1"))
    assert [without.place(p) for p in (first, second, other)] == [None, 0, None]
    both = Request(devices=("mlx5_0", "^mlx5_0:2"))
    assert [both.place(p) for p in (first, second, other)] == [0, None, None]


def test_slow_ports_are_left_out_unless_named() -> None:
    gid = Gid(0, raw("10.0.0.5"))
    fast, slow = UsablePort(PORT, gid), UsablePort(Port("bnxt_0", 1, 4, rate=1.25), gid)
    untold = UsablePort(Port("rxe0", 1, 4), gid)
    refused: dict[str, str] = {}
    assert devices._cut([fast, slow, untold], Request(), refused) == [fast, untold]
    assert "slower than half" in refused["bnxt_0:1"]
    assert devices._cut([fast, slow], Request(devices=("mlx5_0", "bnxt_0")), {}) == [fast, slow]
    assert devices._cut([fast, untold], Request(limit=1), refused) == [fast]
    assert "VERBS_RAILS" in refused["rxe0:1"]
