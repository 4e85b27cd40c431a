"""The C test of two engines over a real device; `make test-rdma` builds it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import rig

pytestmark = pytest.mark.usefixtures("on_b")

_PROGRAM = Path(__file__).parents[2] / "build/native/test/tests/test_verbs_rig"
_LIMIT = 300.0  # seconds


@pytest.mark.skipif(not _PROGRAM.exists(), reason="native-programs: `make native` builds them")
def test_two_hosts_without_python():
    listen = [*rig.on("a"), str(_PROGRAM), "listen", rig.DEVICES["a"]]
    with subprocess.Popen(listen, stdout=subprocess.PIPE, text=True) as far:
        assert "ready" in far.stdout.readline()
        rig.run(str(_PROGRAM), "connect", rig.DEVICES["b"], rig.ADDRESSES["a"])
        far.communicate(timeout=_LIMIT)
        assert far.returncode == 0


@pytest.mark.skipif(not _PROGRAM.exists(), reason="native-programs: `make native` builds them")
def test_one_device_without_python():
    assert "skipped" not in rig.run(*rig.on("c"), str(_PROGRAM))
