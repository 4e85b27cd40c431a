"""tcp keeps the contract, and its target checks every request."""

from __future__ import annotations

import os
import signal
import socket
import time
from typing import Any

import pytest
from capabilities import require

from transport.config import Settings
from transport.errors import PeerLost, RemoteAccessError, StaleRegion
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


def _streams(engine):
    return [line for peer in engine.peers for line in peer.explain() if "streams" in line]


def _until(condition):
    end = time.monotonic() + WAIT
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    assert condition()


class TestStreams:
    """Large transfers are spread over several sockets, whichever side begins them."""

    way = TestTcp.way
    spare, fresh, own = TestTcp.spare, TestTcp.fresh, TestTcp.own

    @pytest.mark.parametrize("far_begins", [False, True], ids=["near", "far"])
    def test_they_open_when_a_large_transfer_needs_them(self, own, fresh, far_begins):
        far = fresh()
        remote = far.make("x", 32 << 20)
        here = bytearray(32 << 20)
        own.read(remote[:4096], bytearray(4096)).wait(WAIT)
        assert _streams(own) == ["1 of 4 TCP streams are open"]
        with own.register(here) as region:
            for _ in range(2):
                if far_begins:
                    far.call("read", region.remote(), "x", WAIT)
                else:
                    own.read(remote, here).wait(WAIT)
        _until(lambda: _streams(own) == ["4 of 4 TCP streams are open"])
        here[:] = bytes(len(here))
        own.read(remote, here).wait(WAIT)
        assert here == far.content("x")
        own.write(pattern(7, len(here)), remote).wait(WAIT)
        assert far.content("x") == pattern(7, len(here)).tobytes()

    @pytest.mark.parametrize("streams", [1, 2])
    def test_the_lesser_number_counts(self, own, fresh, streams):
        far = fresh(settings=Settings(tcp_streams=streams))
        remote, into = far.make("x", 32 << 20), bytearray(32 << 20)
        for _ in range(3):
            own.read(remote, into).wait(WAIT)
        assert into == far.content("x")
        if streams == 1:
            assert _streams(own) == []
        else:
            _until(lambda: _streams(own) == ["2 of 2 TCP streams are open"])

    def test_a_killed_peer_ends_what_all_of_them_carry(self, own, fresh):
        far = fresh()
        remote, into = far.make("x", 64 << 20), bytearray(64 << 20)
        _until(lambda: own.read(remote, into).wait(WAIT) and "4 of 4" in _streams(own)[0])
        os.kill(far.pid, signal.SIGSTOP)
        transfer = own.read(remote, into)
        os.kill(far.pid, signal.SIGKILL)
        with pytest.raises(PeerLost):
            transfer.wait(WAIT)
        assert transfer.quiet


class TestSharing:
    """No peer starves or stops another one."""

    way = TestTcp.way
    spare, fresh, own = TestTcp.spare, TestTcp.fresh, TestTcp.own

    def test_a_large_transfer_lets_small_ones_to_another_peer_through(self, own, fresh):
        large, small = fresh(), fresh()
        source, page = large.make("x", 256 << 20), small.make("x", 4096)
        into, buffer = bytearray(256 << 20), bytearray(4096)
        own.read(source[:1], bytearray(1)).wait(WAIT)
        own.read(page, buffer).wait(WAIT)
        between = []
        for _ in range(3):
            transfer = own.read(source, into)
            between.append(0)
            while not transfer.done:
                own.read(page, buffer).wait(WAIT)
                between[-1] += 1
            transfer.wait(WAIT)
        assert max(between) >= 10, between
        assert buffer == small.content("x")

    def test_a_stopped_peer_delays_nobody(self, own, fresh):
        stopped, well = fresh(), fresh()
        there, page = stopped.make("x", 64 << 20), well.make("x", 16 << 20)
        into = bytearray(16 << 20)
        _until(lambda: own.read(there, bytearray(64 << 20)).wait(WAIT) and _streams(own))
        own.read(page, into).wait(WAIT)
        os.kill(stopped.pid, signal.SIGSTOP)
        try:
            stuck = [own.write(bytes(64 << 20), there), own.read(there, bytearray(64 << 20))]
            for _ in range(20):
                own.read(page, into).wait(WAIT)
                own.write(into, page).wait(WAIT)
            assert not any(transfer.done for transfer in stuck)
        finally:
            os.kill(stopped.pid, signal.SIGCONT)
        for transfer in stuck:
            transfer.wait(WAIT)


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
