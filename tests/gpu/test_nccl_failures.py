"""What goes wrong with NCCL: lost ranks, errors that the library finds, calls that hang, versions
that lack what newer ones have. Nothing hangs, and each failure has its type."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import nccl_cases
import nccl_ranks
import pytest
from nccl_cases import Case
from nccl_ranks import Ranks

from transport.collectives.call import Kind
from transport.collectives.reduction import Premultiplied, Reduction
from transport.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidUse,
    NcclError,
    PeerLost,
    TransportError,
    Unavailable,
)

pytest.importorskip("torch")

if TYPE_CHECKING:
    from collections.abc import Iterator

OLD = 21304  # no configuration, no finalize: calls block
SHRINKS = 22703
REVOKES = 22807
SOON = 15.0  # seconds: what is not noticed takes PATIENCE, a minute; a busy machine takes some


@pytest.fixture
def two() -> Iterator[Ranks]:
    made = Ranks(2)
    yield made
    made.close()


@pytest.fixture
def three() -> Iterator[Ranks]:
    made = Ranks(3)
    yield made
    made.close()


def versioned(count: int, version: int, **knobs: int) -> Ranks:
    words = " ".join(f"{name}={value}" for name, value in {"version": version, **knobs}.items())
    return Ranks(count, FAKENCCL=words)


def fails(ranks: Ranks, rank: int) -> tuple[Any, float]:
    ranks.start(rank, nccl_ranks.wait_failed)
    return ranks.answer(rank)


@pytest.mark.parametrize("version", [OLD, SHRINKS, REVOKES, 23203])
def test_a_killed_rank(version: int) -> None:
    ranks = versioned(3, version)
    try:
        ranks.open(3)
        for rank in (0, 1):
            ranks.start(rank, nccl_ranks.start_reduce)
            ranks.answer(rank)
        ranks.start(2, nccl_ranks.vanish)
        for rank in (0, 1):
            error, took = fails(ranks, rank)
            assert isinstance(error, PeerLost), error
            assert took < SOON
            assert "ncclRemoteError" in str(error)
            ranks.start(rank, nccl_ranks.start_reduce)
            assert isinstance(ranks.outcome(rank), PeerLost), "what comes later fails alike"
        assert (
            ranks.all(nccl_ranks.end, among=(0, 1))
            == [{"comms": 0, "scales": 0, "registered": 0, "running": 0}] * 2
        )
    finally:
        ranks.close()


@pytest.mark.parametrize("version", [OLD, 23203])
def test_a_lost_rank_that_the_library_does_not_notice(version: int) -> None:
    """On one machine NCCL does not: whoever does aborts."""
    ranks = versioned(2, version, silent=1)
    try:
        ranks.open(2)
        ranks.start(0, nccl_ranks.start_reduce)
        ranks.answer(0)
        ranks.start(1, nccl_ranks.vanish)
        time.sleep(0.2)
        ranks.start(0, nccl_ranks.abort, PeerLost("rank 1 is lost", peer="rank 1"))
        assert ranks.answer(0) < SOON
        error, took = fails(ranks, 0)
        assert isinstance(error, PeerLost)
        assert error.peer == "rank 1"
        assert took < SOON
    finally:
        ranks.close()


def test_an_error_that_the_library_finds(two: Ranks) -> None:
    two.open(2)
    two.start(0, nccl_ranks.start_reduce)
    two.answer(0)
    two.start(0, nccl_ranks.knobs, async_error=1)
    two.answer(0)
    error, took = fails(two, 0)
    assert isinstance(error, NcclError)
    assert error.errno == 1
    assert "ncclUnhandledCudaError" in str(error)
    assert took < SOON


@pytest.mark.parametrize("version", [OLD, REVOKES])
def test_a_deadline(version: int) -> None:
    """A rank that does not come: the GPU is not left waiting."""
    ranks = versioned(2, version)
    try:
        ranks.open(2)
        ranks.start(0, nccl_ranks.start_reduce, 0.3)
        ranks.answer(0)
        error, took = fails(ranks, 0)
        assert isinstance(error, DeadlineExceeded)
        assert took < 0.3 + SOON
        ranks.start(0, nccl_ranks.knob, "running")
        assert ranks.answer(0) == 0
    finally:
        ranks.close()


@pytest.mark.parametrize("version", [OLD, SHRINKS, REVOKES])
def test_a_call_that_hangs_within_the_library(version: int) -> None:
    """As when a path is connected at its first use, and the peer is not there."""
    ranks = versioned(2, version)
    try:
        ranks.open(2)
        ranks.start(0, nccl_ranks.knobs, hang_launch=1)
        ranks.answer(0)
        begun = time.monotonic()
        ranks.start(0, nccl_ranks.start_reduce, 0.3)
        assert isinstance(ranks.outcome(0), DeadlineExceeded)
        assert time.monotonic() - begun < 0.3 + SOON
    finally:
        ranks.close()


@pytest.mark.parametrize("version", [OLD, 23203])
def test_a_beginning_that_hangs(version: int) -> None:
    ranks = versioned(2, version)
    try:
        begun = time.monotonic()
        ranks.start(0, nccl_ranks.begin, 0, 2, "alone", 0.5)
        error = ranks.outcome(0)
        assert isinstance(error, DeadlineExceeded)
        assert "is every rank there" in str(error)
        assert time.monotonic() - begun < 0.5 + SOON
    finally:
        ranks.close()


def test_an_abort_that_hangs(two: Ranks) -> None:
    """The library does not return: the works end all the same, and close says so."""
    two.open(2)
    two.start(0, nccl_ranks.start_reduce)
    two.answer(0)
    two.start(0, nccl_ranks.knobs, version=SHRINKS, hang_abort=1, silent=1)
    two.answer(0)
    two.start(0, nccl_ranks.fail_function, "ncclCommRevoke")
    two.answer(0)
    two.start(0, nccl_ranks.abort, Cancelled("enough"))
    assert two.answer(0) < SOON
    error, took = fails(two, 0)
    assert isinstance(error, Cancelled)
    assert took < SOON
    begun = time.monotonic()
    two.start(0, nccl_ranks.end)
    two.answer(0)
    assert time.monotonic() - begun < SOON


def test_a_function_that_fails(two: Ranks) -> None:
    two.open(2)
    two.start(0, nccl_ranks.fail_function, "ncclAllReduce")
    two.answer(0)
    two.start(0, nccl_ranks.start_reduce)
    error = two.outcome(0)
    assert isinstance(error, NcclError)
    assert str(error).startswith("ncclAllReduce: ncclInternalError (3): internal error")


# ----------------------------------------------------------------------------------------- groups
@pytest.mark.parametrize("version", [REVOKES, 23203])
def test_shrinking_after_a_loss(version: int) -> None:
    """What is revoked is shrunk, without meeting anew."""
    ranks = versioned(3, version)
    try:
        ranks.open(3)
        for rank in (0, 2):
            ranks.start(rank, nccl_ranks.start_reduce)
            ranks.answer(rank)
        ranks.start(1, nccl_ranks.vanish)
        for rank in (0, 2):
            assert isinstance(fails(ranks, rank)[0], PeerLost)
        begun = time.monotonic()
        assert ranks.all(nccl_ranks.shrink, [1], among=(0, 2)) == [(0, 2), (1, 2)]
        assert time.monotonic() - begun < SOON
        cases = [Case(Kind.ALL_REDUCE), Case(Kind.ALL_GATHER)]
        assert ranks.all(nccl_cases.check, cases, among=(0, 2)) == [[], []]
    finally:
        ranks.close()


def test_shrinking_with_nothing_under_way(three: Ranks) -> None:
    three.open(3)
    assert three.all(nccl_ranks.shrink, [0], among=(1, 2)) == [(0, 2), (1, 2)]
    assert three.all(nccl_cases.check, [Case(Kind.ALL_REDUCE)], among=(1, 2)) == [[], []]


@pytest.mark.parametrize("version", [OLD, SHRINKS])
def test_where_nothing_can_be_shrunk(version: int) -> None:
    """Before revoke an abort is for good: a new communicator is made through the meeting."""
    ranks = versioned(2, version)
    try:
        ranks.open(2)
        ranks.all(nccl_ranks.abort, Cancelled("enough"))
        for rank in (0, 1):
            ranks.start(rank, nccl_ranks.shrink, [1 - rank])
            assert isinstance(ranks.outcome(rank), Unavailable)
        ranks.open(2)
        assert ranks.all(nccl_cases.check, [Case(Kind.ALL_REDUCE)]) == [[], []]
    finally:
        ranks.close()


def test_splitting(three: Ranks) -> None:
    """Two of them in reversed order; the third is in none."""
    three.open(3)
    orders = [(7, 1, 2, 1), (-1, 0, 0, 0), (7, 0, 2, 0)]
    for rank, order in enumerate(orders):
        three.start(rank, nccl_ranks.split, *order)
    for rank in range(3):
        three.answer(rank)
    three.all(nccl_ranks.swap, among=(0, 2))
    assert three.all(nccl_cases.check, [Case(Kind.ALL_GATHER)], among=(2, 0)) == [[], []]


# --------------------------------------------------------------------------------------- versions
def test_an_old_library() -> None:
    """It does what it can, and says what it cannot."""
    ranks = versioned(2, 20804)
    try:
        ranks.open(2)
        plain = [Case(Kind.ALL_REDUCE), Case(Kind.ALL_TO_ALL)]
        assert ranks.all(nccl_cases.check, plain) == [[], []]
        cases = [
            Case(Kind.ALL_REDUCE, "bfloat16"),
            Case(Kind.ALL_REDUCE, reduction=Reduction.AVERAGE),
            Case(Kind.ALL_REDUCE, reduction=Premultiplied(0.5)),
            Case(Kind.ALL_REDUCE, "float8_e5m2"),
            Case(Kind.BROADCAST, "bfloat16"),
        ]
        for found in ranks.all(nccl_cases.refusals, cases):
            assert [bool(why) for why in found] == [True, True, True, True, False]
        ranks.start(0, nccl_ranks.split, 0, 0, 2, 0)
        assert isinstance(ranks.outcome(0), Unavailable)
        assert ranks.all(nccl_ranks.end)[0]["comms"] == 0
    finally:
        ranks.close()


def test_versions_that_differ(two: Ranks) -> None:
    two.start(0, nccl_ranks.knobs, version=22807)
    two.answer(0)
    for rank in (0, 1):
        two.start(rank, nccl_ranks.begin, rank, 2, "differ", 2.0)
    error = two.outcome(1)
    assert isinstance(error, TransportError)
    assert "all ranks need the same" in str(error)
    assert isinstance(two.outcome(0), DeadlineExceeded)


def test_what_rank_0_lacks_all_are_told(two: Ranks) -> None:
    two.start(0, nccl_ranks.fail_function, "ncclGetUniqueId")
    two.answer(0)
    for rank in (0, 1):
        two.start(rank, nccl_ranks.begin, rank, 2, "lacks", 5.0)
    assert isinstance(two.outcome(0), NcclError)
    error = two.outcome(1)
    assert isinstance(error, Unavailable)
    assert "ncclGetUniqueId" in str(error)


def test_tensors_that_are_no_gpus(two: Ranks) -> None:
    two.open(2)
    two.start(0, nccl_ranks.refuse_host)
    assert "carries tensors of GPUs" in two.answer(0)


# ------------------------------------------------------------------------------------------ order
def test_order_with_streams(two: Ranks) -> None:
    """Submitted behind a kernel that still runs; whoever waits on the work comes after it."""
    two.open(2)
    assert two.all(nccl_ranks.behind_a_kernel) == [None, None]


def test_memory_of_the_pool_is_registered_once(two: Ranks) -> None:
    two.open(2)
    assert two.all(nccl_ranks.pooled) == [1, 1]
    assert two.all(nccl_ranks.end) == [{"comms": 0, "scales": 0, "registered": 0, "running": 0}] * 2


def test_closed_right_after_a_call_it_is_not_aborted(two: Ranks) -> None:
    two.open(2)
    assert two.all(nccl_ranks.end_at_once) == [0, 0]


def test_closed(two: Ranks) -> None:
    two.open(2)
    two.all(nccl_ranks.end)
    two.start(0, nccl_ranks.start_reduce)
    assert isinstance(two.outcome(0), InvalidUse)


# ---------------------------------------------------------------------------------- communicators
def join(ranks: Ranks, name: str) -> None:
    for rank in range(len(ranks)):
        ranks.start(rank, nccl_ranks.join, rank, len(ranks), name)
    for rank in range(len(ranks)):
        ranks.answer(rank)


def test_a_communicator_puts_each_call_into_the_stream_at_once(two: Ranks) -> None:
    """Else what the program puts there after two calls would come before the second."""
    join(two, "streamed")
    assert two.all(nccl_ranks.reduce_behind_a_kernel) == [(2, "nccl")] * 2
    two.all(nccl_ranks.leave)


@pytest.mark.parametrize("silent", [0, 1])
def test_a_communicator_that_loses_a_rank(silent: int) -> None:
    """Whether NCCL notices it, or the group alone."""
    ranks = Ranks(3, FAKENCCL=f"silent={silent}")
    try:
        join(ranks, "loss")
        assert ranks.all(nccl_ranks.reduce_behind_a_kernel) == [(2, "nccl")] * 3
        ranks.start(1, nccl_ranks.vanish)
        for rank in (0, 2):
            ranks.start(rank, nccl_ranks.lose)
        for rank in (0, 2):
            name, took = ranks.answer(rank)
            assert name == "RankLost"
            assert took < SOON
    finally:
        ranks.close()
