"""Exceptions on their way: what arrives, of whatever was raised or sent."""

from __future__ import annotations

import pickle
import threading
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport import ActorCrashed, ActorError
from transport.mesh import failure


def raised(error):
    try:
        raise error
    except BaseException as caught:
        return caught


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_an_error_too(data):
    error = failure.unpack(data, "a.step", 3, "host")
    assert isinstance(error, ActorError)
    assert error.rank == 3


def test_what_was_raised_is_the_cause():
    packed = failure.pack(raised(KeyError("deep")))
    error = failure.unpack(packed, "a.step", 3, "host")
    assert (error.rank, error.host) == (3, "host")
    assert "a.step raised KeyError on rank 3: 'deep'" in str(error)
    assert "test_failure.py" in error.traceback
    assert isinstance(error.__cause__, KeyError)


def test_what_was_raised_elsewhere_is_printed_once():
    inner = failure.unpack(failure.pack(raised(KeyError("deep"))), "b.step", 1, "host")
    outer = failure.unpack(failure.pack(raised(inner)), "a.step", 3, "host")
    printed = "".join(traceback.format_exception(outer))
    assert printed.count("raise error") == 2  # one of each process
    assert printed.rstrip().endswith(
        "a.step raised ActorError on rank 3: b.step raised KeyError on rank 1: 'deep'"
    )


def test_what_cannot_be_pickled_has_its_traceback_in_its_text():
    class Local(Exception):
        def __reduce__(self):
            raise TypeError("never")

    error = failure.unpack(failure.pack(raised(Local("words"))), "a.step", 3, "host")
    assert "raise error" in str(error)


def test_a_crash_of_ours_arrives_as_it_is_and_one_that_was_raised_as_cause():
    crash = raised(ActorCrashed("gone", rank=7, cause="killed", logs=("a", "b")))
    ours = failure.unpack(failure.pack(crash, own=True), "a.step", 3, "host")
    assert (type(ours), ours.rank, ours.logs) == (ActorCrashed, 7, ("a", "b"))
    theirs = failure.unpack(failure.pack(crash), "a.step", 3, "host")
    assert (type(theirs), theirs.rank) == (ActorError, 3)
    assert isinstance(theirs.__cause__, ActorCrashed)


def test_long_texts_keep_their_end():
    error = failure.unpack(failure.pack(raised(ValueError("x" * 10**6 + "end"))), "a", 0, "")
    assert len(error.traceback) <= 1 << 16
    assert error.traceback.rstrip().endswith("end")


class Wordless(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def test_an_exception_without_words():
    assert "Wordless" in str(failure.unpack(failure.pack(raised(Wordless())), "a", 0, ""))


def test_errors_travel_on():
    crash = ActorCrashed("gone", rank=7, host="h", cause="killed", logs=("a", "b"), traceback="t")
    again = pickle.loads(pickle.dumps(crash))
    assert str(again) == str(crash)
    assert (again.rank, again.host, again.cause, again.logs) == (7, "h", "killed", ("a", "b"))
    with pytest.raises(ActorError, match="gone"):
        raise again


class Hostile(Exception):
    """Does what it was told to when it is looked at, or made again."""

    def __init__(self, where, error):
        super().__init__(where)
        self.where, self.error = where, error

    def __str__(self):
        if self.where == "str":
            raise self.error
        return "hostile"

    def __reduce__(self):
        if self.where == "reduce":
            raise self.error
        return raised_again if self.where == "load" else Hostile, (self.where, self.error)


def raised_again(where, error):
    raise error


@pytest.mark.parametrize("where", ["str", "reduce", "load"])
@pytest.mark.parametrize("kind", [ValueError, SystemExit, GeneratorExit, KeyboardInterrupt])
def test_whatever_an_exception_does_it_is_an_answer(where, kind):
    packed = failure.pack(raised(Hostile(where, kind("no"))))
    got = []
    # Not on the main thread, where a KeyboardInterrupt may be the user's.
    thread = threading.Thread(target=lambda: got.append(failure.unpack(packed, "a.step", 3, "h")))
    thread.start()
    thread.join(60)
    assert got[0].args[0].startswith("a.step raised Hostile on rank 3: ")


def test_the_users_interrupt_is_not_swallowed():
    packed = failure.pack(raised(Hostile("load", KeyboardInterrupt())))
    with pytest.raises(KeyboardInterrupt):
        failure.unpack(packed, "a.step", 3, "h")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("file \udcff not found"),
        type("Odd", (Exception,), {"__str__": lambda self: type("Text", (str,), {})("\udcff")})(),
    ],
)
def test_text_that_is_no_unicode_is_escaped(error):
    got = failure.unpack(failure.pack(raised(error)), "a.step", 3, "h")
    assert r"\udcff" in got.args[0]
    assert r"\udcff" in got.traceback


def test_what_an_exception_carries_is_left_behind_when_it_is_large():
    error = ValueError("big")
    error.data = bytes(65 << 20)
    packed = failure.pack(raised(error))
    assert len(packed) < 1 << 20
    assert "big" in str(failure.unpack(packed, "a.step", 3, "h"))
