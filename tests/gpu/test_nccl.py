"""The carrier over NCCL: every kind of call against a plain computation, on GPUs that are doubles,
between processes."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import nccl_cases
import nccl_ranks
import pytest
from nccl_cases import Case

from transport.collectives.call import Kind
from transport.collectives.reduction import Premultiplied, Reduction

pytest.importorskip("torch")

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nccl_ranks import Ranks

REDUCING = (Kind.ALL_REDUCE, Kind.REDUCE, Kind.REDUCE_SCATTER)
MOVING = (Kind.ALL_GATHER, Kind.BROADCAST, Kind.ALL_TO_ALL, Kind.GATHER, Kind.SCATTER)
FLOATS = ("float16", "bfloat16", "float32", "float64")
WHOLE = ("int8", "uint8", "int32", "uint32", "int64", "uint64")
SMALL = ("float8_e4m3fn", "float8_e5m2")
NOTHING = {"comms": 0, "scales": 0, "registered": 0, "running": 0}


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    made = nccl_ranks.Ranks(4)
    yield made
    made.close()


@pytest.fixture
def four(ranks: Ranks) -> Iterator[Ranks]:
    """With a carrier of all of them, of which nothing is left afterwards."""
    ranks.all(nccl_ranks.reset)
    ranks.open(4)
    yield ranks
    assert ranks.all(nccl_ranks.end) == [NOTHING] * 4


def check(ranks: Ranks, cases: list[Case], *, coalesced: bool = False) -> None:
    for rank, wrong in enumerate(ranks.all(nccl_cases.check, cases, coalesced)):
        assert wrong == [], f"rank {rank}"


def test_every_kind(four: Ranks) -> None:
    check(four, [Case(kind, root=1) for kind in (*REDUCING, *MOVING)])


@pytest.mark.parametrize("count", [1, 2, 3])
def test_fewer_ranks(ranks: Ranks, count: int) -> None:
    among = range(count)
    ranks.open(count)
    cases = [Case(kind, root=count - 1) for kind in (*REDUCING, *MOVING, Kind.BARRIER)]
    for wrong in ranks.all(nccl_cases.check, cases, among=among):
        assert wrong == []
    assert ranks.all(nccl_ranks.end, among=among) == [NOTHING] * count


def test_layouts_and_places(four: Ranks) -> None:
    """Parts that lie apart, of sizes of their own, of nothing; targets that are the source."""
    kinds = (Kind.REDUCE_SCATTER, *MOVING)
    cases = [Case(kind, root=2, layout=how) for kind in kinds for how in ("apart", "uneven")]
    cases += [
        Case(kind, root=3, in_place=True) for kind in (*REDUCING, Kind.ALL_GATHER, Kind.BROADCAST)
    ]
    cases += [Case(kind, count=0) for kind in (*REDUCING, *MOVING)]
    cases += [Case(Kind.ALL_TO_ALL, count=0, layout="uneven"), Case(Kind.BARRIER)]
    check(four, cases)


def test_dtypes_and_reductions(four: Ranks) -> None:
    plain = (Reduction.SUM, Reduction.PRODUCT, Reduction.MINIMUM, Reduction.MAXIMUM)
    kinds = itertools.cycle(REDUCING)
    cases = [
        Case(next(kinds), dtype, reduction, count=33)
        for dtype in (*FLOATS, *WHOLE, *SMALL)
        for reduction in (*plain, Reduction.AVERAGE)
        if not (dtype in WHOLE and reduction is Reduction.AVERAGE)
    ]
    cases += [Case(Kind.ALL_REDUCE, "bool", reduction, count=33) for reduction in plain]
    cases += [
        Case(Kind.ALL_REDUCE, "complex64", each) for each in (Reduction.SUM, Reduction.AVERAGE)
    ]
    check(four, cases)


def test_dtypes_that_only_move(four: Ranks) -> None:
    check(
        four,
        [
            Case(kind, dtype, count=5)
            for kind in MOVING
            for dtype in ("int16", "complex128", "bool")
        ],
    )


def test_sums_with_factors(four: Ranks) -> None:
    """Each is given back, as its making is the communicator's."""
    check(four, [Case(kind, dtype, Premultiplied(0.5)) for kind in REDUCING for dtype in FLOATS])
    assert four.all(nccl_ranks.knob, "scales") == [0] * 4


def test_one_group(four: Ranks) -> None:
    before = four.all(nccl_ranks.knob, "launches")
    cases = [Case(Kind.ALL_REDUCE, count=size) for size in (1, 100, 1000)]
    check(four, [*cases, Case(Kind.ALL_GATHER, "int64", layout="apart")], coalesced=True)
    assert four.all(nccl_ranks.knob, "launches") == [each + 1 for each in before]


def test_what_is_refused(four: Ranks) -> None:
    cases = [
        Case(Kind.ALL_REDUCE, "int16"),
        Case(Kind.ALL_REDUCE, "complex64", Reduction.MAXIMUM),
        Case(Kind.REDUCE, "bool", Reduction.AVERAGE),
        Case(Kind.REDUCE_SCATTER, "int32", Premultiplied(2.0)),
    ]
    for each in four.all(nccl_cases.refusals, cases):
        assert [bool(why) for why in each] == [True] * 4
