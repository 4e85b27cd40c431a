"""pytest benchmarks/micro: register, submit, wait, handles, and all that beside a busy thread."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest

import transport
from benchmarks.micro.owner import BLOCKS


def test_register_and_close_private(benchmark, engine):
    memory = np.zeros(4096, np.uint8)

    def once():
        engine.register(memory).close()

    benchmark(once)


def test_register_and_close_pool(benchmark, engine, block):
    def once():
        engine.register(block).close()

    benchmark(once)


def test_empty(benchmark, engine):
    benchmark(engine.empty, (1024,), "float32")


def test_submit_and_wait(benchmark, engine, remote, block):
    """4 KiB, copied inside submit: nearly all of it is overhead."""

    def once():
        engine.read(remote[0], block).wait()

    benchmark(once)


def _requests(engine, remote, count):
    """Every other block, so that neighbours are not joined."""
    local = engine.empty((count, remote.shape[1]), "uint8")
    return [transport.Read(remote[n], local[n]) for n in range(0, count, 2)]


def test_wait_that_is_over(benchmark, engine, remote, block):
    transfer = engine.read(remote[0], block).wait()
    benchmark(transfer.wait)


def test_slice_of_a_handle(benchmark, remote):
    benchmark(lambda: remote[10:20])


def test_handle_pickled_and_back(benchmark, remote):
    benchmark(lambda: pickle.loads(pickle.dumps(remote)))


def test_handle_as_bytes_and_back(benchmark, remote):
    benchmark(lambda: type(remote).from_bytes(remote.to_bytes()))


def test_handle_as_json_and_back(benchmark, remote):
    benchmark(lambda: type(remote).from_json(json.loads(json.dumps(remote.to_json()))))


def _one_by_one(engine, requests):
    for request in requests:
        engine.submit([request]).wait()


def _all_at_once(engine, requests):
    engine.submit(requests).wait()


# Each call into C drops the GIL. Beside a thread that never blocks, winning it back can cost a
# switch interval (5 ms): the price is per call, not per block.
@pytest.mark.parametrize("how", [_one_by_one, _all_at_once])
def test_500_blocks(benchmark, engine, remote, how):
    requests = _requests(engine, remote, BLOCKS)
    benchmark.pedantic(how, (engine, requests), rounds=15, warmup_rounds=1)


@pytest.mark.usefixtures("busy_thread")
@pytest.mark.parametrize("how", [_one_by_one, _all_at_once])
def test_500_blocks_beside_a_busy_thread(benchmark, engine, remote, how):
    requests = _requests(engine, remote, BLOCKS)
    benchmark.pedantic(how, (engine, requests), rounds=15, warmup_rounds=1)
