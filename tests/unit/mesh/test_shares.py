"""Which CPUs and GPUs each process of a machine gets."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport import InvalidUse, Unavailable
from transport.mesh.hosts.shares import cores, cpus_of, gpus_of, visible_gpus

MACHINES = st.integers(1, 40).flatmap(
    lambda count: st.integers(1, 4).map(
        lambda threads: [tuple(range(c * threads, (c + 1) * threads)) for c in range(count)]
    )
)


@given(MACHINES, st.integers(1, 64))
def test_processes_share_the_cores_evenly(machine: list[tuple[int, ...]], count: int):
    shares = [cpus_of(index, count, machine) for index in range(count)]
    assert all(shares)
    times = [sum(cpu in share for share in shares) for core in machine for cpu in core]
    assert max(times) - min(times) <= 1
    sizes = {len(share) // len(machine[0]) for share in shares}
    assert max(sizes) - min(sizes) <= 1


@given(MACHINES, st.integers(1, 64))
def test_a_core_is_not_torn_apart(machine: list[tuple[int, ...]], count: int):
    for index in range(count):
        share = set(cpus_of(index, count, machine))
        assert all(share.issuperset(core) or share.isdisjoint(core) for core in machine)


def test_the_cores_of_this_machine_are_those_that_the_process_may_use():
    assert sorted(cpu for core in cores() for cpu in core) == sorted(os.sched_getaffinity(0))


def test_each_process_sees_its_own_gpus():
    visible = ["4", "5", "GPU-8a", "7"]
    assert gpus_of(1, 2, visible) == {
        "CUDA_VISIBLE_DEVICES": "GPU-8a,7",
        "HIP_VISIBLE_DEVICES": "GPU-8a,7",
    }
    assert gpus_of(0, 0, visible) == {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}


def test_too_few_gpus_are_an_error_that_counts_them():
    with pytest.raises(Unavailable, match=r"process 1 needs 3 .* 4 are there"):
        gpus_of(1, 3, ["0", "1", "2", "3"])
    with pytest.raises(InvalidUse):
        gpus_of(0, -1, [])


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"])
def test_what_the_environment_hides_is_not_given_out(name: str):
    assert visible_gpus({name: "2, 3"}) == ["2", "3"]
    assert visible_gpus({name: ""}) == []
