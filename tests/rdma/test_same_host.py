"""process_vm under Yama, which the guest's kernel has: the next path is taken and named."""

from __future__ import annotations

from pathlib import Path

import pytest

from transport.testing.processes import PeerProcess
from transport.testing.servant import pattern

pytestmark = pytest.mark.usefixtures("on_c")

# CAP_SYS_PTRACE overrules Yama, and ordinary processes do not have it.
_ORDINARY = ("setpriv", "--bounding-set=-sys_ptrace", "--")
_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")


@pytest.fixture
def yama():
    before = _YAMA.read_text()
    _YAMA.write_text("1")
    yield
    _YAMA.write_text(before)


@pytest.fixture(scope="module")
def reader(on_c):
    with PeerProcess(*_ORDINARY) as process:
        yield process


def path_between(reader, **environment):
    """How private memory is read, and whether the bytes are right."""
    with PeerProcess(*_ORDINARY, **environment) as owner:
        owner.call("open")
        remote = owner.call("make", "x", 1 << 20, seed=1)
        reader.call("open")
        reader.call("make", "into", 1 << 20)
        path = reader.call("read", remote, "into", 60.0)
        assert reader.call("content", "into") == pattern(1, 1 << 20).tobytes()
        pooled = owner.call("make", "pooled", 4096, pool=True)
        reader.call("make", "into", 4096)
        assert reader.call("read", pooled, "into", 60.0) == "mapped"
        return path


def test_without_yama(reader):
    assert path_between(reader) == "process_vm"


def test_yama_refuses_and_the_stream_carries_it(reader, yama):
    assert path_between(reader) == "stream"


@pytest.mark.parametrize("whom", ["any", "reader"])
def test_yama_with_leave_of_the_owner(reader, yama, whom):
    number = "any" if whom == "any" else str(reader.pid)
    assert path_between(reader, TRANSPORT_ALLOW_PTRACER=number) == "process_vm"
