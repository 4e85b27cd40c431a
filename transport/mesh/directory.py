"""What this process knows of meshes: those it owns, and the members of others that it called.

May import door, member, watch, wheel, config.
"""

from __future__ import annotations

import collections
import os
import threading
import weakref
from typing import TYPE_CHECKING

from transport.config import Settings
from transport.errors import TransportError
from transport.mesh import wheel as wheels
from transport.mesh.door import knock
from transport.mesh.member import WORD, Member, Unreachable
from transport.mesh.process import Cause
from transport.mesh.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transport.mesh.messages import Message
    from transport.mesh.team import Team


_MOST_GONE = 4096


class Directory:
    """One per process."""

    def __init__(self) -> None:
        self.settings = Settings.from_env()
        self.owned: weakref.WeakValueDictionary[bytes, Team] = weakref.WeakValueDictionary()
        self._moved: dict[tuple[bytes, int], str] = {}
        self._members: dict[str, Member] = {}  # by door
        self._gone: dict[str, tuple[str, str]] = {}  # by door: host and cause
        self._told = threading.Condition()
        self._lock = threading.Lock()
        self._dialling: collections.defaultdict[str, threading.Lock]
        self._dialling = collections.defaultdict(threading.Lock)  # one slow door delays no other
        self._wheel = wheels.shared()
        self._watch = Watch(lambda: tuple(self._members.values()), self.settings, self._wheel)

    def moved(self, mesh: bytes, rank: int, door: str) -> None:
        """The owner says that another process has this rank now."""
        self._moved[mesh, rank] = door

    def gone(self, door: str, host: str, cause: str) -> None:
        """The owner says that the process behind this door has ended."""
        with self._told:
            if len(self._gone) >= _MOST_GONE:
                self._gone.pop(next(iter(self._gone)))
            self._gone[door] = host, cause
            self._told.notify_all()
        member = self._members.get(door)
        if member is not None:
            member.host = host
            self._wheel.later(lambda: member.finish(Cause(text=cause)))

    def check(self) -> None:
        self._watch.check()

    def member(self, mesh: bytes, rank: int, door: str, name: str) -> Member:
        """Whoever has this rank, connected now if it was not before; maybe one that crashed."""
        door = self._moved.get((mesh, rank), door)
        member = self._members.get(door)
        if member is not None and member.crash is None:
            return member
        with self._lock:
            dialling = self._dialling[door]
        with dialling:
            member = self._members.get(door)
            if member is None or member.crash is not None:
                member = self._members[door] = self._connect(rank, door, f"rank {rank} of {name}")
            return member

    def _forget(self, door: str, gone: Member) -> None:
        if self._members.get(door) is gone:
            self._members.pop(door, None)

    def _connect(self, rank: int, door: str, name: str) -> Member:
        try:
            sock = knock(door, self.settings.connect_timeout)
        except TransportError as error:
            with self._told:  # its owner knows why
                self._told.wait_for(lambda: door in self._gone, WORD)
            host, cause = self._gone.get(door, ("", f"cannot be reached: {error}"))
            member = Member(rank, host, name, Unreachable(), self._wheel)
            member.finish(Cause(text=cause))
            return member
        member = Member(rank, "", name, sock, self._wheel)
        member.on_ended = lambda gone, crash: self._forget(door, gone)
        member.begin()
        return member


class Elsewhere:
    """The members of a mesh that another process owns; a Team."""

    def __init__(self, mesh: bytes, name: str, doors: Mapping[int, str]) -> None:
        self.id = mesh
        self.name = name
        self.doors = dict(doors)

    @property
    def deadline(self) -> float:
        return here().settings.call_deadline

    def door(self, rank: int) -> str:
        return self.doors.get(rank, "")

    def member(self, rank: int) -> Member:
        return here().member(self.id, rank, self.doors.get(rank, ""), self.name)

    def tell_all(self, message: Message) -> None:
        pass  # the owner's to do

    def check(self) -> None:
        here().check()


_here: tuple[int, Directory] | None = None
_making = threading.Lock()


def here() -> Directory:
    """This process's."""
    global _here
    with _making:
        if _here is None or _here[0] != os.getpid():
            _here = os.getpid(), Directory()
        return _here[1]


def team(mesh: bytes, name: str, doors: Mapping[int, str]) -> Team:
    """Of a mesh that a message names; the owner gets its own back."""
    owned = here().owned.get(mesh)
    return owned if owned is not None else Elsewhere(mesh, name, doors)
