"""Faults that users of such systems reported: sockets, machines without hardware, idle engines."""

from __future__ import annotations

import time
from pathlib import Path

import hostile_peer as hostile
import numpy as np
import pytest
from hostile_peer import frame

from transport import Engine, Settings
from transport.memory.remote import NATIVE
from transport.testing.processes import PeerProcess, run_program
from transport.testing.servant import pattern

WAIT = 60.0
SECRET = "a secret for reported faults"
WAYS = {"shm": {}, "tcp": {"providers": "tcp", "listen": "127.0.0.1:0"}}


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_write_that_is_complete_is_there(way, pool):
    """K1: the target looks the moment after, 1000 times; nothing is still on its way."""
    nbytes = 40_000
    with PeerProcess() as far, Engine(**WAYS[way]) as engine:
        far.call("open", **WAYS[way])
        remote = far.call("make", "x", nbytes, pool=pool)
        rng = np.random.default_rng(1)
        for number in range(1000):
            size = int(rng.integers(1, nbytes))
            source = np.full(size, number % 256, np.uint8)
            engine.write(source, remote[nbytes - size :]).wait(WAIT)
            assert far.call("run", _LOOKS, size=size) == [number % 256]


_LOOKS = "result = sorted(set(servant.arrays['x'][-size:].tobytes()))"


@pytest.mark.parametrize("unix", [True, False], ids=["unix", "tcp"])
def test_a_peer_that_hangs_up_at_any_byte_of_a_frame(unix):
    """K2: the target goes on; what came of a write stays within its range."""
    with PeerProcess() as far, Engine(secret=SECRET) as good:
        far.call("open", secret=SECRET, listen="127.0.0.1:0")
        remote = far.call("make", "x", 1000, seed=1)
        place = next(a for a in remote.addresses if a.startswith("unix:") == unix)
        number, generation, key, *_ = NATIVE.unpack(remote._owner.native)
        right = {"region": number, "generation": generation, "key": key}
        write = frame(hostile.WRITE, b"w" * 32, offset=100, **right)
        read = frame(hostile.READ, length=500, **right)
        for whole in (write, read, frame(hostile.NOTIFY, b"n" * 8), read + write):
            for cut in range(0, len(whole) + 1, 1 if whole is write else 7):
                with hostile.connect(place, SECRET) as link:
                    link.sendall(whole[:cut])
        into = bytearray(1000)
        good.read(remote, into).wait(WAIT)
        truth = pattern(1, 1000).tobytes()
        assert (bytes(into[:100]), bytes(into[132:])) == (truth[:100], truth[132:])
        assert far.call("run", "result = len(servant.engine.peers)") >= 1


def test_a_target_that_hangs_up_at_any_moment():
    """K2, from the other side: what was asked of it fails as PeerLost, and the next one works."""
    with Engine(providers="tcp") as engine:
        for number in range(12):
            with PeerProcess() as far:
                far.call("open", **WAYS["tcp"])
                remote = far.call("make", "x", 3_000_000, seed=number)
                engine.read(remote[:1], bytearray(1)).wait(WAIT)
                transfers = [engine.read(remote, bytearray(3_000_000)) for _ in range(5)]
                time.sleep(0.0004 * number)
                far.kill()
                for transfer in transfers:
                    assert transfer.wait_quiet(WAIT)
                    assert transfer.status in ("ok", "peer_lost")


def test_a_verbs_library_without_a_kernel_module(fakes):
    """K4: no devices, not a crash: ibv_get_device_list answers NULL and ENOSYS."""
    status, out, err = run_program(_NO_MODULE, str(fakes / "fakeverbs.so"))
    assert (status, err) == (0, "")
    assert out.splitlines()[:2] == ["shm tcp staged", "moved"]
    assert "verbs: not used: no RDMA devices" in out


_NO_MODULE = """
import os, sys
os.environ["FAKEVERBS"] = "devices=-1"
import transport
settings = transport.Settings.from_env(verbs_lib=sys.argv[1])
with transport.Engine(settings=settings) as one, transport.Engine(settings=settings) as other:
    print(*one.providers)
    with one.register(bytearray(b"abc")) as region:
        into = bytearray(3)
        other.read(region.remote(), into).wait(60)
        print("moved" if into == b"abc" else into)
    print(*other.peers[0].explain(), sep="\\n")
"""


def test_importing_asks_the_machine_nothing():
    """K5: no sysfs, no library, no socket, no thread, before there is an engine."""
    status, out, err = run_program(_IMPORT)
    assert (status, out.split(), err) == (0, ["[]", "1"], "")


_IMPORT = """
import sys, threading
seen = []
def audit(event, arguments):
    path = str(arguments[0]) if arguments else ""
    foreign = path.startswith(("/sys", "/dev")) or "libibverbs" in path or "libcuda" in path
    if event in ("open", "os.listdir", "os.scandir", "ctypes.dlopen") and foreign:
        seen.append((event, path))
    if event.startswith("socket.") or event == "subprocess.Popen":
        seen.append((event, path))
sys.addaudithook(audit)
import transport
for name in transport.__all__:
    getattr(transport, name)
maps = open("/proc/self/maps").read()
seen += [name for name in ("libibverbs", "libcuda", "libamdhip") if name in maps]
print(seen, threading.active_count(), sep="\\n")
"""


def test_an_engine_without_sysfs_and_libraries(tmp_path):
    """K5"""
    settings = Settings.from_env(
        verbs_sysfs=tmp_path / "nothing", verbs_lib=str(tmp_path / "libibverbs.so.1")
    )
    with PeerProcess() as far, Engine(settings=settings) as engine:
        far.call("open", settings=settings)
        remote = far.call("make", "x", 1000, seed=1)
        into = bytearray(1000)
        engine.read(remote, into).wait(WAIT)
        assert bytes(into) == pattern(1, 1000).tobytes()
        assert any("libibverbs.so.1 not found" in line for line in engine.peers[0].explain())


@pytest.mark.parametrize(
    ("listen", "table", "host"),
    [
        ("127.0.0.1:0", "tcp", "0100007F"),
        ("127.0.0.2:0", "tcp", "0200007F"),
        ("[::1]:0", "tcp6", "00000000000000000000000001000000"),
    ],
)
def test_what_is_bound_is_what_was_asked_for(listen, table, host):
    """K6: one socket listens, there and nowhere else; and by default none does."""
    before = _listening()
    with Engine() as quiet:
        assert quiet.addresses
        assert _listening() == before
    with Engine(listen=listen, providers="tcp") as engine:
        new = _listening() - before
        place = next(a for a in engine.addresses if not a.startswith("unix:"))
        port = int(place.rpartition(":")[2])
        assert new == {(table, f"{host}:{port:04X}")}
        assert place.rpartition(":")[0] == listen.rpartition(":")[0]


def _listening():
    """The TCP sockets of this process that listen: table and local address as the kernel has it."""
    inodes = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            inodes.add(str(entry.readlink()))
        except FileNotFoundError:
            continue
    found = set()
    for table in ("tcp", "tcp6"):
        for row in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = row.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                found.add((table, fields[1]))
    return found


@pytest.mark.slow
def test_idle_engines_sleep():
    """K8: with peers connected, nobody polls: the threads of this process hardly ever wake up.

    What that costs in CPU time is measured by benchmarks/micro/idle_cpu.py.
    """
    peers, seconds = 4, 2.0
    with Engine() as engine:
        others = [Engine() for _ in range(peers)]
        for other in others:
            other.connect(engine.addresses[0])
        time.sleep(0.5)
        before = _wakes()
        time.sleep(seconds)
        wakes = (_wakes() - before) / seconds
        for other in others:
            other.close()
    assert wakes < 60 * (peers + 1), f"{wakes:g} in a second"


def _wakes():
    """How often the threads of this process have slept, all together."""
    total = 0
    for task in Path("/proc/self/task").iterdir():
        for line in (task / "status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                total += int(line.split()[1])
    return total


@pytest.mark.parametrize(
    ("near", "far", "said"),
    [
        (
            {},
            {"providers": "tcp", "listen": "127.0.0.1:0"},
            "shm: only its stream: the peer says: providers= or",
        ),
        ({"providers": "tcp"}, {"listen": "127.0.0.1:0"}, "shm: not used: providers= or"),
        ({}, {}, "verbs: not used: "),
        ({}, {}, "tcp: not used: not for unix links"),
    ],
)
def test_the_report_says_why_each_faster_path_is_not_taken(near, far, said):
    """K9"""
    with PeerProcess() as process, Engine(**near) as engine:
        process.call("open", **far)
        remote = process.call("make", "x", 1000)
        engine.read(remote, bytearray(1000)).wait(WAIT)
        report = engine.peers[0].explain(remote)
        assert any(said in line for line in report), report
        refused = [line.partition(": not used: ") for line in report if "not used" in line]
        assert all(name and why for name, _, why in refused), report
