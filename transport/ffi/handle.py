"""What closable objects share: `with`, idempotent close, refusal after fork, a safe repr.

May import: errors and types. Must not touch C: in a forked child that half is the parent's.
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, NoReturn

from transport.errors import InvalidUse
from transport.types import Closing

if TYPE_CHECKING:
    from typing_extensions import Self


here = os.getpid()
"""This process, without a system call at each use: the hook below keeps it true after a fork."""


def _after_fork_in_child() -> None:
    global here
    here = os.getpid()


os.register_at_fork(after_in_child=_after_fork_in_child)


class Handle(Closing):
    """Base of Engine, Region and the like. A subclass sets `_closed` in its own `close()`."""

    _closed = True  # until the subclass's __init__ has something to close
    _pid = -1
    _instead = "make a new one there"  # what the refusal to be pickled advises
    _loss = ""  # what the ResourceWarning says about the consequence of dropping it unclosed

    def _open(self) -> None:
        """The subclass calls this once there is something to close."""
        self._pid = here
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed or self._ended()

    def _hand_over(self) -> None:
        """For the finalizer of an object that nobody closed. Neither blocks nor touches C."""

    def _ended(self) -> bool:
        """True when its parent was closed, and it with it."""
        return False

    def _describe(self) -> str:
        """What the repr says between the class's name and the state."""
        return ""

    def _check(self) -> None:
        """Raises InvalidUse when the object is closed or belongs to another process."""
        if self._pid not in (here, -1):
            raise foreign(self._noun(), self._pid)
        if self.closed:
            raise InvalidUse(f"this {self._noun()} is closed")

    def _foreign(self) -> bool:
        """True in a child that got the object by fork."""
        return self._pid != here

    def _noun(self) -> str:
        return type(self).__name__.lower()

    def __enter__(self) -> Self:
        self._check()
        return self

    def __reduce__(self) -> NoReturn:
        raise unpicklable(self._noun(), self._instead)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "of another process" if self._foreign() else ""
        words = (type(self).__name__, self._describe(), state)
        return f"<{' '.join(word for word in words if word)}>"

    def __del__(self) -> None:
        if self._closed or self._foreign() or self._ended():
            return
        self._closed = True
        self._hand_over()
        warnings.warn(
            f"unclosed {self._noun()} {self._describe()}{self._loss}",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )


def foreign(noun: str, pid: int, instead: str = "make a new Engine in the child") -> InvalidUse:
    """The error for the use of an object that came here by fork."""
    return InvalidUse(f"this {noun} belongs to process {pid}; {instead}")


def unpicklable(noun: str, instead: str) -> TypeError:
    """The error for what is sent to another process though it has a meaning in this one only."""
    return TypeError(f"{noun} objects belong to their process and are not pickled; {instead}")
