"""Whatever actors, results and exceptions do, callers have an answer, and the actor lives on.

The deadline of all calls is far over the time that a test may take: an answer that did not come
fails the test.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import odd_actors
import pytest
from patience import until

import transport
from transport import ActorCrashed, ActorError, this_proc


@pytest.fixture(scope="module")
def mesh():
    with transport.local(2, name="two") as mesh:
        yield mesh


@pytest.fixture(scope="module")
def odd(mesh):
    return mesh.spawn("odd", odd_actors.Async).slice(rank=0)


@pytest.fixture(scope="module")
def plain(mesh):
    return mesh.spawn("plain", odd_actors.Plain).slice(rank=0)


def lives(actor):
    return actor.works.call_one().get(60)


@pytest.mark.parametrize("kind", odd_actors.ODD)
def test_an_endpoint_that_raises(odd, plain, kind):
    for call in (plain.fail, odd.fail, odd.fail_async):
        error = call.call_one(kind).exception(60)
        assert type(error) is ActorError
        assert "on rank 0" in str(error)
    assert lives(odd)
    assert lives(plain)


@pytest.mark.parametrize(
    ("when", "kind"),
    [
        (when, kind)
        for when in ("pickled", "unpickled")
        for kind in odd_actors.KINDS
        if (when, kind) != ("unpickled", "interrupt")  # on the main thread that is Ctrl-C
    ],
)
def test_a_result_that_raises(odd, plain, when, kind):
    for call in (plain.result, odd.result, odd.result_async):
        error = call.call_one(when, kind).exception(60)
        assert type(error) is ActorError
        assert "result" in error.args[0]
        assert "on rank 0" in error.args[0]
    assert lives(odd)
    assert lives(plain)


@pytest.mark.parametrize("kind", odd_actors.KINDS)
def test_an_argument_that_raises(mesh, odd, plain, kind):
    given = odd_actors.Odd("unpickled", kind)
    for call in (plain.fail, odd.fail, odd.fail_async):
        error = call.call_one(given).exception(60)
        assert type(error) is ActorError
    with pytest.raises(ActorError, match=r"bad\.__init__ raised"):
        mesh.spawn("bad", odd_actors.Plain, given)
    assert lives(odd)
    assert lives(plain)


def test_an_interrupt_while_unpickling_is_the_users_on_the_main_thread_only(plain):
    with pytest.raises(KeyboardInterrupt):
        plain.result.call_one("unpickled", "interrupt").get(60)
    with ThreadPoolExecutor(1) as threads:
        call = plain.result.call_one("unpickled", "interrupt")
        error = threads.submit(call.exception, 60).result(120)
    assert "cannot be unpickled here: KeyboardInterrupt" in str(error)


def test_what_failed_to_unpickle_is_the_cause(plain):
    with pytest.raises(ActorError, match=r"plain\.result returned on rank 0 cannot be") as raised:
        plain.result.call_one("unpickled", "surrogate").get(60)
    assert isinstance(raised.value.__cause__, ValueError)


@pytest.mark.parametrize("kind", odd_actors.ODD)
def test_a_constructor_that_raises(mesh, plain, kind):
    with pytest.raises(ActorError, match=r"bad\.__init__ raised"):
        mesh.spawn("bad", odd_actors.Plain, kind)
    assert lives(plain)


@pytest.mark.parametrize("kind", odd_actors.ODD)
def test_a_broadcast_that_raises(mesh, kind):
    one = mesh.spawn("one", odd_actors.Plain).slice(rank=1)
    one.fail.broadcast(kind)
    for _ in range(2):
        with pytest.raises(ActorCrashed, match="in a broadcast"):
            one.works.call_one().get(60)


@pytest.mark.parametrize(
    ("method", "args"), [("fail_in_a_task", ("interrupt",)), ("stop_the_loop", ())]
)
def test_an_event_loop_that_an_endpoint_ends(mesh, method, args):
    one = mesh.spawn("one", odd_actors.Async).slice(rank=1)
    calls = [getattr(one, method).call_one(*args)]
    calls += [
        call for _ in range(20) for call in (one.works.call_one(), one.fail_async.call_one(""))
    ]
    for call in calls:
        error = call.exception(60)  # TimeoutError where there is no answer
        assert error is None or isinstance(error, ActorError)
    until(lambda: one.works.call_one().exception(60))  # a loop answers until it is closed
    with pytest.raises(ActorCrashed, match="event loop"):
        lives(one)


def test_sys_exit_beside_the_code_that_calls_is_an_exception():
    beside = this_proc().spawn("beside", odd_actors.Plain)
    with pytest.raises(ActorError, match="raised SystemExit"):
        beside.exit.call_one().get(60)
    assert lives(beside)
    with pytest.raises(ActorError, match="raised SystemExit"):
        this_proc().spawn("bad", odd_actors.Plain, "exit")


def test_a_spawn_that_fails_leaves_nothing():
    with transport.local(2) as mesh:
        good = mesh.spawn("good", odd_actors.Plain)
        with pytest.raises(ActorError, match=r"bad\.__init__ raised ValueError on rank 1"):
            mesh.spawn("bad", odd_actors.Plain, "surrogate", only=1)
        mesh.replace(1)
        assert good.works.call().get(60).values() == [True, True]
        assert not set(mesh._processes.spawned) - {good.number}
