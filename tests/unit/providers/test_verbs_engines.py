"""A port's GID table changes under an engine (A8): by value first, then by a new choice."""

from __future__ import annotations

import ipaddress
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from fakeverbs import LIBRARY

from transport.providers.verbs.devices import _kept
from transport.providers.verbs.gid import Gid, Kind, Place

if TYPE_CHECKING:
    from pathlib import Path

# Two engines over one port of the double; what used the row that goes away is lost with it.
_PROGRAM = """
import ctypes, json, logging, os, sys
import transport
from transport.config import Settings
double = ctypes.CDLL(os.environ["TRANSPORT_VERBS_LIB"])
change = lambda name, text: double.fakeverbs_set(name.encode(), text.encode())
options = dict(providers=("verbs", "tcp"), secret="a secret of this test run only",
               listen="127.0.0.1:0")
rows = []
def look(near, far, source):
    endpoint = near._core._endpoints["verbs"]
    rail = endpoint.rails[0]
    moved = transport_of(near, far, source)
    rows.append([rail.gid.index, str(rail.gid.address), str(endpoint.offer.rails[0].gid), moved])
def transport_of(near, far, source):
    target = bytearray(len(source))
    with far.register(target) as region:
        done = near.write(source, region.remote()).wait(60)
        assert target == source
    return done.provider
def event():
    for engine in (near, far):
        engine._core._on_provider_changed(1)
with transport.Engine(**options) as near, transport.Engine(**options) as far:
    look(near, far, b"a" * 100000)
    change("fake0:1.gid.3", "::ffff:10.9.0.1")  # the same value further down, then only there
    change("fake0:1.gid.1", "")
    event()
with transport.Engine(**options) as near, transport.Engine(**options) as far:
    look(near, far, b"b" * 100000)
    change("fake0:1.gid.2", "fd00::77")
    change("fake0:1.gid.3", "")
    event()
    endpoint = near._core._endpoints["verbs"]
    rows.append([endpoint.rails[0].gid.index, str(endpoint.rails[0].gid.address)])
    change("fake0:1.gid.0", "")  # the less wanted first: the engine may look in between
    change("fake0:1.gid.2", "")
    event()  # nothing is left: the old one is kept, nothing raises
    rows.append([endpoint.rails[0].gid.index])
print(json.dumps(rows))
"""


def test_by_value_then_by_choice(tmp_path: Path) -> None:
    environ = {
        **os.environ,
        "FAKEVERBS": "gids=4 fake0:1.gid.1=::ffff:10.9.0.1",
        "TRANSPORT_VERBS_LIB": LIBRARY,
        "TRANSPORT_VERBS_SYSFS": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    first, second, third, last = json.loads(done.stdout)
    assert (first[0], first[1], first[3]) == (1, "10.9.0.1", "verbs")
    assert (second[0], second[1], second[3]) == (3, "10.9.0.1", "verbs")
    assert third == [2, "fd00::77"]
    assert last == [2]
    assert "keeps GID 2 fd00::77" in done.stderr


_WRITES_ONLY = """
import transport
options = dict(providers=("verbs", "tcp"), secret="a secret of this test run only",
               listen="127.0.0.1:0")
with transport.Engine(**options) as near, transport.Engine(**options) as far:
    target = bytearray(5000)
    with far.register(target) as region:
        there = near.write(b"w" * 5000, region.remote()).wait(60)
        back = near.read(region.remote(), bytearray(5000)).wait(60)
        print(there.provider, back.provider)
        print("; ".join(near.peers[0].explain(region.remote())))
        try:
            near.read(region.remote(), bytearray(5000), provider="verbs").wait(60)
        except transport.TransportError as error:
            print(error)
"""


def test_a_device_without_reads_writes_and_says_why(tmp_path: Path) -> None:
    """M#4342: refused with the reason, and carried by another provider."""
    environ = {
        **os.environ,
        "FAKEVERBS": "max_qp_init_rd_atom=0",
        "TRANSPORT_VERBS_LIB": LIBRARY,
        "TRANSPORT_VERBS_SYSFS": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", _WRITES_ONLY],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("verbs tcp\n")
    assert "no part in RDMA reads" in done.stdout


def test_the_same_value_is_kept() -> None:
    raw = ipaddress.IPv6Address("::ffff:10.0.0.5").packed
    old = Gid(3, raw, Kind.V2, "eth0")
    moved = [Gid(4, raw, Kind.V1), Gid(5, raw, Kind.V2)]
    assert _kept(old, moved) == moved[1]
    assert _kept(old, [Gid(5, raw, Kind.V2, place=Place.ELSEWHERE)]) is None
    assert _kept(old, [Gid(3, raw, Kind.V1)]) is None
    untold = [Gid(2, raw), Gid(3, raw)]
    assert _kept(Gid(2, raw), untold) == untold[0]
    assert _kept(Gid(9, raw), untold) == untold[1]
    assert _kept(old, []) is None
