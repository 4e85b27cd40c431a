"""What closable objects share, and the gate that keeps native objects alive under their callers."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import threading
import time
import weakref

import pytest

from transport.errors import InvalidUse
from transport.ffi import handle
from transport.ffi.gate import Gate
from transport.ffi.handle import Handle

WAIT = 60.0


# The gate looks at whose code a thread runs: what is inside must be of this package.
_VISIT = """
def visit(gate, inside):
    with gate:
        return inside()
"""


def visit(gate, inside):
    """Runs `inside` within the gate as the package's own code does."""
    scope = {"__name__": "transport.visitor"}
    exec(_VISIT, scope)
    return scope["visit"](gate, inside)


class Thing(Handle):
    def __init__(self, log=None):
        self.log = [] if log is None else log
        self._open()

    def close(self):
        if not self._closed:
            self._closed = True
            self.log.append("closed")

    def _hand_over(self):
        self.log.append("handed over")

    def _describe(self):
        return "number 7"


def test_with_closes_once():
    with Thing() as thing:
        assert not thing.closed
    thing.close()
    assert thing.closed
    assert thing.log == ["closed"]
    with pytest.raises(InvalidUse, match="this thing is closed"), thing:
        pass


def test_repr_works_in_every_state(monkeypatch):
    thing = Thing()
    assert repr(thing) == "<Thing number 7>"
    monkeypatch.setattr(handle, "here", -2)
    assert "of another process" in repr(thing)
    monkeypatch.undo()
    thing.close()
    assert repr(thing) == "<Thing number 7 closed>"


def test_it_is_not_pickled_and_says_what_to_send():
    thing = Thing()
    for use in (pickle.dumps, copy.copy):
        with pytest.raises(TypeError, match="thing objects belong to their process"):
            use(thing)
    thing.close()


def test_a_dropped_object_warns_and_is_handed_over():
    log = []
    with pytest.warns(ResourceWarning, match="unclosed thing number 7"):
        Thing(log)  # CPython frees it at once
    assert log == ["handed over"]


def test_after_fork_it_refuses_and_is_silent(monkeypatch):
    thing = Thing()
    pid = handle.here
    monkeypatch.setattr(handle, "here", -2)
    with pytest.raises(InvalidUse, match=f"belongs to process {pid}; make a new Engine"):
        thing._check()
    log = thing.log
    del thing
    assert log == []


def test_an_object_whose_init_failed_is_silent():
    class Broken(Thing):
        def __init__(self):
            raise RuntimeError

    with pytest.raises(RuntimeError):
        Broken()


def test_gate_lets_in_until_it_is_shut():
    gate = Gate("engine")
    with gate:
        pass
    assert gate.shut(1)
    with pytest.raises(InvalidUse, match="this engine is closed"), gate:
        pass


def test_shutting_waits_for_those_inside():
    gate, left = Gate("engine"), []
    inside, leave = threading.Event(), threading.Event()

    def stay():
        inside.set()
        leave.wait(WAIT)
        left.append(1)

    thread = threading.Thread(target=visit, args=(gate, stay))
    thread.start()
    inside.wait()
    assert not gate.shut(0.01)
    threading.Timer(0.1, leave.set).start()
    assert gate.shut(WAIT)
    assert left == [1]
    thread.join()


def test_gate_after_fork(monkeypatch):
    gate = Gate("engine")
    monkeypatch.setattr(handle, "here", -2)
    with pytest.raises(InvalidUse, match="make a new Engine"), gate:
        pass


def test_gate_knows_who_is_inside():
    gate = Gate("engine")
    assert not gate.holds_this_thread()
    seen = []

    def look():
        assert gate.holds_this_thread()
        thread = threading.Thread(target=lambda: seen.append(gate.holds_this_thread()))
        thread.start()
        thread.join()

    visit(gate, look)
    assert seen == [False]
    assert not gate.holds_this_thread()


def test_what_ctrl_c_left_behind_does_not_keep_the_gate_open():
    gate = Gate("engine")
    ended = threading.Thread(target=gate.__enter__)
    ended.start()
    ended.join()
    gate.__enter__()  # and no __exit__, as when Ctrl-C comes at its first instruction
    assert not gate.holds_this_thread()
    gate.__enter__()
    began = time.monotonic()
    assert gate.shut(WAIT)
    assert time.monotonic() - began < WAIT / 2


def test_who_enters_while_strays_are_looked_for_stays_inside(monkeypatch):
    """An engine was freed below a call that began between the look and what followed from it."""
    gate = Gate("engine")
    begin, inside, leave = (threading.Event() for _ in range(3))
    look = sys._current_frames

    def stay():
        inside.set()
        leave.wait(WAIT)

    def enter():
        begin.wait(WAIT)
        visit(gate, stay)

    def look_and_be_overtaken():
        frames = look()
        begin.set()
        inside.wait(WAIT)
        return frames

    thread = threading.Thread(target=enter)
    thread.start()
    monkeypatch.setattr(sys, "_current_frames", look_and_be_overtaken)
    assert not gate.holds_this_thread()
    monkeypatch.undo()
    assert not gate.shut(0.01)
    leave.set()
    assert gate.shut(WAIT)
    thread.join()


def test_looking_for_strays_keeps_nobodys_variables():
    """CPython crashes when its collector finds a memoryview among them."""
    gate = Gate("engine")

    def look():
        thing = threading.Event()
        gate.holds_this_thread()
        return weakref.ref(thing)

    gc.disable()
    try:
        assert look()() is None
    finally:
        gc.enable()
