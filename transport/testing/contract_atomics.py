"""Rules of the contract: atomic operations are exact where there are any, and refused elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from transport.errors import InvalidUse, RemoteAccessError, Unavailable
from transport.testing.contract_data import WAIT

if TYPE_CHECKING:
    from collections.abc import Callable

    from transport.engine.atomics import AtomicTransfer
    from transport.engine.engine import Engine
    from transport.testing.contract import FarSide, Way

_MASK = (1 << 64) - 1


class AtomicRules:
    """Fetch and add, compare and swap."""

    way: Way

    def test_what_is_no_word_is_refused(self, near: Engine, far: FarSide) -> None:
        remote = far.make("x", 64, dtype="int64")
        read_only = far.make("y", 8, dtype="int64", access="read")
        for wrong in (remote, remote.bytes(0, 4), far.make("z", 8, dtype="float64")[0]):
            with pytest.raises(InvalidUse, match="one int64"):
                near.fetch_add(wrong, 1)
        with pytest.raises(InvalidUse, match="aligned"):
            near.fetch_add(remote.bytes(4, 12), 1)
        for value in (1 << 64, -(1 << 63) - 1, 0.5):
            with pytest.raises(InvalidUse):
                near.fetch_add(remote[0], value)  # type: ignore[arg-type]
        with pytest.raises(RemoteAccessError):
            near.compare_swap(read_only[0], 0, 1)

    def test_fetch_add(self, near: Engine, far: FarSide) -> None:
        remote = far.make("x", 64, dtype="int64")
        if not self.way.atomics:
            _refused(near.fetch_add(remote[0], 1))
            return
        expected = np.frombuffer(far.content("x"), np.uint64).tolist()
        for index, value in ((0, 1), (7, -1), (0, (1 << 63) - 1), (3, -(1 << 63)), (7, 5)):
            transfer = near.fetch_add(remote[index], value).wait(WAIT)
            assert transfer.value & _MASK == expected[index]
            assert (transfer.provider, transfer.bytes) == (self.way.provider, 8)
            expected[index] = (expected[index] + value) & _MASK
            assert np.frombuffer(far.content("x"), np.uint64).tolist() == expected

    def test_compare_swap(self, near: Engine, far: FarSide) -> None:
        remote = far.make("x", 16, dtype="uint64")
        if not self.way.atomics:
            _refused(near.compare_swap(remote[0], 0, 1))
            return
        word = int.from_bytes(far.content("x")[8:], "little")
        assert near.compare_swap(remote[1], word + 1, 5).wait(WAIT).value == word
        assert near.compare_swap(remote[1], word, 5).wait(WAIT).value == word
        assert near.compare_swap(remote.bytes(8, 16), 5, 6).wait(WAIT).value == 5
        assert int.from_bytes(far.content("x")[8:], "little") == 6

    def test_two_engines_count_together(
        self, near: Engine, far: FarSide, fresh: Callable[..., FarSide]
    ) -> None:
        """This process and a third one add to one word of the second: none is lost."""
        if not self.way.atomics:
            return
        count, window = 400, 16
        remote = far.make("x", 8, dtype="int64")
        before = int.from_bytes(far.content("x"), "little", signed=True)
        third = fresh()
        third.begin("run", _COUNTS, remote=remote, count=count)
        seen: list[int] = []
        for _ in range(count // window):
            begun = [near.fetch_add(remote[0], 1) for _ in range(window)]
            seen += [transfer.wait(WAIT).value for transfer in begun]
        seen += third.answer(WAIT)
        assert sorted(seen) == [before + i for i in range(2 * count)]
        after = int.from_bytes(far.content("x"), "little", signed=True)
        assert after == before + 2 * count


def _refused(transfer: AtomicTransfer) -> None:
    with pytest.raises(Unavailable, match="atomic operations"):
        transfer.wait(WAIT)
    with pytest.raises(Unavailable):
        _ = transfer.value


_COUNTS = """
result = [servant.engine.fetch_add(remote[0], 1).wait(20).value for _ in range(count)]
"""
