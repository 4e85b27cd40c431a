"""Weights between processes: no torn reads, readers and writers that die, freeze and come back."""

from __future__ import annotations

import os
import signal

import pytest
from patience import until
from possessions import descriptors, uncollected
from states import grid, local
from trainer_child import Publisher, blank, full, versions_in

from transport import Engine, Unavailable, weights
from transport.testing.processes import PeerProcess

pytestmark = pytest.mark.slow


@pytest.fixture
def processes():
    """Starts processes with an engine; ends those that still live."""
    started = []

    def start(**options):
        process = PeerProcess()
        started.append(process)
        process.address = process.call("open", **options)[1][0]
        return process

    yield start
    for process in started:
        process.kill()


PUBLISH = """
from trainer_child import Publisher
servant.publisher = Publisher(servant.engine, **options)
"""


def publisher(start, listen=None, **options):
    process = start(listen=listen) if listen else start()
    process.call("run", PUBLISH, options=options)
    return process


def step(process, version):
    process.begin("run", "servant.publisher.step(version)", version=version)


# --------------------------------------------------------------------------------------- torn reads
READ_OFTEN = """
from trainer_child import read_often
result = read_often(servant.engine, [address], times, checked)
"""


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "live", "patience": 0.0},
        {"mode": "live", "patience": 5.0},
        {"mode": "snapshot", "patience": 0.0},
    ],
    ids=str,
)
def test_a_reader_never_sees_a_mixture(processes, options):
    """A writer that never rests, and two readers."""
    writer = publisher(processes, **options)
    writer.call("run", "servant.publisher.go_on()")
    readers = [processes(), processes()]
    for reader in readers:
        reader.begin("run", READ_OFTEN, address=writer.address, times=20, checked=True)
    results = [reader.answer() for reader in readers]
    writer.call("run", "servant.publisher.stop()")
    assert all(mixed == [] for _, _, mixed in results)
    if options["patience"]:
        assert all(got for got, _, _ in results)


def test_a_reader_that_does_not_look_again_sees_mixtures(processes):
    """What the test above is worth."""
    writer = publisher(processes, mode="live", patience=0.0)
    writer.call("run", "servant.publisher.go_on()")
    reader = processes()
    got, _, mixed = reader.call("run", READ_OFTEN, address=writer.address, times=20, checked=False)
    writer.call("run", "servant.publisher.stop()")
    assert got == 20
    assert mixed


# ------------------------------------------------------------------------------------- who dies
def test_a_writer_that_is_killed_at_any_moment(processes, tmp_path):
    """Two replicas; one is killed in the middle of a step, and comes back, again and again."""
    listen = [f"unix:{tmp_path}/writer{rank}" for rank in range(2)]

    def start(rank, version):
        return publisher(
            processes, listen[rank], mesh="dp=2,tp=1", rank=rank, version=version, keep=2
        )

    writers = [start(rank, 0) for rank in range(2)]
    into = blank()
    with (
        Engine(name="reader") as engine,
        weights.subscribe(engine, "w", into, listen) as subscription,
        uncollected(),
    ):
        subscription.fetch()
        for version in range(1, 7):
            for writer in writers:
                step(writer, version)
            if version % 2:
                writers[version // 2 % 2].kill()
            done = subscription.fetch(deadline=60)
            assert versions_in(into) == {done.version}
            assert done.version in (version - 1, version)
            for rank, writer in enumerate(writers):
                if writer.process.poll() is None:
                    writer.answer()
                else:
                    writers[rank] = start(rank, version)
        # This process has a page of each writer that it reads from, and one for it; of no dead one.
        pages = "/memfd:transport-hazards (deleted)"
        until(lambda: descriptors()[pages] <= 2 * len(writers), descriptors)


def test_readers_that_die_while_they_read_hold_nobody_up(processes):
    """The writer would wait for five minutes for one that lives; the test may take two."""
    with Engine(name="writer") as engine:
        writer = Publisher(engine, mode="live", patience=300.0)
        reader = processes()
        reader.begin("run", STOP_WHILE_READING, address=engine.addresses[0])
        os.waitid(os.P_PID, reader.pid, os.WSTOPPED | os.WNOWAIT)
        assert not writer.publication.wait_for_readers(0.0)
        reader.kill()
        writer.step(1)
        assert writer.publication.version == 1
        assert writer.publication.readers == 0
        writer.publication.close()


STOP_WHILE_READING = """
import os, signal
from trainer_child import blank, versions_in
from transport import weights

def stop(done, total):
    if not stop.stopped:
        stop.stopped = True
        os.kill(os.getpid(), signal.SIGSTOP)

stop.stopped = False
into = blank()
with weights.subscribe(servant.engine, "w", into, [address]) as subscription:
    done = subscription.fetch(progress=stop)
result = done.version, done.attempts, versions_in(into)
"""


@pytest.mark.parametrize("mode", ["live", "snapshot"])
def test_a_reader_that_freezes_begins_again(processes, mode):
    with Engine(name="writer") as engine:
        writer = Publisher(engine, mode=mode, patience=0.1)
        reader = processes()
        reader.begin("run", STOP_WHILE_READING, address=engine.addresses[0])
        os.waitid(os.P_PID, reader.pid, os.WSTOPPED | os.WNOWAIT)
        for version in (1, 2, 3):
            writer.step(version)
        os.kill(reader.pid, signal.SIGCONT)
        assert reader.answer() == (3, 2, {3})
        writer.publication.close()


# ------------------------------------------------------------------------------------- recovery
RECOVER = """
from states import grid, local
from trainer_child import full, versions_in
from transport import weights
layout = grid(mesh, full(0))
state = {name: tensor.fill_(-1) for name, tensor in local(layout, rank, full(0)).items()}
done = weights.recover(servant.engine, "w", state, addresses, rank=rank)
result = done.version, versions_in(state, layout, rank), {n: t.numpy() for n, t in state.items()}
"""


def test_a_lost_rank_comes_back_while_the_others_go_on(processes):
    """Four ranks, 2 replicas x 2 shards; rank 3 is killed."""
    mesh = "dp=2,tp=2"
    ranks = [publisher(processes, mesh=mesh, rank=rank, keep=2) for rank in range(4)]
    for version in (1, 2):
        for process in ranks:
            step(process, version)
        for process in ranks:
            process.answer()
    lost = ranks.pop(3)
    step(lost, 3)
    lost.kill()
    replacement = processes()
    addresses = [process.address for process in ranks]
    replacement.begin("run", RECOVER, mesh=mesh, rank=3, addresses=addresses)
    steps = 3
    while replacement.busy:
        for process in ranks:
            step(process, steps)
        for process in ranks:
            process.answer()
        steps += 1
    version, found, state = replacement.answer()
    assert found == {version}
    assert 2 <= version < steps
    layout = grid(mesh, full(0))
    expected = local(layout, 3, full(version))
    assert all((state[name] == expected[name].numpy()).all() for name in expected)


def test_without_a_replica_there_is_nothing_to_recover(processes):
    process = publisher(processes, mesh="dp=1,tp=2", rank=0)
    layout = grid("dp=1,tp=2", full(0))
    with Engine() as engine, pytest.raises(Unavailable, match=r"first|second"):
        weights.recover(
            engine, "w", local(layout, 1, full(0)), process.address, rank=1, deadline=0.5
        )
