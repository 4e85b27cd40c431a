"""Rules of the contract: what must not move does not, and the caller hears why."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from transport.engine.batch import Read, Write
from transport.errors import InvalidUse, RemoteAccessError, StaleRegion, Unavailable
from transport.memory.remote import NATIVE, Owner, RemoteRegion
from transport.testing.contract_data import WAIT
from transport.testing.servant import pattern

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from transport.engine.engine import Engine
    from transport.testing.contract import FarSide, Way


_NATIVE_FIELDS = (
    "number",
    "generation",
    "key",
    "address",
    "length",
    "segment_offset",
    "segment",
    "access",
)


def forged(remote: RemoteRegion, **changes: object) -> RemoteRegion:
    """The same handle with other native fields, as only a malicious or broken holder has it."""
    values = NATIVE.unpack(remote._owner.native)
    fields = dict(zip(_NATIVE_FIELDS, values))
    native = NATIVE.pack(*{**fields, **changes}.values(), *values[len(_NATIVE_FIELDS) :])
    owner = Owner.make(remote.incarnation, remote.addresses, native)
    return RemoteRegion(owner, remote.offset, remote.dtype, remote.shape)


class RefusalRules:
    """Mismatches, access, ranges, stale handles."""

    way: Way

    @pytest.mark.parametrize(
        "into",
        [np.zeros(11, np.float32), np.zeros(10, np.int32), np.zeros((2, 5), np.float32), b"x" * 39],
        ids=["size", "dtype", "shape", "bytes"],
    )
    def test_mismatch(self, near: Engine, far: FarSide, into: object) -> None:
        remote = far.make("x", 40, shape=(10,), dtype="float32")
        with pytest.raises(InvalidUse):
            near.write(into, remote)
        with pytest.raises(InvalidUse):
            near.submit([Read(remote, np.zeros(10, np.float32)), Read(remote, into)])
        assert far.content("x") == pattern(0, 40).tobytes()

    def test_local_memory_that_cannot_take_what_is_read(self, near: Engine, far: FarSide) -> None:
        remote = far.make("x", 8, shape=(2,), dtype="float32")
        frozen = np.zeros(2, np.float32)
        frozen.flags.writeable = False
        for into in (frozen, b"12345678", np.broadcast_to(np.float32(0), (2,))):
            with pytest.raises(InvalidUse):
                near.read(remote, into)
        near.write(np.broadcast_to(np.float32(1), (2,)), remote).wait(WAIT)
        assert far.content("x") == np.ones(2, np.float32).tobytes()

    def test_read_only_region(self, near: Engine, far: FarSide) -> None:
        remote = far.make("x", 100, access="read")
        near.read(remote, bytearray(100)).wait(WAIT)
        with pytest.raises(RemoteAccessError):
            near.write(bytes(100), remote)
        assert far.content("x") == pattern(0, 100).tobytes()

    def test_write_only_region(self, near: Engine, far: FarSide) -> None:
        remote = far.make("x", 100, access="write")
        near.write(pattern(1, 100), remote).wait(WAIT)
        with pytest.raises(RemoteAccessError):
            near.read(remote, bytearray(100))
        assert far.content("x") == pattern(1, 100).tobytes()

    def test_outside(self, near: Engine, far: FarSide) -> None:
        remote = far.make("x", 100)
        for start, stop in ((0, 101), (101, 101)):
            with pytest.raises(IndexError):
                remote.bytes(start, stop)

    def test_a_region_that_was_closed_is_stale(
        self, own: Engine, fresh: Callable[..., FarSide]
    ) -> None:
        far = fresh()
        remote, other = far.make("x", 100), far.make("other", 100, seed=1)
        own.read(remote, bytearray(100)).wait(WAIT)
        far.call("close_region", "x")
        read, write = Read(remote, bytearray(100)), Write(bytes(100), remote)
        stale: list[list[Read | Write]] = [[read], [write], [Read(other, bytearray(100)), write]]
        for requests in stale:
            with pytest.raises(self.way.stale):
                own.submit(requests).wait(WAIT)
        assert far.content("x") == pattern(0, 100).tobytes()
        into = bytearray(100)
        own.read(other, into).wait(WAIT)
        assert bytes(into) == pattern(1, 100).tobytes()

    def test_a_restarted_owner_makes_handles_stale(
        self, own: Engine, fresh: Callable[..., FarSide], tmp_path: Path
    ) -> None:
        """Another engine answers at the address that is in the handle."""
        tcp = str(self.way.far.get("listen", ""))
        far = fresh(listen=tcp or f"unix:{tmp_path}/socket")
        remote = far.make("x", 100)
        own.read(remote, bytearray(100)).wait(WAIT)
        (before,) = own.peers
        far.reopen(listen=far.addresses[-1])
        end = time.monotonic() + WAIT
        # A read that begins before this end has heard of it is PeerLost. C hears of it first.
        while before in own.peers and time.monotonic() < end:
            time.sleep(0.01)
        renewed = far.make("x", 100, seed=1)
        for _ in range(2):
            with pytest.raises(StaleRegion):
                own.read(remote, bytearray(100)).wait(WAIT)
            into = bytearray(100)
            own.read(renewed, into).wait(WAIT)
            assert bytes(into) == pattern(1, 100).tobytes()

    def test_a_provider_that_is_not_there(self, near: Engine, far: FarSide) -> None:
        remote = far.make("x", 100)
        with pytest.raises(InvalidUse):
            near.read(remote, bytearray(100), provider="pigeon")
        with pytest.raises(InvalidUse):
            near.read(remote, bytearray(100), fallback="perhaps")
        near.read(remote, bytearray(100)).wait(WAIT)
        peer = next(p for p in near.peers if p.incarnation == far.incarnation)
        for other in set(near.providers) - set(peer.providers):
            with pytest.raises(Unavailable):
                near.read(remote, bytearray(100), provider=other).wait(WAIT)

    def test_the_provider_can_be_required(self, near: Engine, far: FarSide) -> None:
        remote = far.make("x", 100, seed=2)
        provider = self.way.provider
        for fallback in (None, "allow", "error"):
            into = bytearray(100)
            transfer = near.read(remote, into, provider=provider, fallback=fallback).wait(WAIT)
            assert transfer.provider == provider
            assert bytes(into) == pattern(2, 100).tobytes()
