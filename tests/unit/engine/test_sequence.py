"""Steps: prepared transfers one after the other, by one call into C."""

from __future__ import annotations

import numpy as np
import pytest

from transport import Engine, InvalidUse, Read, Write
from transport.engine.sequence import Step, Steps

WAIT = 60.0


@pytest.fixture
def ends():
    with Engine(name="here") as here, Engine(name="there") as there:
        memory = there.empty(4, "uint64")
        memory[:] = 0
        with there.register(memory) as region:
            yield here, memory, region.remote()


def steps_of(here, remote, local, back, expected):
    write = here.prepare(Write(local, remote))
    read = here.prepare(Read(remote, back))
    return [write, read], Steps(here._core, [Step([write]), Step([read], back, expected)])


def test_steps_follow_each_other(ends):
    here, memory, remote = ends
    local, back, expected = (np.zeros(4, np.uint64) for _ in range(3))
    made, steps = steps_of(here, remote, local, back, expected)
    assert not steps.done
    for turn in range(1, 50):
        local[:] = expected[:] = turn
        assert steps.run(WAIT)
        assert steps.done
        assert (back == turn).all()
        assert (memory == turn).all()
    assert [it.runs for it in made] == [49, 49]
    assert made[0].way == made[1].way == "shm (mapped)"


def test_what_was_not_expected_ends_it(ends):
    here, _, remote = ends
    local, back, expected = np.ones(4, np.uint64), np.zeros(4, np.uint64), np.zeros(4, np.uint64)
    _, steps = steps_of(here, remote, local, back, expected)
    assert not steps.run(WAIT)
    assert (steps.at, steps.begun, steps.done) == (1, 1, False)
    expected[:] = 1
    assert steps.run(WAIT)


def test_what_is_closed_ends_it_where_it_comes(ends):
    here, _, remote = ends
    local, back, expected = (np.zeros(4, np.uint64) for _ in range(3))
    made, steps = steps_of(here, remote, local, back, expected)
    made[1].close()
    assert not steps.run(WAIT)
    assert (steps.at, steps.begun) == (1, 0)
    with pytest.raises(InvalidUse, match="closed"):
        made[1].run()


def test_no_time_and_no_engine(ends):
    here, _, remote = ends
    local, back, expected = (np.zeros(4, np.uint64) for _ in range(3))
    _, steps = steps_of(here, remote, local, back, expected)
    assert not steps.run(0.0)
    assert steps.at == 0
    here.close()
    assert not steps.run(WAIT)
    assert steps.at == 0
