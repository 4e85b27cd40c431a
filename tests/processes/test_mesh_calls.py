"""Calls to actors in real processes: what comes back, from whom, in which order."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import traceback

import mesh_actors
import pytest
from patience import until

import transport
from transport import ActorCrashed, ActorError, DeadlineExceeded, InvalidUse


@pytest.fixture(scope="module")
def mesh():
    with transport.local(replica=2, shard=2, name="four") as mesh:
        yield mesh


@pytest.fixture
def probes(mesh):
    return mesh.spawn("probe", mesh_actors.Probe, 10)


def test_call_gives_a_value_for_each(probes):
    values = probes.add.call(1).get(60)
    assert values.sizes == {"replica": 2, "shard": 2}
    assert values.values() == [11] * 4


def flood(one, value, count):
    for _ in range(count):
        one.echo.options(deadline=1).broadcast(value)


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_flood_of_broadcasts_waits_for_who_does_them(mesh, size):
    one = mesh.slice(replica=1, shard=1).spawn("flooded", mesh_actors.Probe)
    value = bytes(size)
    hanging = one.hang.options(deadline=10).call_one()
    until(lambda: one._team.member(3).waiting)
    with pytest.raises(DeadlineExceeded, match="has not done the broadcasts"):
        flood(one, value, min(10_000, (100 << 20) // size))
    with pytest.raises(ActorCrashed):
        hanging.get(60)
    one.echo.broadcast(value)  # to a process that is gone: nobody waits for it
    mesh.replace(3)
    for number in range(5000):
        one.hear.broadcast(number)
    assert one.count_heard.call_one().get(60) == (5000, True)


def test_an_actor_that_floods_itself_does_not_wait_for_itself(mesh):
    one = mesh.slice(replica=0, shard=1).spawn("own", mesh_actors.Probe)
    one.flood_itself.call_one(one, 3000).get(60)
    # Ours is another caller than the actor itself: what it said last may come after our call.
    until(lambda: one.count_heard.call_one().get(60) == (3000, True))


def test_each_actor_knows_where_it_is(mesh, probes):
    values = probes.where.call().get(60)
    for point, (rank, inside, pid) in values:
        assert (rank, inside) == (point.rank, dict(point))
        assert pid != os.getpid()
    assert len({pid for _, (_, _, pid) in values}) == 4
    row = mesh.slice(replica=1).spawn("row", mesh_actors.Probe)
    assert [inside for _, (_, inside, _) in row.where.call().get(60)] == [
        {"shard": 0},
        {"shard": 1},
    ]


def test_settings_hold_for_the_processes_too():
    given = transport.Settings(mesh_lease=1.5, call_deadline=77.0)
    with transport.local(2, settings=given) as mesh:
        probe = mesh.spawn("probe", mesh_actors.Probe)
        mesh.replace(1)
        for there in probe.settings.call().get(60).values():
            assert (there.mesh_lease, there.call_deadline) == (1.5, 77.0)


def test_views_have_the_same_actors(probes):
    probes.slice(replica=1).hear.call("row").get(60)
    probes.flatten("rank").slice(rank=3).hear.call_one("last").get(60)
    assert probes.all_heard.call().get(60).values() == [[], [], ["row"], ["row", "last"]]
    assert probes.rename(shard="tp").sizes == {"replica": 2, "tp": 2}
    assert probes.size() == len(probes) == 4


def test_choose_and_stream(probes):
    assert probes.add.choose(5).get(60) == 15
    assert [future.get(60) for future in probes.add.stream(2)] == [12] * 4


def test_call_one_is_for_one(probes):
    with pytest.raises(InvalidUse, match="replica=2 x shard=2"):
        probes.add.call_one(1)


def test_calls_of_one_caller_keep_their_order(probes):
    one = probes.slice(replica=0, shard=0)
    for number in range(500):
        one.hear.broadcast(number)
    assert one.all_heard.call_one().get(60) == list(range(500))


def test_many_threads_call_at_once(probes):
    sums = []

    def caller(base):
        sums.append([probes.add.call(base + n).get(60).values() for n in range(50)])

    threads = [threading.Thread(target=caller, args=(1000 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    wanted = [[[10 + 1000 * t + n] * 4 for n in range(50)] for t in range(4)]
    assert sorted(sums) == wanted


def test_await_in_an_event_loop(probes):
    async def main():
        got = await asyncio.gather(*(probes.add.call(n) for n in range(20)))
        return [values.values() for values in got], [v async for v in probes.add.stream(1)]

    many, streamed = asyncio.run(main())
    assert many == [[10 + n] * 4 for n in range(20)]
    assert streamed == [11] * 4


def test_large_values_both_ways(probes):
    value = os.urandom(5 << 20)
    assert probes.slice(replica=0, shard=0).echo.call_one(value).get(60) == value


def test_an_exception_comes_back_with_its_traceback(probes):
    with pytest.raises(ActorError) as raised:
        probes.fail.call(KeyError("deep")).get(60)
    error = raised.value
    assert type(error) is ActorError
    assert isinstance(error.__cause__, KeyError)
    assert "mesh_actors.py" in error.traceback
    assert "raise error" not in str(error)  # it is printed with the cause
    assert "raise error" in "".join(traceback.format_exception(error))
    assert error.rank in range(4)
    assert probes.add.call(1).get(60).values() == [11] * 4


def test_an_exception_that_is_made_otherwise_than_it_pickles(probes):
    error = probes.slice(replica=0, shard=0).of_two.call_one().exception(60)
    assert str(error.__cause__) == "it: because"
    assert error.__cause__.why == "because"


def test_what_cannot_be_pickled_comes_back_as_text(probes):
    one = probes.slice(replica=0, shard=0)
    with pytest.raises(ActorError, match="Local on rank 0: words stay") as raised:
        one.unpicklable.call_one().get(60)
    assert raised.value.__cause__ is None
    with pytest.raises(ActorError, match="pickle"):
        one.lock.call_one().get(60)
    with pytest.raises(TypeError, match="pickle"):
        one.echo.call_one(threading.Lock())
    assert one.add.call_one(1).get(60) == 11


def test_wrong_uses_say_what_to_do(mesh, probes):
    with pytest.raises(AttributeError, match="add"):
        probes.nothing
    with pytest.raises(InvalidUse, match="Actor"):
        mesh.spawn("text", str)
    with pytest.raises(InvalidUse):
        probes.add.options(deadline=0)
    with pytest.raises(ActorError, match="TypeError"):
        probes.add.call().get(60)


def test_a_constructor_that_raises(mesh):
    with pytest.raises(ActorError, match="not on 2"):
        mesh.spawn("broken", mesh_actors.Probe, fail_on=2)
    assert mesh.spawn("whole", mesh_actors.Probe).add.call(1).get(60).values() == [1] * 4


def test_async_endpoints_wait_for_each_other(mesh):
    meeting = mesh.slice(replica=0, shard=0).spawn("meeting", mesh_actors.Meeting)
    waiting = [meeting.wait_for_open.call_one(number) for number in range(10)]
    assert meeting.seen.call_one().get(60) == list(range(10))
    meeting.open.call_one().get(60)
    assert [future.get(60) for future in waiting] == list(range(10))
    for method, name in (("fail", "async"), ("cancel", "Cancelled"), ("interrupt", "Keyboard")):
        with pytest.raises(ActorError, match=name):
            getattr(meeting, method).call_one().get(60)


def test_an_async_call_that_is_cancelled_before_it_begins_is_answered(mesh):
    meeting = mesh.slice(replica=0, shard=0).spawn("meeting", mesh_actors.Meeting)
    for _ in range(10):
        cancelling = meeting.cancel_next.call_one()
        waiting = meeting.wait_for_open.call_one(1)
        with pytest.raises(ActorError, match=r"cancelled|Cancelled") as raised:
            waiting.get(60)
        cancelling.get(60)
        if "wait_for_open was cancelled before it began" in str(raised.value):
            return
    pytest.fail("each of them began")


def test_each_async_actor_knows_where_it_is(mesh, probes):
    """Whoever reads its link: its own thread, another actor's, or the one in the background."""
    meetings = mesh.spawn("meeting", mesh_actors.Meeting)
    wanted = [(point.rank, dict(point)) for point, _ in probes.add.call(1).get(60)]
    for _ in range(100):
        calls = [meetings.where.call(), probes.add.call(1), meetings.where_async.call()]
        assert calls[2].get(60).values() == calls[0].get(60).values() == wanted
        calls[1].get(60)


def test_an_actor_does_not_wait_for_itself(mesh, probes):
    one = probes.slice(replica=1, shard=1)
    with pytest.raises(ActorError, match="await the future") as raised:
        one.call_own.call_one(one).get(60)
    assert isinstance(raised.value.__cause__, InvalidUse)
    there = mesh.slice(replica=1, shard=1).spawn("meeting", mesh_actors.Meeting)
    said, seen = there.add_own.call_one(there, 5).get(60)
    assert "await the future" in said
    assert seen == [5]
    assert probes.slice(replica=1, shard=0).call_own.call_one(one).get(60) == 11


def test_a_process_of_plain_actors_is_light(probes):
    assert probes.modules.call().get(60).values() == [[]] * 4


def test_classes_of_the_main_program_travel(tmp_path):
    program = tmp_path / "main.py"
    program.write_text(
        "import transport\n"
        "class Doubler(transport.Actor):\n"
        "    @transport.endpoint\n"
        "    def double(self, x):\n"
        "        return helper(x)\n"
        "def helper(x):\n"
        "    return 2 * x\n"
        "with transport.local(2) as mesh:\n"
        "    print(mesh.spawn('d', Doubler).double.call(21).get(60).values())\n"
    )
    code, out, err = transport_run(program)
    assert (code, out) == (0, "[42, 42]\n"), err


def transport_run(program):
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stdout, done.stderr


class Hidden(transport.Actor):
    @transport.endpoint
    def size(self):
        return 1


def test_an_endpoint_that_would_be_hidden(mesh):
    with pytest.raises(InvalidUse, match="size"):
        mesh.spawn("hidden", Hidden)


def test_discarded_actors_clean_up_and_are_gone(mesh, tmp_path):
    tidy = mesh.spawn("tidy", mesh_actors.Tidy, str(tmp_path / "left"))
    mesh.discard(tidy)
    mesh.discard(tidy)
    with pytest.raises(ActorError, match="no such actor"):
        tidy.nothing.call().get(60)
    until(lambda: len(list(tmp_path.iterdir())) == 4)


def test_a_flood_waits_for_who_reads_it(probes):
    """The process is stopped: what it does not read is bounded here, and arrives in the end."""
    one = probes.slice(replica=0, shard=0)
    pid, member = one.where.call_one().get(60)[2], one._team.member(0)
    os.kill(pid, signal.SIGSTOP)
    block = bytes(16 << 20)

    def flood():
        for _ in range(8):
            one.hear.broadcast(block)

    thread = threading.Thread(target=flood)
    thread.start()
    until(lambda: member.link.full)
    assert thread.is_alive()
    os.kill(pid, signal.SIGCONT)
    thread.join(60)
    assert list(map(len, one.all_heard.call_one().get(60))) == [len(block)] * 8
    assert not member.link.full


def test_stop_lets_actors_clean_up(tmp_path):
    with transport.local(2) as mesh:
        mesh.spawn("tidy", mesh_actors.Tidy, str(tmp_path / "left"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["left.0", "left.1"]
    assert mesh.stopped
    mesh.stop()
    with pytest.raises(InvalidUse, match="stopped"):
        mesh.spawn("late", mesh_actors.Probe)
