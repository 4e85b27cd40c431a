"""The pool: which segment a block comes from, and when segments go."""

from __future__ import annotations

import gc
import threading

import pytest

from transport import Access, Engine
from transport.ffi import ffi
from transport.memory.pool import SEGMENT_BYTES


@pytest.fixture
def pool():
    with Engine() as engine:
        yield engine._core.pool


def address(block):
    return int(ffi.cast("uintptr_t", block))


def test_blocks_of_one_kind_share_a_segment(pool):
    blocks = [pool.take(1000, Access.READ_WRITE) for _ in range(100)]
    assert len({int(ffi.cast("uintptr_t", pool.find(address(b)))) for b in blocks}) == 1
    assert len({address(b) for b in blocks}) == 100
    assert pool.used_bytes == 100 * 1024


def test_find_knows_its_own_memory_only(pool):
    block = pool.take(5000, Access.READ)
    segment = pool.find(address(block))
    assert segment != ffi.NULL
    assert pool.find(address(block) + 4999) == segment
    assert pool.find(address(block) + SEGMENT_BYTES) == ffi.NULL
    assert pool.find(8) == ffi.NULL
    assert pool.find((1 << 64) - 1) == ffi.NULL


def test_fresh_memory_is_zero_and_ours(pool):
    block = pool.take(10_000, Access.READ_WRITE)
    buffer = ffi.buffer(block, 10_000)
    assert bytes(buffer) == bytes(10_000)
    buffer[:] = b"x" * 10_000
    assert bytes(buffer) == b"x" * 10_000


def test_one_empty_segment_is_kept(pool):
    first = pool.take(SEGMENT_BYTES // 2 + 1, Access.READ_WRITE)
    second = pool.take(SEGMENT_BYTES // 2 + 1, Access.READ_WRITE)
    assert len(pool._segments) == 2
    del first, second
    gc.collect()
    assert pool.has_chores
    pool.drain()
    assert len(pool._segments) == 1
    assert pool.used_bytes == 0


def test_threads(pool):
    failures = []

    def work(number):
        for size in range(1, 3000, 37):
            block = pool.take(size, Access.READ_WRITE)
            buffer = ffi.buffer(block, size)
            buffer[:] = bytes([number]) * size
            if bytes(buffer) != bytes([number]) * size:
                failures.append(size)
            del buffer, block

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pool.drain()
    assert not failures
    assert pool.used_bytes == 0
