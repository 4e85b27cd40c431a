"""Transfers of random size, shape, type, memory and way: every digest right, and memory flat.

`SOAK_TRANSFERS` (3000) of them; the measure is 100,000. `SOAK_SEED` (1) says which.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import os
import time

import numpy as np
import pytest
from possessions import possessions

from transport import Blocks, Engine, Read, Write
from transport.testing.processes import PeerProcess
from transport.testing.servant import pattern

TRANSFERS = int(os.environ.get("SOAK_TRANSFERS", "3000"))
SEED = int(os.environ.get("SOAK_SEED", "1"))
WINDOW = 48
WAIT = 120.0
MIB = 1 << 20

WAYS = {"shm": {}, "tcp": {"providers": ("tcp",), "listen": "127.0.0.1:0"}}
KINDS = [
    ("uint8", (1 << 21,)),
    ("float32", (64, 128, 96)),
    ("int16", (17, 5, 257, 31)),
    ("float64", (300, 301)),
]

DIGESTS = """
import hashlib
result = [hashlib.sha256(servant.arrays[name][index].tobytes()).digest() for name, index in asked]
"""


class Board:
    """Memory of a peer, and what must be in it."""

    def __init__(self, engine, peer, number, dtype, shape, pool):
        self.engine, self.peer, self.name = engine, peer, f"board-{number}"
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        self.remote = peer.call(
            "make", self.name, nbytes, seed=number, shape=shape, dtype=dtype, pool=pool
        )
        self.truth = pattern(number, nbytes).view(dtype).reshape(shape).copy()


def _index(rng, shape):
    """A part of it: whole dimensions, ranges, steps and single places, small ones more often."""
    parts = []
    for size in shape:
        length = min(size, int(size ** rng.random()))
        start = int(rng.integers(0, size - length + 1))
        how = rng.random()
        if how < 0.15:
            parts.append(start if start < size else 0)
        elif how < 0.3:
            parts.append(slice(None) if size < 200 else slice(start, start + length))
        else:
            # A step in the last dimension makes a block of each element: not of millions of them.
            step = int(rng.choice([1, 1, 1, 2, 3])) if length < 1000 else 1
            parts.append(slice(start, start + length, step))
    return tuple(parts)


def _local(rng, engine, shape, dtype):
    """Memory of that shape: private or the pool's, in any order of dimensions, or with gaps."""
    shape = tuple(shape)
    how = rng.random()
    if how < 0.25:
        return engine.empty(shape, dtype)
    if how < 0.5 and len(shape) > 1:
        order = rng.permutation(len(shape))
        return np.empty([shape[i] for i in order], dtype).transpose(np.argsort(order))
    if how < 0.6 and shape and shape[-1] < 1000:
        return np.empty((*shape[:-1], 2 * shape[-1]), dtype)[..., ::2]
    return np.empty(shape, dtype)


class Soak:
    """Windows of transfers that are all under way at once; each board is written once in each."""

    def __init__(self, rng, boards):
        self.rng, self.boards = rng, boards
        self.done = self.bytes = 0
        self.paths = collections.Counter()

    def window(self):
        rng = self.rng
        begun, asked = [], []
        readers = rng.random(len(self.boards)) < 0.5
        for _ in range(WINDOW):
            at = int(rng.integers(len(self.boards)))
            if readers[at]:
                begun.append(self._read(self.boards[at]))
            elif not any(board is self.boards[at] for board, _ in asked):
                asked.append((self.boards[at], index := _index(rng, self.boards[at].truth.shape)))
                begun.append(self._write(self.boards[at], index))
        for transfer, check in begun:
            transfer.wait(WAIT)
            self.bytes += transfer.bytes
            self.paths[transfer.path] += 1
            if check is not None:
                check()
        self.done += len(begun)
        self._compare(asked)

    def _read(self, board):
        rng = self.rng
        if rng.random() < 0.2:
            return self._read_blocks(board)
        index = _index(rng, board.truth.shape)
        expected = board.truth[index]
        into = _local(rng, board.engine, expected.shape, board.truth.dtype)
        request = Read(board.remote[index], into)
        begin = board.engine.prepare if rng.random() < 0.2 else board.engine.submit
        transfer = begin([request])
        if begin == board.engine.prepare:
            transfer.start()
        return transfer, lambda: _same(into, expected)

    def _read_blocks(self, board):
        rng, flat = self.rng, board.truth.reshape(-1).view(np.uint8)
        size = int(2 ** (rng.random() * 12))
        count = min(int(2 ** (rng.random() * 8)), flat.size // size)
        offsets = rng.integers(0, flat.size - size + 1, count)
        into = np.empty(count * size, np.uint8)
        expected = flat[offsets[:, None] + np.arange(size)]
        blocks = Blocks(board.remote, offsets, size)
        return board.engine.read(blocks, into), lambda: _same(into, expected)

    def _write(self, board, index):
        source = _local(self.rng, board.engine, board.truth[index].shape, board.truth.dtype)
        source[...] = (
            self.rng.integers(0, 256, source.nbytes, np.uint8)
            .view(source.dtype)
            .reshape(source.shape)
        )
        board.truth[index] = source
        return board.engine.submit([Write(source, board.remote[index])]), None

    def _compare(self, asked):
        for peer in {board.peer for board, _ in asked}:
            mine = [(board, index) for board, index in asked if board.peer is peer]
            names = [(board.name, index) for board, index in mine]
            for (board, index), found in zip(mine, peer.call("run", DIGESTS, asked=names)):
                assert hashlib.sha256(board.truth[index].tobytes()).digest() == found, board.name

    def compare_all(self):
        """Whole boards: no byte went where it was not asked to."""
        self._compare([(board, ...) for board in self.boards])


def _same(found, expected):
    assert hashlib.sha256(found.tobytes()).digest() == hashlib.sha256(expected.tobytes()).digest()


def _belongings(peers):
    return [possessions(), *(peer.call("run", _THEIRS) for peer in peers)]


_THEIRS = "from possessions import possessions; result = possessions()"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_soak():
    began = time.perf_counter()
    with PeerProcess() as one, PeerProcess() as other, contextlib.ExitStack() as stack:
        boards, peers = [], {"shm": one, "tcp": other}
        for way, peer in peers.items():
            engine = stack.enter_context(Engine(**WAYS[way]))
            peer.call("open", **WAYS[way])
            for number, (dtype, shape) in enumerate(KINDS):
                for pool in (False, True):
                    number_here = 2 * number + pool
                    boards.append(Board(engine, peer, number_here, dtype, shape, pool))
        soak = Soak(np.random.default_rng(SEED), boards)
        while soak.done < TRANSFERS // 10:  # until every path and every size has been met
            soak.window()
        before = _belongings(peers.values())
        while soak.done < TRANSFERS:
            soak.window()
        after = _belongings(peers.values())
        soak.compare_all()
        assert set(soak.paths) == {"mapped", "process_vm", "tcp"}
    grown = [(now["resident"] - was["resident"]) / MIB for was, now in zip(before, after)]
    took = time.perf_counter() - began
    print(f"\n{soak.done} transfers, {soak.bytes / 1e9:.2f} GB, {took:.0f} s, {dict(soak.paths)}")
    print(f"grown since a tenth of it, MiB: {[round(each, 2) for each in grown]}")
    for was, now in zip(before, after):
        assert now["descriptors"] <= was["descriptors"], (was, now)
        assert now["threads"] <= was["threads"], (was, now)
        assert now["mappings"] <= was["mappings"] + 40, (was, now)
        assert now["resident"] <= was["resident"] + 24 * MIB, (was, now)
