from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transport.errors import LayoutError
from transport.sharding.layout import Layout
from transport.sharding.models import llama
from transport.sharding.parallelism import Parallelism
from transport.sharding.places import Places
from transport.sharding.plan import plan
from transport.sharding.rules import named, sharded
from transport.sharding.state import StateLayout
from transport.sharding.traffic import lower_bound, traffic

TABLE = llama.tensors(
    llama.LlamaConfig(
        vocab_size=70,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=4,
    )
)
SPREADS = st.sampled_from(
    ["dp=1", "fsdp=5", "tp=4", "dp=3", "pp=2,tp=2", "dp=2,fsdp=2,tp=2", "fsdp=3,tp=2", "dp=4,tp=2"]
)


def lay(text):
    return sharded(TABLE, Parallelism.parse(text), named(4))


def places(text, near):
    count = Parallelism.parse(text).size
    if near == "apart":
        return None
    process = list(range(count)) if near == "processes" else [None] * count
    return Places(process, [rank // 2 for rank in range(count)])


@given(source=SPREADS, target=SPREADS, near=st.sampled_from(["apart", "hosts", "processes"]))
@settings(max_examples=25, deadline=None)
def test_it_adds_up_what_the_plans_of_all_ranks_say(source, target, near):
    at = places(source, near), places(target, near)
    states = lay(source), lay(target)
    found = traffic(*states, *at)
    counted = np.zeros_like(found.matrix)
    for rank in range(found.matrix.shape[1]):
        one = plan(*states, rank, source_places=at[0], target_places=at[1])
        sent = one.tier > 0
        np.add.at(counted[:, rank], one.source_rank[sent], one.copy_bytes[sent])
        assert found.sent_to.nbytes[rank] == one.nbytes
        assert found.sent_to.transfers[rank] == int(sent.sum())
        assert found.sent_to.wire[rank] == int(one.copy_bytes[one.tier > 1].sum())
    assert np.array_equal(found.matrix, counted)
    assert found.nbytes == found.lower_bound
    assert found.matrix.sum(axis=1).tolist() == found.sent_by.nbytes.tolist()
    assert found.least_busiest <= found.busiest
    assert found.busiest <= found.least_busiest + 4096  # a block


def least(classes, fixed):
    """The bound by definition: over all sets of sources, what only they can send, on average."""
    ranks = range(len(fixed))
    best = Fraction(0)
    for count in range(1, len(fixed) + 1):
        for chosen in itertools.combinations(ranks, count):
            own = sum(volume for members, volume in classes if set(members) <= set(chosen))
            best = max(best, Fraction(own + sum(fixed[rank] for rank in chosen), count))
    return best


def test_the_bound_is_that_of_the_busiest_set_of_sources():
    block = 4096  # less than that is not divided

    def held_by(ranks, blocks):
        size = (blocks * block,)
        return Layout.explicit(size, "uint8", {rank: [((0,), size)] for rank in ranks})

    # Blocks that ranks 0 and 1 share, that 1 and 2 share, and that only 3 has.
    source = {"a": held_by([0, 1], 9000), "b": held_by([1, 2], 600), "c": held_by([3], 100)}
    target = {name: Layout.whole(it.shape, "uint8") for name, it in source.items()}
    found = traffic(StateLayout(source), StateLayout(target))
    wanted = least([((0, 1), 9000), ((1, 2), 600)], [0, 0, 0, 100])
    assert found.busiest == found.least_busiest == wanted * block == 4500 * block
    assert found.imbalance == 1.0
    assert found.max_over_mean == pytest.approx(4500 / (9700 / 4))


def test_what_a_process_has_itself_is_not_counted():
    source, target = lay("fsdp=4"), lay("fsdp=4")
    at = Places(range(4)), Places(range(4))
    assert lower_bound(source, target, *at) == 0
    assert traffic(source, target, *at).nbytes == 0
    assert traffic(source, target, *at).imbalance == 1.0
    assert lower_bound(source, target) == source.nbytes
    elsewhere = Places([1, 2, 3, 0])
    assert lower_bound(source, target, at[0], elsewhere) == source.nbytes


def test_every_rank_is_reported():
    seen = []
    traffic(lay("fsdp=2"), lay("dp=3"), step=seen.append)
    assert seen == [0, 1, 2]


def test_what_cannot_be_planned_is_refused():
    source = StateLayout({"x": Layout.whole((4,), "uint8")})
    target = StateLayout({"y": Layout.whole((4,), "uint8")})
    with pytest.raises(LayoutError, match="'y'"):
        traffic(source, target)
