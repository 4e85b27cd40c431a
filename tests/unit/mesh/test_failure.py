"""Exceptions on their way: what arrives, of whatever was raised or sent."""

from __future__ import annotations

import pickle

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
