"""What users of Ray's tensor transports, and of what is built on them, reported.

Elsewhere in this folder: one memory registered twice (ray#60432), actors that are restarted or made
by others (ray#61014), several references at once (ray#61453), `ray.put` in the driver (ray#58448),
reads of what was released (vllm#52234, vllm-omni PR #6264), bfloat16 (vllm-omni#5739, ray#48141),
syncs that hang without an error (trl#6796). What is Ray's own is listed in docs/howto/ray.md.
"""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest
import ray
import torch
from ray_actors import BIG, differences, numbers

import transport.adapters.ray as adapter

pytestmark = [pytest.mark.usefixtures("cluster"), pytest.mark.filterwarnings("ignore")]


@ray.remote(num_cpus=0, enable_tensor_transport=True)
class Async:
    """An asyncio actor."""

    @ray.method(tensor_transport="TRANSPORT")
    async def numbers(self, count, seed):
        await asyncio.sleep(0)
        return numbers(count, seed=seed)

    async def compare(self, value, count, seed):
        await asyncio.sleep(0)
        return differences(value, numbers(count, seed=seed))

    async def fetch_and_compare(self, refs, count, seed):
        found = await asyncio.to_thread(ray.get, refs)
        return [differences(part, numbers(count, seed=seed)) for part in found]


def test_actors_of_asyncio_give_and_take(members):
    """ray#56398: they deadlock with two-sided transports. ray#59831: `await ref` hangs, in Ray."""
    first, second = Async.remote(), Async.remote()
    there = [second.compare.remote(first.numbers.remote(BIG, i), BIG, i) for i in range(8)]
    back = [first.compare.remote(second.numbers.remote(BIG, i), BIG, i) for i in range(8)]
    assert ray.get(there + back, timeout=50) == [[]] * 16
    refs = ray.get(members[0].refs.remote(1)) * 3
    assert ray.get(second.fetch_and_compare.remote(refs, BIG, 0)) == [[]] * 3


def test_registrations_change_while_a_sibling_is_under_way(members):
    """ray#65905: the source's registrations change between two reads of the same reader."""
    source, reader, _ = members
    big = source.numbers.remote(32 * BIG, 1)
    pending = [reader.compare_numbers.remote(big, 32 * BIG, 1)]
    for seed in range(6):  # each registers, and takes back, beside the large one
        ref = source.numbers.remote(BIG + seed, seed)
        pending.append(reader.compare_numbers.remote(ref, BIG + seed, seed))
        del ref
        gc.collect()
    assert ray.get(pending) == [[]] * 7


def test_another_tensor_at_an_address_that_was_registered():
    """ray#65701: a cache by pointer takes a bigger tensor at a recycled address for the old one."""
    seen = set()
    for seed in range(20):
        tensor = numbers((1 + seed % 3) * BIG, seed=seed)
        seen.add(tensor.data_ptr())
        ref = ray.put(tensor, _tensor_transport="TRANSPORT")
        del tensor
        [member] = ray.get([ref])
        assert differences(member, numbers((1 + seed % 3) * BIG, seed=seed)) == []
        del ref, member
    assert len(seen) < 20  # addresses did come again


def test_a_busy_source_is_read(members):
    """One-sided: what its methods do meanwhile does not matter."""
    busy = members[2]
    ref = busy.numbers.remote(BIG)
    ray.wait([ref], fetch_local=False)
    waiting = busy.overwrite.remote(30.0)  # returns once the reference is gone
    assert differences(ray.get(ref, timeout=20), numbers(BIG)) == []
    del ref
    ray.get(waiting, timeout=40)


def test_threads_fetch_at_once_and_do_not_mix_their_tensors(members):
    """ray PR #61280: two threads serialise at once and swap tensors."""
    refs = [members[i % 3].numbers.remote(BIG // 4, i) for i in range(12)]
    wrong = []

    def fetch(i):
        wrong.extend(differences(ray.get(refs[i]), numbers(BIG // 4, seed=i)))

    threads = [threading.Thread(target=fetch, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


def test_very_many_views_of_one_tensor():
    """ray PR #64205: 100,000 views took 1150 ms, for each was a descriptor."""
    base = numbers(20_000 * 4).view(20_000, 4)
    ref = ray.put(list(base.unbind()), _tensor_transport="TRANSPORT")
    assert len(adapter.engine().regions) == 1
    found = ray.get(ref)
    assert differences(torch.stack(found), base) == []


def test_an_object_without_any_tensor(members):
    """ray PR #60076: an empty list of tensors crashed."""
    for value in ([], {}, [torch.empty(0)], None):
        ref = ray.put(value, _tensor_transport="TRANSPORT")
        assert differences(ray.get(ref), value) == []
        assert ray.get(members[0].fetch.remote([ref])) is (value is not None)
