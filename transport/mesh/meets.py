"""Where groups of actors meet, as their owner told this process. May import messages."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transport.mesh.messages import Meet

_told: dict[tuple[int, str], str] = {}
_changed = threading.Condition()
_MOST = 4096


def told(message: Meet) -> None:
    """For whoever reads the owner's link."""
    with _changed:
        _told.pop((message.actor, message.key), None)
        _told[message.actor, message.key] = message.at
        while len(_told) > _MOST:
            _told.pop(next(iter(_told)))
        _changed.notify_all()


def wait(actor: int, key: str, timeout: float) -> str:
    """What the owner told last; waits for the first word. "" after `timeout` seconds."""
    with _changed:
        _changed.wait_for(lambda: (actor, key) in _told, timeout)
        return _told.get((actor, key), "")


def _after_fork_in_child() -> None:
    global _changed
    _changed = threading.Condition()
    _told.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
