"""Whoever waits drives; nobody waits for somebody who drives for another reason."""

from __future__ import annotations

import os
import queue
import sys
import threading
import time

import pytest
from patience import until

from transport.mesh.wheel import Gate, Wheel, shared

SOON = 30.0


@pytest.fixture(scope="module")
def wheel():
    """One that no actor of this process drives."""
    return Wheel()


@pytest.fixture
def bell(wheel):
    """A descriptor that the wheel watches; `rang` has the threads that handled it."""
    fd, rang = os.eventfd(0, os.EFD_NONBLOCK), queue.SimpleQueue()

    def ring(events):
        os.eventfd_read(fd)
        rang.put(threading.current_thread().name)

    wheel.add(fd, ring)
    yield fd, rang
    wheel.remove(fd)
    os.close(fd)


def test_while_nobody_waits_the_background_thread_handles(bell):
    fd, rang = bell
    for _ in range(3):
        os.eventfd_write(fd, 1)
        assert rang.get(timeout=SOON) == "mesh links"


def test_who_waits_handles_himself(wheel, bell):
    fd, rang = bell
    gate = Gate(wheel)
    waiter = threading.Thread(
        target=wheel.wait, args=(gate, time.monotonic() + SOON), name="waiter"
    )
    waiter.start()
    until(lambda: gate.driver)
    os.eventfd_write(fd, 1)
    assert rang.get(timeout=SOON) == "waiter"
    gate.set()
    waiter.join(SOON)
    os.eventfd_write(fd, 1)
    assert rang.get(timeout=SOON) == "mesh links"


def test_all_waiters_are_let_go_in_any_order(wheel):
    gates, done = [Gate(wheel) for _ in range(4)], queue.SimpleQueue()

    def wait(index):
        done.put((index, wheel.wait(gates[index], time.monotonic() + SOON)))

    threads = [threading.Thread(target=wait, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for index in (2, 0, 3, 1):
        gates[index].set()
        assert done.get(timeout=SOON) == (index, True)
    for thread in threads:
        thread.join(SOON)


def test_a_wait_ends_in_time_and_a_gate_may_be_used_again(wheel):
    gate = Gate(wheel)
    assert not wheel.wait(gate, time.monotonic() + 0.01)
    gate.set()
    assert wheel.wait(gate, 0.0)
    gate.open = False
    assert not wheel.wait(gate, time.monotonic())


def test_duties_come_when_they_said(wheel):
    came, wait = queue.SimpleQueue(), [0.01, 0.01, 1000.0]

    def duty(now):
        if wait[0] < 1000.0:
            came.put(now)
            wait.pop(0)
        return now + wait[0]

    wheel.attend(duty)
    first, second = came.get(timeout=SOON), came.get(timeout=SOON)
    assert second > first
    wheel.dismiss(duty)


def test_later_runs_elsewhere(wheel):
    names = queue.SimpleQueue()
    wheel.later(lambda: names.put(threading.current_thread().name))
    assert names.get(timeout=SOON) == "mesh links"


def test_one_for_each_process():
    assert shared() is shared()
    assert isinstance(shared(), Wheel)


def answer(wheel, gate, seconds):
    """Opens the gate from another thread, after so long; what the wait took of this one's CPU."""
    gate.open = False
    threading.Timer(seconds, gate.set).start()
    begin = time.thread_time()
    assert wheel.wait(gate, time.monotonic() + SOON)
    return time.thread_time() - begin


def test_a_long_wait_sleeps_whatever_the_waits_before_it_took():
    wheel = Wheel()
    gate = Gate(wheel)
    for _ in range(20):
        answer(wheel, gate, 0)  # so fast that it is worth looking
    assert answer(wheel, gate, 0.5) < 0.1
    assert answer(wheel, gate, 0.5) < 0.1


def test_ctrl_c_while_it_lets_go_keeps_no_other_from_driving():
    wheel = Wheel()
    gate, other = Gate(wheel), Gate(wheel)

    def strike(frame, event, _):
        if event == "call" and frame.f_code is Wheel._let_go.__code__:
            sys.setprofile(None)
            raise KeyboardInterrupt

    threading.Timer(0.1, gate.set).start()
    sys.setprofile(strike)
    try:
        with pytest.raises(KeyboardInterrupt):
            wheel.wait(gate, time.monotonic() + SOON)
    finally:
        sys.setprofile(None)
    waiter = threading.Thread(target=wheel.wait, args=(other, time.monotonic() + SOON), daemon=True)
    waiter.start()
    until(lambda: other.driver)
    other.set()
    waiter.join(SOON)
    assert not waiter.is_alive()
