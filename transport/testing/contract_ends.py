"""Rules of the contract: nothing hangs, nothing is freed early, the first error is told."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from transport.config import Settings
from transport.errors import InvalidUse, PeerLost, StaleRegion, TransferError
from transport.testing.contract_data import WAIT, promptly
from transport.testing.servant import pattern

if TYPE_CHECKING:
    from collections.abc import Callable

    from transport.engine.engine import Engine
    from transport.memory.remote import RemoteRegion
    from transport.testing.contract import FarSide, Way


class EndRules:
    """Killed peers, dropped objects, closing with transfers in flight."""

    way: Way

    def test_a_killed_peer_fails_its_transfers_at_once(
        self, own: Engine, far: FarSide, fresh: Callable[..., FarSide]
    ) -> None:
        other, into = far.make("x", 64 << 10, seed=1), np.zeros(64 << 20, np.uint8)

        def lose() -> float:
            doomed = fresh()
            big = doomed.make("x", 64 << 20)
            own.read(big.bytes(0, 10), bytearray(10)).wait(WAIT)
            doomed.stop()
            # A device serves a process that stands still, until its room for notifications is full.
            depth = doomed.way.far.get("settings", Settings.from_env()).notify_depth
            small = into[:1], big.bytes(0, 1)
            first = [own.write(*small, notify=b"never read") for _ in range(depth)]
            transfers = [own.write(into, big, notify=b"never read") for _ in range(3)]
            doomed.kill()
            began = time.monotonic()
            for transfer in transfers:
                with pytest.raises(PeerLost) as caught:
                    transfer.wait(WAIT)
                assert isinstance(caught.value, TransferError)
                assert caught.value.retryable
            took = time.monotonic() - began
            for transfer in first + transfers:
                assert transfer.wait_quiet(WAIT)
            return took

        promptly(1.0, lose)
        own.read(other, found := bytearray(64 << 10)).wait(WAIT)
        assert bytes(found) == pattern(1, 64 << 10).tobytes()

    def test_use_of_a_dead_peer(self, own: Engine, fresh: Callable[..., FarSide]) -> None:
        def use() -> float:
            doomed = fresh()
            remote = doomed.make("x", 100)
            own.read(remote, bytearray(100)).wait(WAIT)
            doomed.kill()
            began = time.monotonic()
            with pytest.raises((PeerLost, StaleRegion)):
                read_on(remote, began + WAIT)
            return time.monotonic() - began

        def read_on(remote: RemoteRegion, end: float) -> None:
            """What is mapped can be read until this end has heard of it."""
            while time.monotonic() < end:
                own.read(remote, bytearray(100)).wait(WAIT)

        promptly(1.0, use)

    def test_a_peer_that_returns_is_used_again(
        self, own: Engine, fresh: Callable[..., FarSide]
    ) -> None:
        """F1"""
        for seed in range(3):
            far = fresh()
            remote = far.make("x", 100_000, seed=seed)
            into = bytearray(100_000)
            own.read(remote, into).wait(WAIT)
            assert bytes(into) == pattern(seed, 100_000).tobytes()
            far.kill()

    def test_a_peer_that_we_closed_is_connected_again(self, own: Engine, far: FarSide) -> None:
        remote = far.make("x", 1000, seed=1)
        for _ in range(5):
            into = bytearray(1000)
            own.read(remote, into).wait(WAIT)
            assert bytes(into) == pattern(1, 1000).tobytes()
            next(p for p in own.peers if p.incarnation == far.incarnation).close()

    def test_the_tensor_may_be_dropped_after_submit(self, near: Engine, far: FarSide) -> None:
        """G4, G6"""
        nbytes = 4 << 20
        remote = far.make("x", nbytes)
        transfers = [near.write(pattern(seed, nbytes), remote) for seed in range(8)]
        gc.collect()
        noise = [np.full(nbytes, 0xEE, np.uint8) for _ in range(8)]
        for transfer in transfers:
            transfer.wait(WAIT)
        near.write(pattern(9, nbytes), remote).wait(WAIT)
        assert far.content("x") == pattern(9, nbytes).tobytes()
        del noise

    def test_the_transfer_may_be_dropped_after_submit(self, near: Engine, far: FarSide) -> None:
        """G2"""
        nbytes = 4 << 20
        remote = far.make("x", nbytes)
        for seed in range(8):
            near.write(pattern(seed, nbytes), remote, notify=b"%d" % seed)
            gc.collect()
        assert len(far.call("notifications", 8, WAIT)) == 8

    def test_closing_the_engine_ends_its_transfers(
        self, own: Engine, fresh: Callable[..., FarSide]
    ) -> None:
        far = fresh()
        remote = far.make("x", 100)
        far.stop()
        transfer = own.read(remote, bytearray(100))
        began = time.monotonic()
        own.close()
        assert time.monotonic() - began < 8.0, "it waited until the peer was lost by its silence"
        with pytest.raises(TransferError):
            transfer.wait(WAIT)
        assert transfer.quiet
        with pytest.raises(InvalidUse):
            own.read(remote, bytearray(100))
        own.close()

    def test_a_region_can_be_closed_while_it_is_used(
        self, own: Engine, fresh: Callable[..., FarSide]
    ) -> None:
        """G1: deferred or refused; nothing lands in what was given back."""
        far = fresh()
        nbytes = 16 << 20
        remote = far.make("x", nbytes)
        transfers = [own.write(pattern(1, nbytes), remote) for _ in range(4)]
        far.call("close_region", "x")
        for transfer in transfers:
            assert transfer.wait_quiet(WAIT)
            if (error := transfer.exception()) is not None:
                assert isinstance(error, self.way.stale) or transfer.status == "flushed"
        content = far.content("x")
        time.sleep(0.05)
        assert far.content("x") == content

    def test_explain_and_counters(self, near: Engine, far: FarSide) -> None:
        remote = far.make("x", 1000)
        near.read(remote, bytearray(1000)).wait(WAIT)
        peer = next(p for p in near.peers if p.incarnation == far.incarnation)
        assert peer.connected
        assert peer.pid == far.pid
        counters = peer.counters()[self.way.provider]
        assert counters["operations"] >= 1
        assert counters["bytes"] >= 1000
        assert any("ok" in line for line in peer.explain(remote))
        assert self.way.provider in peer.providers
