"""Rules of the contract: blocks given by arrays, arrays of any strides and rank, empty ones."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from transport.engine.batch import READ, WRITE, Read, Write
from transport.engine.blocks import Blocks
from transport.engine.copies import Copies
from transport.errors import InvalidUse
from transport.testing.contract_data import WAIT
from transport.testing.servant import pattern

if TYPE_CHECKING:
    from collections.abc import Callable

    from transport.engine.engine import Engine
    from transport.testing.contract import FarSide, Way

    Array = np.ndarray[Any, Any]
    Cut = Callable[[Any], Any]

_SHAPE = (6, 5, 4, 7)
_CUTS: dict[str, Cut] = {
    "whole": lambda x: x,
    "columns": lambda x: x[:, :, :, 2:5],
    "a box": lambda x: x[1:5, 1:4, 2:, 1:6],
    "every other": lambda x: x[::2, ::3, 1::2, ::2],
    "backwards": lambda x: x[::-1, :, ::-2, ::-1],
    "one column": lambda x: x[:, 3, :, 5],
    "an element": lambda x: x[2, 3, 1, 4],
}
_ORDERS: dict[str, tuple[int, ...]] = {
    "as it is": (0, 1, 2, 3),
    "turned": (3, 2, 1, 0),
    "shuffled": (2, 0, 3, 1),
}


class BlockRules:
    """Blocks, pages and regions of many dimensions, on both sides, by every provider."""

    way: Way

    def test_blocks_are_read_and_written(self, near: Engine, far: FarSide) -> None:
        remote = far.make("x", 100_000, seed=1)
        random = np.random.default_rng(2)
        lengths = random.integers(0, 50, 1000)
        there = np.sort(random.permutation(2000)[:1000] * 50)[::-1]
        here = random.permutation(1000) * 50
        far_bytes, mine = pattern(1, 100_000), np.zeros(50_000, np.uint8)
        expected = mine.copy()
        for a, b, n in zip(here, there, lengths):
            expected[a : a + n] = far_bytes[b : b + n]
        local, target = Blocks(mine, here, lengths), Blocks(remote, there)
        transfer = near.read(target, local).wait(WAIT)
        assert np.array_equal(mine, expected)
        assert transfer.bytes == int(lengths.sum())
        assert (transfer.provider, transfer.path) == (self.way.provider, self.way.path)
        mine[:] = pattern(3, 50_000)
        near.write(local, target).wait(WAIT)
        for a, b, n in zip(here, there, lengths):
            far_bytes[b : b + n] = mine[a : a + n]
        assert far.content("x") == far_bytes.tobytes()

    def test_pages_are_gathered_and_scattered(self, near: Engine, far: FarSide) -> None:
        """As the pages of a KV cache: prepared, in any order, into one piece and back."""
        remote = far.make("x", 64 * 512 * 4, seed=4, shape=(64, 2, 256), dtype="float32")
        cache = pattern(4, 64 * 512 * 4).view(np.uint32).reshape(64, 2, 256)
        pages = np.random.default_rng(5).permutation(64)[:40].astype(np.int32)
        packed = np.zeros((40, 2, 256), np.float32)
        with near.prepare(Read(Blocks(remote, pages=pages), packed)) as gather:
            for _ in range(3):
                packed[:] = 0
                gather.run(WAIT)
                assert np.array_equal(packed.view(np.uint32), cache[pages])
        half = np.zeros((40, 256), np.float32)
        near.read(Blocks(remote[:, 1], pages=pages), half).wait(WAIT)
        assert np.array_equal(half.view(np.uint32), cache[pages, 1])
        near.write(packed[::-1].copy(), Blocks(remote, pages=pages)).wait(WAIT)
        cache[pages] = cache[pages][::-1]
        assert far.content("x") == cache.tobytes()

    def test_a_wrong_block_moves_nothing(self, near: Engine, far: FarSide) -> None:
        remote = far.make("x", 4096, seed=6)
        source = np.zeros(4096, np.uint8)
        wrong = Write(Blocks(source, [0, 64], 64), Blocks(remote, [0, 4033]))
        with pytest.raises(InvalidUse, match="block 1: 64 bytes from byte 4033"):
            near.submit([Write(source[:64], remote[:64]), wrong])
        assert far.content("x") == pattern(6, 4096).tobytes()

    @pytest.mark.parametrize("order", _ORDERS)
    @pytest.mark.parametrize("cut", _CUTS)
    def test_arrays_of_any_strides(self, near: Engine, far: FarSide, cut: str, order: str) -> None:
        """E1: transposed, cut, reversed arrays come as they are seen, and nothing else moves."""
        base = pattern(7, 840 * 4).view(np.int32).reshape(_SHAPE)
        remote = far.make("x", base.nbytes, seed=7, shape=_SHAPE, dtype="int32")
        part, wanted = _CUTS[cut](remote), np.asarray(_CUTS[cut](base))
        mine = _like(wanted, _ORDERS[order])
        whole = mine.base if mine.base is not None else mine
        near.read(part, mine).wait(WAIT)
        assert np.array_equal(mine, wanted)
        assert int(np.count_nonzero(whole)) <= wanted.size
        mine[...] = pattern(8, wanted.nbytes).view(np.int32).reshape(wanted.shape)
        near.write(mine, part).wait(WAIT)
        expected = base.copy()
        if wanted.shape:
            _CUTS[cut](expected)[...] = mine
        else:
            expected[2, 3, 1, 4] = mine
        assert far.content("x") == expected.tobytes()

    def test_an_expanded_array_is_only_a_source(self, near: Engine, far: FarSide) -> None:
        """E1: stride 0 is read as often as it is seen, and refused where it would be written."""
        remote = far.make("x", 480, seed=9, shape=(4, 5, 6), dtype="float32")
        row = np.arange(6, dtype=np.float32)
        expanded = np.broadcast_to(row[:, None], (4, 6, 5)).transpose(0, 2, 1)
        near.write(expanded, remote).wait(WAIT)
        assert far.content("x") == np.broadcast_to(row, (4, 5, 6)).tobytes()
        writable = np.lib.stride_tricks.as_strided(row, (4, 5, 6), (0, 0, 4))
        with pytest.raises(InvalidUse, match="share bytes"):
            near.read(remote, writable)

    @pytest.mark.parametrize("shape", [(), (0,), (0, 5), (5, 0), (1,), (1, 1, 1)])
    def test_scalars_and_empty_arrays(
        self, near: Engine, far: FarSide, shape: tuple[int, ...]
    ) -> None:
        """E4, E5: no dimension, no element, no request."""
        nbytes = int(np.prod(shape)) * 8
        remote = far.make("x", nbytes, seed=10, shape=shape, dtype="int64")
        mine = np.zeros(shape, np.int64)
        assert near.read(remote, mine).wait(WAIT).bytes == nbytes
        assert mine.tobytes() == pattern(10, nbytes).tobytes()
        near.submit([Write(mine, remote), Read(remote, mine)]).wait(WAIT)
        assert near.submit([]).wait(WAIT).bytes == 0
        nothing: list[int] = []
        near.read(Blocks(remote, nothing, 8), Blocks(mine, nothing)).wait(WAIT)
        assert far.content("x") == mine.tobytes()

    @pytest.mark.parametrize("dim", [0, 1, 2])
    @pytest.mark.parametrize("world", [1, 2, 3, 5, 8])
    def test_uneven_shards(self, near: Engine, far: FarSide, world: int, dim: int) -> None:
        """E7: shards along any dimension, of which the last may be smaller or empty."""
        shape = (7, 4, 6)
        whole = pattern(11, 168 * 2).view(np.int16).reshape(shape)
        remote = far.make("x", whole.nbytes, seed=11, shape=shape, dtype="int16")
        each = -(-shape[dim] // world)
        cuts = [min(rank * each, shape[dim]) for rank in range(world + 1)]
        index = [(slice(None),) * dim + (slice(low, high),) for low, high in pairwise(cuts)]
        shards = [np.zeros_like(whole[part]) for part in index]
        near.submit([Read(remote[p], shard) for p, shard in zip(index, shards)]).wait(WAIT)
        assert np.array_equal(np.concatenate(shards, dim), whole)
        into = np.zeros(shape, np.int16)
        near.submit([Read(remote[part], into[part]) for part in index]).wait(WAIT)
        assert np.array_equal(into, whole)

    def test_many_boxes_of_many_memories(self, near: Engine, far: FarSide) -> None:
        """Copies: a table instead of a request for each; prepared, read and written."""
        shape, count = (3, 4, 5, 6), 7
        there = [far.make(f"x{k}", 720, seed=k, shape=shape, dtype="int16") for k in range(3)]
        tensors = [pattern(k, 720).view(np.int16).reshape(shape) for k in range(3)]
        mine = [np.zeros((2, 3, 2, 4), np.int16) for _ in range(count)]
        cuts = [np.s_[k % 2 : k % 2 + 2, :3, k % 4 : k % 4 + 2, 1:5] for k in range(count)]
        wanted = [tensors[k % 3][cuts[k]] for k in range(count)]
        table: dict[str, Any] = {
            "local_index": np.arange(count),
            "remote_index": np.arange(count) % 3,
            "local_start": np.zeros(count, np.int64),
            "remote_start": np.array([there[k % 3][cuts[k]].offset for k in range(count)]),
            "length": np.full(count, 2),
            "sizes": np.tile((2, 3, 2, 4), (count, 1)),
            "local_strides": np.tile(mine[0].strides, (count, 1)),
            "remote_strides": np.tile(tensors[0].strides, (count, 1)),
        }
        with near.prepare(Copies(READ, mine, there, **table)) as prepared:
            for _ in range(2):
                for array in mine:
                    array[...] = 0
                prepared.run(WAIT)
                assert all(np.array_equal(a, b) for a, b in zip(mine, wanted))
            assert prepared.bytes == 2 * 48 * count
        for k, array in enumerate(mine):
            array[...] = k
            tensors[k % 3][cuts[k]] = k
        for k in range(count):  # one by one, since the boxes overlap
            rows = {name: array[k : k + 1] for name, array in table.items()}
            near.submit([Copies(WRITE, mine, there, **rows)]).wait(WAIT)
        assert all(far.content(f"x{k}") == tensors[k].tobytes() for k in range(3))

    def test_neighbours_cost_what_one_costs(self, near: Engine, far: FarSide) -> None:
        """E3: thousands of views of one array, side by side, are moved as one."""
        remote = far.make("x", 1 << 20, seed=12)
        mine = np.zeros(1 << 20, np.uint8)
        reads = [
            Read(remote[at : at + 256], mine[at : at + 256]) for at in range(0, len(mine), 256)
        ]
        transfer = near.submit(reads).wait(WAIT)
        assert np.array_equal(mine, pattern(12, 1 << 20))
        assert transfer.bytes == 1 << 20


def _like(array: Array, order: tuple[int, ...]) -> Array:
    """Zeros of the shape, whose dimensions lie in memory in another order."""
    order = tuple(sorted(range(array.ndim), key=lambda i: order[i]))
    base = np.zeros([array.shape[i] for i in order], array.dtype)
    return base.transpose(np.argsort(order)) if array.ndim else base
