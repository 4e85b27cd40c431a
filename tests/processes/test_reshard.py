"""Plans carried out between processes: sources that die, freeze and stay behind; Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal

import numpy as np
import pytest

from transport import DeadlineExceeded, Engine, InvalidUse, PeerLost, Settings
from transport.sharding.execute import Execution
from transport.sharding.layout import Layout
from transport.sharding.mesh import Mesh
from transport.sharding.placement import Replicate, Shard
from transport.sharding.state import StateLayout
from transport.testing.processes import PeerProcess
from transport.testing.servant import pattern

WAIT = 60.0
SHAPE = (256, 4096)  # 4 MiB
WAYS = {"shm": {}, "tcp": {"providers": ["tcp"], "listen": "127.0.0.1:0"}}
SOURCE = StateLayout({"w": Layout.placed(SHAPE, "float32", Mesh((2, 2)), [Replicate(), Shard(0)])})
TARGET = StateLayout({"w": Layout.placed(SHAPE, "float32", Mesh((2,)), [Shard(1)])})
SHARD = (SHAPE[0] // 2, SHAPE[1])
NBYTES = SHARD[0] * SHARD[1] * 4
WHOLE = np.concatenate([pattern(seed, NBYTES).view(np.int32).reshape(SHARD) for seed in range(2)])
EXPECTED = WHOLE[:, : SHAPE[1] // 2]
# Some thirty parcels, of which sixteen are under way at a time.
FEW = Settings.from_env(reshard_inflight=1 << 20, liveness=2.0)


@pytest.fixture(params=WAYS)
def sources(request):
    """Four processes, of which two hold the same."""
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(PeerProcess()) for _ in range(4)]
        handles = {}
        for rank, process in enumerate(processes):
            process.call("open", **WAYS[request.param])
            facts = {"seed": rank % 2, "shape": SHARD, "dtype": "float32"}
            handles[rank] = {"w": process.call("make", "w", NBYTES, **facts)}
        yield processes, handles


@pytest.fixture
def engine():
    with Engine(settings=FEW) as engine:
        yield engine


def pulling(engine, handles):
    into = np.zeros(EXPECTED.shape, np.float32)
    return Execution(engine, SOURCE, TARGET, 0, remote=handles, local={"w": into}), into


def is_right(into):
    return np.array_equal(into.view(np.int32), EXPECTED)


@pytest.mark.slow
def test_a_source_that_is_killed_on_the_way_is_replaced(engine, sources):
    processes, handles = sources
    execution, into = pulling(engine, handles)
    with execution:
        execution.run(WAIT)
        victim = max(execution.plan.bytes_by_rank)
        into[...] = 0

        def kill(done, total):
            if processes[victim].process.poll() is None:
                processes[victim].kill()

        report = execution.run(WAIT, kill)
        assert is_right(into)
        assert report.lost == (victim,)
        into[...] = 0
        again = execution.run(WAIT)
        assert is_right(into)
        assert again.lost == ()
        assert victim not in again.ranks
        # The other one that holds the same.
        other = (victim + 2) % 4
        processes[other].kill()
        with pytest.raises(PeerLost, match=f"source rank {other} was lost with 'w'"):
            execution.run(WAIT)


@pytest.mark.slow
@pytest.mark.parametrize("sources", ["tcp"], indirect=True)
def test_a_source_that_freezes(engine, sources):
    """Where there is another it is replaced; where there is none the deadline ends it."""
    processes, handles = sources
    execution, into = pulling(engine, handles)
    with execution:
        execution.run(WAIT)
        victim = max(execution.plan.bytes_by_rank)
        into[...] = 0
        processes[victim].stop()
        with pytest.raises(DeadlineExceeded):
            execution.run(0.3)
        processes[victim].go_on()
        assert execution.run(WAIT).lost == ()
        assert is_right(into)
        into[...] = 0
        processes[victim].stop()
        assert execution.run(WAIT).lost == (victim,)
        assert is_right(into)


@pytest.mark.slow
def test_ctrl_c_leaves_everything_usable(engine, sources):
    _, handles = sources
    execution, into = pulling(engine, handles)
    interrupted = 0
    with execution:
        execution.run(WAIT)
        for k in range(60):
            try:  # around all of it: the alarm may come anywhere
                signal.setitimer(signal.ITIMER_REAL, 1e-4 * (k % 20 + 1))
                execution.run(WAIT)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupted += 1
        into[...] = 0
        execution.run(WAIT)
        assert is_right(into)
    assert interrupted


@pytest.fixture(autouse=True)
def _alarms():
    """An alarm is as Ctrl-C."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.slow
def test_writers_push(engine, sources):
    """Targets do nothing; dtypes are converted by the writer."""
    processes, handles = sources
    source = StateLayout({"w": Layout.whole(SHAPE, "float64")})
    mine = np.arange(WHOLE.size, dtype=np.float64).reshape(SHAPE)
    with Execution(
        engine, source, SOURCE, 0, remote=handles, local={"w": mine}, direction="push"
    ) as execution:
        for version in range(2):
            mine += version
            assert execution.run(WAIT).ranks == (0, 1, 2, 3)
            for rank, shard in enumerate([*np.split(mine, 2)] * 2):
                assert processes[rank].call("content", "w") == shard.astype("f4").tobytes()


@pytest.mark.slow
def test_a_forked_child_neither_uses_nor_ends_it(engine, sources):
    """Memory, parcels and runs are the parent's."""
    _, handles = sources
    execution, into = pulling(engine, handles)
    with execution:
        execution.run(WAIT)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with contextlib.suppress(InvalidUse):
                    execution.run(WAIT)
                    os._exit(2)
                execution.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        into[...] = 0
        execution.run(WAIT)
        assert is_right(into)
