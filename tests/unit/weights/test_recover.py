"""Recovery: one rank's state from all who have it, each byte from one of them."""

from __future__ import annotations

import pytest
import torch
from states import FULL, grid, local, same

from transport import Engine, LayoutError, Unavailable, weights
from transport.sharding.plan import plan
from transport.weights.recover import alone


@pytest.fixture
def replicas():
    """Rank 1 of a mesh of four replicas of two shards is lost; the others have versions 1 and 2."""
    layout = grid("dp=4,tp=2")
    engines = {rank: Engine(name=f"peer{rank}") for rank in range(8) if rank != 1}
    states = {rank: local(layout, rank) for rank in engines}
    publications = [
        weights.publish(engines[rank], "state", states[rank], 1, layout=layout, rank=rank)
        for rank in engines
    ]
    for publication in publications:
        publication.update(2)
    yield layout, engines
    for publication in publications:
        publication.close()
    for engine in engines.values():
        engine.close()


def addresses(engines):
    return [engine.addresses[0] for engine in engines.values()]


@pytest.mark.parametrize("version", [1, "latest"])
def test_the_lost_rank_is_filled(replicas, version):
    layout, engines = replicas
    into = {n: torch.zeros_like(t) for n, t in local(layout, 1).items()}
    with Engine(name="replacement") as engine:
        done = weights.recover(engine, "state", into, addresses(engines), rank=1, version=version)
    assert done.version == (2 if version == "latest" else 1)
    assert same(into, local(layout, 1))
    assert done.nbytes == sum(tensor.nbytes for tensor in into.values())


def test_all_who_have_it_share_the_work(replicas):
    layout, _ = replicas
    full = {"big": torch.zeros(4096, 256)}
    layout = grid("dp=4,tp=2", full)
    wanted = plan(layout, alone(layout, 1), 1, without={1})
    assert set(wanted.bytes_by_rank) == {3, 5, 7}
    each = 4096 * 256 * 4 / 2 / 3
    assert all(abs(nbytes - each) < 0.05 * each for nbytes in wanted.bytes_by_rank.values())


def test_what_nobody_else_has(replicas):
    layout, engines = replicas
    left = {rank: engine for rank, engine in engines.items() if rank % 2 == 0}
    into = local(layout, 1)
    with Engine() as engine:
        with pytest.raises(Unavailable, match=r"'embed'|'bias'|'norm'"):
            weights.recover(engine, "state", into, addresses(left), rank=1, deadline=0.2)
        with pytest.raises(LayoutError, match="rank 8 takes no part"):
            weights.recover(engine, "state", into, addresses(engines), rank=8)
    lonely = grid("dp=1,tp=2")
    with (
        Engine() as owner,
        Engine() as engine,
        weights.publish(owner, "s", local(lonely, 0), 1, layout=lonely),
        pytest.raises(Unavailable, match="rank 1"),
    ):
        weights.recover(engine, "s", into, owner.addresses[0], rank=1, deadline=0.1)


def test_nothing_else_is_touched(replicas):
    """The planner gives nothing to the ranks that work on."""
    layout, _ = replicas
    target = alone(layout, 1)
    assert target.ranks == (1,)
    assert all(entry.layout.pieces().rank.tolist() in ([], [1]) for entry in target.values())
    assert target.local_shapes(1) == layout.local_shapes(1)
    assert FULL.keys() == target.keys()
