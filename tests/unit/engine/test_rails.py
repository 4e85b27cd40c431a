"""Engine.rails over the double of libibverbs: what a rail is, does and has done."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np
import pytest
from fakeverbs import LIBRARY, Device, Double, Gid, Port, write_sysfs
from patience import until

from transport import Engine, Rail
from transport.config import Settings
from transport.errors import InvalidUse, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WAIT = 60.0


@contextlib.contextmanager
def engine(root: Path, *devices: str) -> Iterator[Engine]:
    made = Settings.from_env(verbs_lib=LIBRARY, verbs_sysfs=root, verbs_devices=devices)
    options = {"secret": "a secret of this test only", "listen": "127.0.0.1:0"}
    with Engine(providers=("verbs", "tcp"), settings=made, **options) as opened:
        yield opened


@pytest.fixture
def root(double: Double, tmp_path: Path) -> Path:
    devices = [
        Device(f"mlx5_{n}", (Port(gids={3: Gid(f"10.9.{n}.1")}, rate=200),), numa=n)
        for n in range(2)
    ]
    double.configure(devices)
    write_sysfs(tmp_path, devices)
    path = tmp_path / "devices" / "pci0000:5d" / "0000:5d:00.0"
    path.mkdir(parents=True)
    device = tmp_path / "class" / "infiniband" / "mlx5_1" / "device"
    (device / "numa_node").rename(path / "numa_node")
    (device / "driver").rename(path / "driver")
    device.rmdir()
    device.symlink_to(path)
    return tmp_path


def test_what_they_are(root: Path) -> None:
    with engine(root) as opened:
        first, second = opened.rails()
        assert (first.number, first.name, first.device, first.port) == (0, "mlx5_0:1", "mlx5_0", 1)
        assert (first.link_layer, first.speed, first.mtu) == ("Ethernet", 25.0, 1024)
        assert (first.gid_index, first.gid, first.gid_kind) == (3, "10.9.0.1", "RoCE v2")
        assert (first.numa, first.pci) == (0, "")
        assert (second.number, second.numa, second.pci) == (1, 1, "0000:5d:00.0")
        for rail in (first, second):
            assert (rail.state, rail.reason) == ("up", "")
            assert not any((rail.operations, rail.bytes, rail.retries, rail.errors))
            assert (rail.queue_pairs, rail.in_flight) == (0, 0)
    with pytest.raises(InvalidUse, match="closed"):
        opened.rails()


def test_what_they_do_outlives_the_peer(root: Path) -> None:
    source, target = np.ones(1 << 16, np.uint8), np.zeros(1 << 16, np.uint8)
    with engine(root, "mlx5_0") as near:
        with engine(root, "mlx5_0") as far, far.register(target) as region:
            near.write(source, region.remote()).wait(WAIT)
            (rail,) = near.rails()
            assert (rail.queue_pairs, rail.in_flight, rail.bytes) == (1, 0, 1 << 16)
            assert near.peers[0].lanes()[0].rail == rail.number
            done = rail.operations
            assert done > 0
        until(lambda: near.rails()[0].queue_pairs == 0)
        (rail,) = near.rails()
        assert (rail.operations, rail.bytes) == (done, 1 << 16)


def test_down_and_why(double: Double, root: Path) -> None:
    def second(opened: Engine) -> Rail:
        return opened.rails()[1]

    with engine(root) as opened:
        double.put("fake1:1.state", 1)
        until(lambda: second(opened).state == "down")
        assert second(opened).reason == "mlx5_1 port 1 went down"
        assert opened.rails()[0].state == "up"
        double.put("fake1:1.state", 4)
        until(lambda: second(opened).state == "up")
        assert second(opened).reason == ""


def test_there_are_none_without_verbs() -> None:
    with Engine(providers="tcp", secret="a secret of this test only") as opened:
        assert opened.rails() == []


def test_a_peer_without_atomics_is_known_by_its_offer(double: Double, root: Path) -> None:
    """Refused before anything is sent, naming its device; the queue pair stays."""
    double.put("fake1.atomic_cap", 0)
    word, source = np.zeros(1, np.int64), np.ones(1, np.int64)
    with engine(root, "mlx5_0") as near, engine(root, "mlx5_1") as far:
        with far.register(word) as region:
            remote = region.remote()
            assert near.write(source, remote).wait(WAIT).provider == "verbs"
            sent = double.get("requests")
            with pytest.raises(Unavailable, match="the peer's mlx5_1:1 has no atomic operations"):
                near.fetch_add(remote, 1).wait(WAIT)
            assert double.get("requests") == sent
            assert near.read(remote, source).wait(WAIT).provider == "verbs"
            (lane,) = near.peers[0].lanes()
            assert (lane.state, lane.reconnects, lane.reason) == ("ready", 0, "")
        with near.register(word) as region:
            refused = far.fetch_add(region.remote(), 1)
            with pytest.raises(Unavailable, match="mlx5_1 here has no atomic operations"):
                refused.wait(WAIT)


def test_no_path_says_why_verbs_is_not_there(root: Path) -> None:
    """In the error itself, on either side; not only in `explain`."""
    word = np.zeros(1, np.int64)
    with engine(root, "mlx5_0") as near, engine(root, "none_0") as far:
        with far.register(word) as region:
            refused = near.fetch_add(region.remote(), 1)
            with pytest.raises(Unavailable, match=r"the peer says: .*there is no such device"):
                refused.wait(WAIT)
        with near.register(word) as region:
            refused = far.fetch_add(region.remote(), 1)
            with pytest.raises(Unavailable, match=r"it has no verbs: .*there is no such device"):
                refused.wait(WAIT)
