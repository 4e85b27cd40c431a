"""tcp keeps the contract, and its target checks every request."""

from __future__ import annotations

import os
import signal
import socket
import time
from typing import Any

import pytest
from capabilities import require

from transport.errors import RemoteAccessError, StaleRegion
from transport.testing.contract import Contract, Way
from transport.testing.contract_data import WAIT
from transport.testing.contract_refusals import forged
from transport.testing.servant import pattern

_TCP: dict[str, Any] = {"providers": ("tcp",), "secret": "a secret of this test run only"}


class TestTcp(Contract):
    way = Way("tcp", "tcp", near=_TCP, far={**_TCP, "listen": "127.0.0.1:0"})

    def test_a_full_socket_is_counted(self, own, fresh):
        far = fresh()
        remote = far.make("x", 32 << 20)
        own.read(remote[:1], bytearray(1)).wait(WAIT)  # connected
        os.kill(far.pid, signal.SIGSTOP)
        transfer = own.write(bytes(32 << 20), remote)
        end = time.monotonic() + WAIT
        while not (retries := own.peers[0].counters()["tcp"]["retries"]) and time.monotonic() < end:
            time.sleep(0.01)
        os.kill(far.pid, signal.SIGCONT)
        transfer.wait(WAIT)
        assert retries > 0
        counts = own.peers[0].counters()["tcp"]
        assert (counts["operations"], counts["bytes"], counts["errors"]) == (2, (32 << 20) + 1, 0)

    @pytest.mark.parametrize(
        ("changes", "error"),
        [
            ({"key": b"x" * 16}, RemoteAccessError),
            ({"length": 101}, RemoteAccessError),
            ({"access": 3}, RemoteAccessError),
            ({"generation": 1 << 40}, StaleRegion),
            ({"number": 1 << 40}, StaleRegion),
            ({"number": 0}, StaleRegion),
        ],
        ids=str,
    )
    def test_the_target_believes_no_handle(self, near, far, changes, error):
        remote = far.make("x", 100, access="read")
        false = forged(remote, **changes)
        if "access" in changes:
            transfer = near.write(bytes(100), false)
        else:
            transfer = near.read(false.bytes(0, false.nbytes), bytearray(false.nbytes))
            if "length" in changes:
                longer = type(false)(false._owner, 0, None, (101,))
                transfer = near.read(longer, bytearray(101))
        with pytest.raises(error):
            transfer.wait(WAIT)
        assert far.content("x") == pattern(0, 100).tobytes()
        near.read(remote, bytearray(100)).wait(WAIT)


class TestIpv6:
    def test_a_read(self):
        require("ipv6", None if _has_ipv6() else "no loopback address ::1")
        from transport import Engine

        with (
            Engine(**_TCP, listen="[::1]:0") as far,
            Engine(**_TCP) as near,
            far.register(b"hello") as region,
        ):
            assert any(address.startswith("[::1]:") for address in far.addresses)
            into = bytearray(5)
            assert near.read(region.remote(), into).wait(WAIT).provider == "tcp"
            assert into == b"hello"


def _has_ipv6():
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False
