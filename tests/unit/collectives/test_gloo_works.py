"""Works of gloo: each ends by its deadline, whatever gloo does."""

from __future__ import annotations

import time

import pytest

from transport import Communicator, DeadlineExceeded, Engine, InvalidUse, RankLost

torch = pytest.importorskip("torch")


@pytest.fixture
def carrier():
    with Engine(name="alone") as engine, Communicator.join("alone", 0, 1, engine=engine) as comm:
        yield comm._seat.carriers._get("gloo", 10)


def endless(carrier, deadline, after):
    """A receive that torch never ends, of real Work."""
    from torch._C._distributed_c10d import _create_work_from_future

    from transport.collectives.gloo import GlooWork
    from transport.collectives.gloo_calls import Message

    future = torch.futures.Future()
    work = GlooWork(carrier, deadline)
    work.begun.append(Message(_create_work_from_future(future), after, None))
    return work, future


@pytest.mark.parametrize("aborted", [False, True])
def test_a_message_that_gloo_forgets_ends(carrier, aborted):
    copied: list[int] = []
    work, future = endless(carrier, 60.0 if aborted else 0.3, lambda: copied.append(1))
    assert not work.wait(0.05)
    if aborted:
        carrier.abort(RankLost("rank 1 is lost", ranks=(1,)))
    begun = time.monotonic()
    with pytest.raises(RankLost if aborted else DeadlineExceeded):
        work.wait(60)
    assert time.monotonic() - begun < 30
    assert work.done()
    future.set_result([torch.ones(1)])  # it comes after all
    time.sleep(0.1)
    with pytest.raises(RankLost if aborted else DeadlineExceeded):
        work.wait(1)
    assert not copied


@pytest.mark.parametrize("deadline", [0, -1, float("nan"), "10"])
def test_what_is_no_deadline_is_refused(deadline):
    with pytest.raises(InvalidUse, match="seconds"):
        Communicator.join("alone", 0, 1, operation_deadline=deadline)
