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
