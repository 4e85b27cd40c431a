"""Whether ranks can have NCCL: what rank 0 makes of what all have said."""

from __future__ import annotations

import pytest

from transport.collectives.nccl.agreement import Bench, Standing

ONE = Standing("NCCL 2.30", "u1", "0000:1b:00.0")
OTHER = Standing("NCCL 2.30", "u2", "0000:2b:00.0")


def told(*said: tuple[str, Standing]) -> list[str]:
    bench = Bench()
    return [bench.hear(rank, machine, each).without for rank, (machine, each) in enumerate(said)]


def test_a_gpu_for_each():
    assert told(("a", ONE), ("a", OTHER)) == ["", ""]
    far = Standing("NCCL 2.30", "u3", ONE.address)
    assert told(("a", ONE), ("b", far)) == ["", ""], "addresses are alike on all machines"


@pytest.mark.parametrize(
    ("machine", "second"),
    [
        ("a", ONE),
        ("b", ONE),  # another network namespace of the same machine
        ("a", Standing("NCCL 2.30", "part", ONE.address)),  # a part of the same GPU
    ],
)
def test_a_gpu_that_two_share(machine: str, second: Standing):
    first, other, why = told(("a", ONE), ("a", OTHER), (machine, second))
    assert first == other == ""
    assert why.startswith("ranks 0 and 2 share the GPU")


def test_a_library_that_lets_them_share():
    shares = Standing(ONE.library, ONE.gpu, ONE.address, shares=True)
    assert told(("a", shares), ("a", shares)) == ["", ""]
    assert told(("a", shares), ("a", ONE))[1]
    assert told(("a", ONE), ("a", shares))[1]


def test_other_versions_and_none_at_all():
    newer = Standing("NCCL 2.32", OTHER.gpu, OTHER.address)
    assert told(("a", ONE), ("a", newer))[1] == "rank 1 has NCCL 2.32, rank 0 NCCL 2.30"
    assert told(("a", Standing(without="no such file"))) == ["rank 0 has none: no such file"]
