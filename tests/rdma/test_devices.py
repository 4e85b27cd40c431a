"""Devices of the guest: found, shown by the commands, and adopted from pyverbs."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import rig
from capabilities import require
from verbs_ways import TWO_HOSTS

from transport.config import Settings
from transport.engine.engine import Engine
from transport.errors import InvalidUse
from transport.providers.verbs import devices
from transport.testing.contract import FarSide
from transport.testing.servant import pattern

pytestmark = pytest.mark.usefixtures("on_b")

MIB = 1 << 20
_COMMAND = (sys.executable, "-m", "transport")


@pytest.fixture
def pyverbs():
    """Debian's, which another CPython of the same minor version can load too."""
    folder = "/usr/lib/python3/dist-packages"
    sys.path.append(folder)
    try:
        import pyverbs.device

        return pyverbs.device
    except ImportError as error:
        require("pyverbs", f"apt-get install python3-pyverbs ({error})")
    finally:
        sys.path.remove(folder)


def test_the_rail_of_this_host():
    rails, refused = devices.discover(devices.Request.of(Settings.from_env()))
    assert [rail.name for rail in rails] == ["rxe_b:1"]
    assert refused == {}
    (rail,) = rails
    assert str(rail.gid.address) == rig.ADDRESSES["b"]
    assert (rail.gid.version, rail.gid.interface, rail.gid.describe()) == (2, "vb", "IPv4")
    assert rail.gid.prefix == 96 + 24
    assert (rail.pkey_index, rail.pkey) == (0, 0xFFFF)
    facts = rail.facts
    assert (facts.ethernet, facts.unusable, facts.active_mtu) == (True, "", 4096)
    assert facts.max_sges >= 16
    assert facts.atomics == 1
    assert facts.on_demand & 1  # rxe pages on demand
    assert facts.max_reads_out > 0


def test_gid_overrides():
    """M#4304."""
    for settings, address in (
        (Settings.from_env(verbs_gid_index=0), "fe80::"),
        (Settings.from_env(verbs_gid_index=1), "10.8.0.2"),
    ):
        rails, _ = devices.discover(devices.Request.of(settings))
        assert str(rails[0].gid.address).startswith(address)
    rails, refused = devices.discover(devices.Request.of(Settings.from_env(verbs_gid_index=9)))
    assert rails == []
    assert "GID index 9" in refused["rxe_b:1"]


def test_doctor():
    report = json.loads(rig.run(*_COMMAND, "doctor", "--json"))
    values = {finding["name"]: finding["value"] for finding in report["findings"]}
    assert "active" in values["rxe_b port 1"].lower()
    assert {"verbs"} <= {trial["provider"] for trial in report["providers"]}


def test_topology():
    shown = json.loads(rig.run(*_COMMAND, "topology", "--json"))
    assert [nic["name"] for nic in shown["nics"]] == ["rxe_b"]
    assert shown["choices"][0]["nics"] == ["rxe_b"]
    assert "rxe_b: software" in rig.run(*_COMMAND, "topology")


def test_a_context_of_pyverbs(pyverbs):
    """Used, kept alive, left open: pyverbs goes on with it after the engine is closed."""
    context = pyverbs.Context(name="rxe_b")
    source = pattern(3, MIB)
    into = np.zeros(MIB, np.uint8)
    with Engine(verbs_context=context) as near, FarSide(TWO_HOSTS) as far:
        remote = far.make("x", MIB)
        there = near.write(source, remote).wait(60)
        back = near.read(remote, into).wait(60)
        assert there.provider == back.provider == "verbs"
    assert np.array_equal(into, source)
    assert context.query_device().phys_port_cnt == 1
    assert rig.resources()["qp"] == 0
    context.close()
    with pytest.raises(InvalidUse, match="closed"):
        Engine(verbs_context=context)
