from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.errors import LayoutError
from transport.sharding.parallelism import Parallelism

SIZES = st.integers(1, 6)


def test_sizes_multiply_and_ep_does_not():
    spread = Parallelism.parse("dp=2, fsdp=16,ep=32,tp=8")
    assert spread == Parallelism(dp=2, fsdp=16, ep=32, tp=8)
    assert spread.size == 256
    assert spread.expert_grid == (2, 4, 32, 1)


def test_the_order_of_ranks_does_not_depend_on_how_it_is_written():
    assert Parallelism.parse("tp=4,pp=2") == Parallelism.parse("pp=2,tp=4")
    assert Parallelism.parse("tp=4,pp=2").grid(1).tolist() == [[[4, 5, 6, 7]]]


def test_it_prints_as_it_is_written():
    for text in ("dp=1", "fsdp=8", "pp=2,tp=4", "dp=32,tp=8,ep=256", "tp=8,ep=4,etp=2"):
        assert str(Parallelism.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "write it as in"),
        ("tp", "write it as in"),
        ("tp=0", "sizes of 1"),
        ("tp=-1", "write it as in"),
        ("xp=2", "none of pp, dp, fsdp, tp, ep, etp"),
        ("tp=2,tp=2", "twice"),
        ("fsdp=8,ep=3", "choose ep"),
        ("dp=4,ep=8", "choose ep"),
        ("fsdp=9999999", "over the limit"),
        ("tp=99999999999999999999", "write it as in"),
    ],
)
def test_what_makes_no_sense_is_refused(text, words):
    with pytest.raises(LayoutError, match=words):
        Parallelism.parse(text)


@pytest.mark.parametrize(
    ("text", "grid"),
    [
        ("fsdp=8", (1, 8, 1, 1)),  # without ep experts are cut like everything else
        ("tp=8", (1, 1, 1, 8)),
        ("dp=2,fsdp=4,tp=2", (2, 4, 1, 2)),
        ("dp=32,tp=8,ep=256", (1, 1, 256, 1)),  # over replicas and tensor parallel ranks alike
        ("dp=32,tp=8,ep=64", (4, 1, 64, 1)),
        ("tp=8,ep=4", (2, 1, 4, 1)),  # nobody asked for shards of dimension 0
        ("tp=8,ep=4,etp=2", (1, 1, 4, 2)),
        ("fsdp=1024,ep=64", (1, 16, 64, 1)),
    ],
)
def test_how_experts_see_the_ranks(text, grid):
    assert Parallelism.parse(text).expert_grid == grid


@given(pp=SIZES, dp=SIZES, fsdp=SIZES, tp=SIZES)
def test_every_rank_has_one_place(pp, dp, fsdp, tp):
    spread = Parallelism(pp=pp, dp=dp, fsdp=fsdp, tp=tp)
    ranks = np.concatenate([spread.grid(stage).ravel() for stage in range(pp)])
    assert ranks.tolist() == list(range(spread.size))
    assert spread.experts_of(pp - 1).size == spread.stage_size


@given(layers=st.integers(1, 200), data=st.data())
def test_stages_are_runs_that_differ_by_one_layer(layers, data):
    spread = Parallelism(pp=data.draw(st.integers(1, layers)))
    stages = [spread.stage_of(layer, layers) for layer in range(layers)]
    assert stages == sorted(stages)
    counts = np.bincount(stages, minlength=spread.pp)
    assert counts.max() - counts.min() <= 1
    assert counts.tolist() == sorted(counts.tolist(), reverse=True)


def test_more_stages_than_layers():
    with pytest.raises(LayoutError, match="pp=5 is more than the model's 4 layers"):
        Parallelism(pp=5).stage_of(0, 4)
