"""One-sided collectives of GPU tensors, on GPUs that are doubles, between processes: every kind
that moves bytes against a plain computation, what streams order, and every way to fail."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import nccl_ranks
import onesided_gpu_ranks as jobs
import pytest
from nccl_cases import Case
from nccl_ranks import Ranks

from transport.collectives.call import Kind

pytest.importorskip("torch")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MOVING = (Kind.ALL_GATHER, Kind.BROADCAST, Kind.ALL_TO_ALL, Kind.GATHER, Kind.SCATTER)
NOTHING = {"ipc_opened": 0, "illegal": 0}
_names = itertools.count()


def join(ranks: Ranks, **options: Any) -> None:
    """All of them; what is a list is of each rank."""
    name = f"g{next(_names)}"
    for rank in range(len(ranks)):
        own = {key: v[rank] if isinstance(v, list) else v for key, v in options.items()}
        ranks.start(rank, jobs.join, rank, len(ranks), name, **own)
    answers = [ranks.outcome(rank) for rank in range(len(ranks))]
    assert answers == [None] * len(ranks)


@pytest.fixture(scope="module")
def started() -> Iterator[Ranks]:
    made = Ranks(3)
    yield made
    made.close()


@pytest.fixture
def three(started: Ranks) -> Iterator[Ranks]:
    """In a communicator, on which nothing is left afterwards."""
    started.all(nccl_ranks.reset)
    join(started)
    yield started
    assert started.all(jobs.leave) == [NOTHING] * 3


@pytest.fixture
def doomed() -> Iterator[Callable[..., Ranks]]:
    """Ranks of which some do not survive the test."""
    made: list[Ranks] = []

    def make(count: int, environment: dict[str, str] | None = None, **options: Any) -> Ranks:
        made.append(Ranks(count, **(environment or {})))
        join(made[-1], **options)
        return made[-1]

    yield make
    for each in made:
        each.close()


def right(ranks: Ranks, cases: list[Case], *, coalesced: bool = False) -> None:
    assert ranks.all(jobs.check, cases, coalesced) == [[]] * len(ranks)


# ------------------------------------------------------------------------------------------- kinds
@pytest.mark.parametrize("count", [0, 1, 7, 176, 3001, 300_007])
def test_every_kind_and_root(three: Ranks, count: int):
    right(
        three, [Case(kind, "uint8", root=root, count=count) for kind in MOVING for root in (0, 2)]
    )


def test_layouts_and_places(three: Ranks):
    """Parts that lie apart, or are views of one tensor, of sizes of their own; in place."""
    kinds = (Kind.ALL_GATHER, Kind.ALL_TO_ALL, Kind.SCATTER)
    cases = [Case(kind, root=1, layout=how) for kind in MOVING for how in ("apart", "whole")]
    cases += [Case(Kind.ALL_TO_ALL, "int16", count=odd, layout="uneven") for odd in (0, 333)]
    cases += [Case(kind, count=777, in_place=True) for kind in (Kind.ALL_GATHER, Kind.BROADCAST)]
    cases += [Case(kind, dtype, count=5) for kind in kinds for dtype in ("bool", "complex128")]
    cases += [Case(kind, dtype, count=65) for kind in kinds for dtype in ("bfloat16", "int64")]
    right(three, [*cases, Case(Kind.BARRIER)])


def test_one_group(three: Ranks):
    right(three, [Case(kind, count=100) for kind in (*MOVING, Kind.BARRIER)], coalesced=True)


@pytest.mark.parametrize("size", [0, 5, 70_001])
def test_messages(three: Ranks, size: int):
    assert three.all(jobs.messages, size) == [0] * 3


@pytest.mark.slow
def test_a_long_broadcast_down_a_tree(doomed: Any):
    """More ranks than all pull from one: chunks of 4 MiB are passed on."""
    ranks = doomed(9)
    right(ranks, [Case(Kind.BROADCAST, "uint8", root=3, count=(4 << 20) + 13)])
    ranks.all(jobs.leave)


@pytest.mark.parametrize("providers", [("tcp", "staged"), ("shm", "tcp", "staged"), ("verbs",)])
def test_without_gpu_ipc(doomed: Any, providers: tuple[str, ...]):
    """As between hosts: by way of pinned host memory, or by RDMA."""
    ranks = doomed(2, providers=providers)
    right(ranks, [Case(kind, count=70_001) for kind in MOVING])
    ranks.all(jobs.leave)


def test_reductions_are_refused(three: Ranks):
    for whys in three.all(jobs.refusals):
        assert all("move tensors of GPUs, and reduce only those of CPUs" in why for why in whys)


# ----------------------------------------------------------------------------------------- streams
@pytest.mark.parametrize("size", [600, 70_001])
@pytest.mark.parametrize("kind", [*MOVING, Kind.SEND])
def test_what_is_being_filled_is_not_offered_yet(doomed: Any, kind: Kind, size: int):
    """A kernel that runs still when the call is made: no stale byte leaves the rank."""
    ranks = doomed(2)
    (early, took, whole), second = ranks.all(jobs.behind_a_kernel, kind, size)
    assert not early
    assert took < 0.2, "the call waited for the GPU"
    assert whole
    assert second[2]
    ranks.all(jobs.leave)


def test_a_target_in_use_is_not_written_to_yet(three: Ranks):
    assert three.all(jobs.target_in_use, 70_001) == [(False, True)] * 3


def test_what_comes_into_the_stream_later_is_not_waited_for(three: Ranks):
    assert three.all(jobs.later_work_is_not_waited_for) == [True] * 3


def test_the_order_of_calls_by_two_carriers(doomed: Any):
    ranks = doomed(2, nccl=True, rules=(("all_gather", "onesided"),))
    assert ranks.all(jobs.by_both) == [("onesided", "nccl", True)] * 2
    ranks.all(jobs.leave)


# ---------------------------------------------------------------------------------- who carries it
def test_ranks_with_a_gpu_each_have_nccl(doomed: Any):
    ranks = doomed(2, nccl=True)
    assert ranks.all(jobs.what_carries) == [("nccl", "nccl", "")] * 2
    ranks.all(jobs.leave)


def test_the_gpu_of_a_rank_is_that_of_its_tensors(doomed: Any):
    """Not the current one, which is another one in each thread."""
    rules = (("all_gather", "onesided"),)
    ranks = doomed(2, {nccl_ranks.VISIBLE: "0,1"}, nccl=True, rules=rules)
    assert ranks.all(jobs.on_its_own_gpu) == [("nccl", "onesided", True)] * 2
    ranks.all(jobs.leave)


def test_ranks_that_share_a_gpu_go_without_nccl(doomed: Any):
    """By the rules that are built in; reductions say why they are not carried."""
    shared = {nccl_ranks.VISIBLE: "0"}
    ranks = doomed(2, shared, nccl=True)
    for carrier, name, text in ranks.all(jobs.what_carries):
        assert (carrier, name) == ("onesided", "Unavailable")
        assert "ranks 0 and 1 share the GPU" in text
        assert "reduce only those of CPUs" in text
    ranks.all(jobs.leave)


@pytest.mark.parametrize("has", [[False, True, True], [True, True, False], [False] * 3])
def test_one_rank_without_the_library_is_enough(doomed: Any, has: list[bool]):
    ranks = doomed(3, nccl=has)
    for carrier, name, text in ranks.all(jobs.what_carries):
        assert (carrier, name) == ("onesided", "Unavailable")
        assert f"rank {has.index(False)} has none" in text
        assert "cannot be opened" in text
    ranks.all(jobs.leave)


# ---------------------------------------------------------------------------------------- failures
@pytest.mark.parametrize("what", ["size", "dtype", "root", "device"])
def test_ranks_that_disagree_all_hear_of_it(three: Ranks, what: str):
    found = three.all(jobs.disagree, what)
    assert all(text.startswith("InvalidUse: ") for text in found), found
    assert three.all(jobs.next_call) == [[]] * 3


@pytest.mark.parametrize("kind", ["held", "moving"])
@pytest.mark.parametrize("after", [0.05, 0.3])
def test_a_rank_that_is_killed_in_a_call(doomed: Any, kind: str, after: float):
    ranks = doomed(3)
    for rank in range(3):
        ranks.start(rank, jobs.die_in_a_call, kind, after, 300_007)
    for rank in (0, 2):
        name, lost, took, later = ranks.answer(rank)
        assert (name, lost, later) == ("RankLost", (1,), "RankLost")
        assert took < 20.0  # of 60 s, on a machine that has other work
    assert ranks.all(jobs.shrink, among=(0, 2)) == [(0, 2, []), (1, 2, [])]


def test_an_abort_while_a_stream_stands_still(doomed: Any):
    ranks = doomed(2)
    first, second = ranks.all(jobs.abort_in_a_call)
    assert first == ("Cancelled", True)
    assert second == ("PeerError", True)


def test_a_stream_that_is_late(doomed: Any):
    ranks = doomed(2)
    assert ranks.all(jobs.late) == ["DeadlineExceeded"] * 2
