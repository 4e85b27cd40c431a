from __future__ import annotations

import pytest
from answering_child import answering

from transport.cli.child import Child, ChildFailed


def test_answers_errors_and_the_end():
    with Child(answering, 3) as child:
        assert child.pid > 0
        assert child.ask("times", 14) == 42
        with pytest.raises(ChildFailed, match="InvalidUse: not like this"):
            child.ask("invalid")
        with pytest.raises(ChildFailed, match="ZeroDivisionError"):
            child.ask("bug")
        assert child.ask("times", 2) == 6  # an error does not end it
        with pytest.raises(ChildFailed, match="exit status 3"):
            child.ask("crash")


def test_several_work_at_once_and_one_is_killed():
    with Child(answering, 3) as one, Child(answering, 5) as other:
        for child in (one, other):
            child.tell("times", 2)
        assert [child.answer() for child in (one, other)] == [6, 10]
        other.kill()
        with pytest.raises(ChildFailed, match="exit status -9"):
            other.ask("times", 2)
        assert one.ask("times", 3) == 9
