"""What a communicator refuses before anything has begun."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from transport import Communicator, InvalidUse, Premultiplied  # noqa: E402
from transport.collectives.arguments import Arguments  # noqa: E402
from transport.collectives.reduction import Reduction  # noqa: E402

SUM = Reduction.SUM


@pytest.fixture
def of_three():
    return Arguments(1, 3)


@pytest.fixture(scope="module")
def alone():
    with Communicator.join("alone", 0, 1) as comm:
        yield comm


def test_results_are_contiguous_dense_and_their_own(of_three):
    square = torch.ones(6, 6)
    with pytest.raises(InvalidUse, match="not contiguous"):
        of_three.all_reduce(square[:, ::2], None, SUM)
    assert of_three.all_reduce(square[:, ::2], torch.ones(18), SUM).call.source[0].is_contiguous()
    with pytest.raises(InvalidUse, match="shares memory"):
        of_three.all_reduce(square[:3], square[2:5], SUM)
    with pytest.raises(InvalidUse, match="share memory"):
        of_three.all_gather(torch.ones(3), [square[0, :3], square[0, 1:4], square[1, :3]])
    with pytest.raises(InvalidUse, match="shares memory"):
        of_three.all_gather(square[0], square[:3])  # its own place is row 1
    of_three.all_gather(square[1], square[:3])
    with pytest.raises(InvalidUse, match="shares memory"):
        of_three.all_to_all(square, square)
    read_only = np.ones(3)
    read_only.flags.writeable = False
    with pytest.raises(InvalidUse, match="read-only"):
        of_three.all_reduce(read_only, None, SUM)


def test_sizes_and_types_fit(of_three):
    with pytest.raises(InvalidUse, match="4 elements where 3"):
        of_three.all_reduce(torch.ones(3), torch.ones(4), SUM)
    with pytest.raises(InvalidUse, match="one dtype"):
        of_three.all_reduce(torch.ones(3), torch.ones(3).half(), SUM)
    with pytest.raises(InvalidUse, match="no multiple"):
        of_three.reduce_scatter(torch.ones(4), None, SUM)
    with pytest.raises(InvalidUse, match="one for each of 3"):
        of_three.all_gather(torch.ones(2), [torch.ones(2)] * 2)
    with pytest.raises(InvalidUse, match="elements for each rank"):
        of_three.all_gather(torch.ones(2), [torch.ones(3) for _ in range(3)])
    with pytest.raises(InvalidUse, match="torch tensor"):
        of_three.broadcast([1.0], 0)
    with pytest.raises(InvalidUse, match="dense"):
        of_three.broadcast(torch.ones(2, 2).to_sparse(), 0)
    with pytest.raises(InvalidUse, match="needs out="):
        of_three.all_to_all([torch.ones(1)] * 3, None)


@pytest.mark.parametrize("make", [np.ones, torch.ones])
def test_results_are_of_the_kind_that_was_given(make, of_three):
    for asked, shape in (
        (of_three.all_gather(make(()), None), (3,)),
        (of_three.all_gather(make((2, 4)), None), (3, 2, 4)),
        (of_three.gather(make(2), None, 1), (3, 2)),
        (of_three.scatter(make((6, 2)), None, 1), (2, 2)),
        (of_three.scatter([make(5)] * 3, None, 1), (5,)),
        (of_three.reduce_scatter(make((6, 2)), None, SUM), (2, 2)),
        (of_three.all_to_all(make((6, 2)), None), (6, 2)),
    ):
        assert type(asked.result) is type(make(()))
        assert asked.result.shape == shape
        assert asked.call.target[0].data_ptr() == torch.as_tensor(asked.result).data_ptr()


@pytest.mark.parametrize("root", [3, -1, 1.0, None, True])
def test_a_root_is_a_rank(of_three, root):
    with pytest.raises(InvalidUse, match="rank"):
        of_three.broadcast(torch.ones(1), root)


def test_who_gives_what(of_three):
    with pytest.raises(InvalidUse, match="root of a gather alone"):
        of_three.gather(torch.ones(1), torch.ones(3), 0)
    with pytest.raises(InvalidUse, match="root of a reduce alone"):
        of_three.reduce(torch.ones(1), torch.ones(1), 0, SUM)
    with pytest.raises(InvalidUse, match="out= alone"):
        of_three.scatter(torch.ones(3), None, 0)
    with pytest.raises(InvalidUse, match="gives what it scatters"):
        of_three.scatter(None, None, 1)
    with pytest.raises(InvalidUse, match="itself"):
        of_three.send(torch.ones(1), 1, 0)
    with pytest.raises(InvalidUse, match="tag"):
        of_three.send(torch.ones(1), 0, -1)


def test_a_communicator_of_one(alone):
    value = torch.full((3,), 2.0)
    assert alone.all_reduce(value, op="avg").wait() is value
    assert alone.all_reduce(torch.full((3,), 2.0), op=Premultiplied(0.5)).wait().tolist() == [1] * 3
    assert alone.all_gather(value).wait().shape == (1, 3)
    operation = alone.barrier()
    assert operation.wait() is None
    assert operation.done
    assert operation.exception() is None
    assert operation.carrier == operation.provider == "onesided"
    assert operation.elapsed > 0


@pytest.mark.parametrize(
    ("dtype", "op", "why"),
    [
        (torch.int32, "avg", "whole numbers"),
        (torch.float8_e5m2, "sum", "no arithmetic"),
        (torch.complex64, "max", "complex"),
        (torch.bool, Premultiplied(2.0), "whole numbers"),
    ],
)
def test_what_cannot_be_reduced_is_refused(alone, dtype, op, why):
    with pytest.raises(InvalidUse, match=why):
        alone.all_reduce(torch.zeros(2).to(dtype), op=op)


def test_other_words_are_refused(alone):
    with pytest.raises(InvalidUse, match="a reduction is one of"):
        alone.all_reduce(torch.ones(1), op="mean")
    for deadline in (0, -1, float("nan"), "1", True):
        with pytest.raises(InvalidUse, match="deadline"):
            alone.barrier(deadline=deadline)
    with pytest.raises(InvalidUse, match="within coalesced"):  # noqa: SIM117
        with alone.coalesced(), alone.coalesced():
            pass
    with pytest.raises(InvalidUse, match="wait after it"), alone.coalesced():
        alone.all_reduce(torch.ones(1)).wait()
    for rank, size in ((1, 1), (-1, 2), (0, 0), (True, 2), ("0", 1)):
        with pytest.raises(InvalidUse):
            Communicator.join("x", rank, size)
    with pytest.raises(InvalidUse, match="need at="):
        Communicator.join("x", 1, 2)


def test_a_closed_one_says_so():
    comm = Communicator.join("closed", 0, 1)
    comm.close()
    comm.close()
    with pytest.raises(InvalidUse, match="is closed"):
        comm.barrier()
    Communicator.join("closed", 0, 1).close()


def test_calls_outside_of_an_actor_are_refused():
    import transport

    with pytest.raises(InvalidUse, match="for actors"):
        transport.communicator("rank")
