"""What a process of a mesh does once it is set up: serves its link until it ends.

May import door, link, messages, offers, rooms, stage, process, wheel. The actors run in threads of
their own; whoever drives the wheel answers heartbeats, whatever the actors do.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

from transport.errors import InvalidUse, PeerLost, PeerRefused
from transport.mesh import failure, meets, reach, rooms
from transport.mesh import messages as m
from transport.mesh import wheel as wheels
from transport.mesh.directory import here
from transport.mesh.door import Door
from transport.mesh.link import Link
from transport.mesh.offers import Offers
from transport.mesh.stage import Stage, job

if TYPE_CHECKING:
    from collections.abc import Callable

    from transport.errors import TransportError
    from transport.mesh.link import Body
    from transport.mesh.process import Place

_CLEANUP = 5.0  # seconds that all actors together have to clean up


class Server:
    """The actors of this process, for whoever has a link to it."""

    def __init__(self) -> None:
        self.wheel = wheels.shared()
        self.ended = threading.Event()
        self.code = 0
        self._stages: dict[int, Stage] = {}
        self._links: dict[Link, dict[int, Callable[[], None]]] = {}  # what their answers hold
        self._owner: Link | None = None
        self._owners: weakref.WeakSet[Link] = weakref.WeakSet()  # of meshes with this process
        self.rooms = rooms.shared()
        self._offers: dict[Link, Offers] = {}
        self.door = Door(self.wheel, self._visit)
        self.wheel.attend(self._check_offers)

    def adopt(self, sock: socket.socket, *, owner: bool = False) -> None:
        """Serves who has a mesh with this process, and is told that it serves.

        `owner`: the process is theirs, and ends with this link.
        """
        link = self._link(sock)
        self._owners.add(link)
        if owner:
            self._owner = link
            reach.note(sock)
            if sock.family != socket.AF_UNIX:  # others may be on other hosts, too
                self.door.open_tcp(reach.own_host(sock))
        link.begin()
        with contextlib.suppress(PeerLost):
            link.send(m.Ready(os.getpid(), self.door.text))

    def _visit(self, sock: socket.socket) -> None:
        """Serves who came through the door, proven: they may call actors, and nothing else."""
        self._link(sock).begin()

    def _link(self, sock: socket.socket) -> Link:
        link = Link(sock, self.wheel, self._received, self._lost)
        self._links[link] = {}
        self._offers[link] = Offers(functools.partial(_tell, link))
        if sock.family == socket.AF_UNIX:
            self.rooms.admit(link)
        return link

    @property
    def may_exit(self) -> bool:
        """Whether the process is its mesh's, and not that of a program which spawned here."""
        return self._owner is not None

    def exit(self, code: Any) -> None:
        """Ends the process as sys.exit(code) would."""
        self.code = code if isinstance(code, int) else int(code is not None)
        self.ended.set()

    def forget(self, actor: int) -> None:
        self._stages.pop(actor, None)

    def offers(self, link: Link) -> Offers | None:
        """What the other end has offered for results; None once it is gone."""
        return self._offers.get(link)

    def _check_offers(self, now: float) -> float:
        offers = tuple(self._offers.values())
        return min([each.check(now) for each in offers], default=float("inf"))

    # --------------------------------------------------------------------------------- held answers
    def hold(self, link: Link, number: int, release: Callable[[], None]) -> None:
        """Until the answer with this number is taken."""
        held = self._links.get(link)
        if held is None:
            release()
        else:
            held[number] = release

    def release(self, link: Link, number: int) -> None:
        release = self._links.get(link, {}).pop(number, None)
        if release is not None:
            release()

    # ------------------------------------------------------------------------------------- messages
    def _received(self, link: Link, message: m.Message, body: Body) -> None:
        if isinstance(message, m.Call):
            stage = self._stages.get(message.actor)
            if stage is None:
                self._refuse(link, message, "there is no such actor here (any more)")
                self.rooms.left(link, message.room)
            else:
                stage.put(job(link, message, body, self.rooms.claim(link, message.room)))
        elif isinstance(message, m.Ping):
            with contextlib.suppress(PeerLost):
                link.send(m.Pong(message.number))
        elif isinstance(message, m.Taken):
            self.release(link, message.number)
        elif isinstance(message, m.Left):
            self.rooms.left(link, message.number)
        elif isinstance(message, m.Room):
            self._offered(link, message.number, body)
        elif link in self._owners:
            self._ordered(link, message, body)
        else:
            raise PeerRefused(f"{type(message).__name__} is not for who came through the door")

    def _offered(self, link: Link, number: int, handle: Body) -> None:
        offers = self._offers.get(link)
        if offers is not None:
            self.wheel.sooner(offers.came(number, handle))

    def _ordered(self, link: Link, message: m.Message, body: Body) -> None:
        """What only an owner may say."""
        if isinstance(message, m.Spawn):
            self._spawn(link, message, body)
        elif isinstance(message, m.Forget):
            stage = self._stages.get(message.actor)
            if stage is not None and stage.owner is link:
                stage.put(None)
                self._stages.pop(message.actor, None)
        elif isinstance(message, m.Meet):
            meets.told(message)
        elif isinstance(message, m.Moved):
            here().moved(message.mesh, message.rank, message.door)
        elif isinstance(message, m.Gone):
            here().gone(message.door, message.host, message.cause)
        elif isinstance(message, m.Stop):
            threading.Thread(target=self._stop, args=(link,), name="stop", daemon=True).start()
        elif not isinstance(message, m.Welcome):
            raise PeerRefused(f"{type(message).__name__} is not said to a process of a mesh")

    def _spawn(self, link: Link, message: m.Spawn, body: Body) -> None:
        """One number is one actor. After an interrupt the same message may come again (link.py)."""
        known = self._stages.get(message.actor)
        if known is None or known.owner is not link:  # another's: it takes a given-up actor's place
            self._stages[message.actor] = Stage(self, link, message, body)
        elif known.number != message.number:
            self._refuse(link, message, "there is an actor with this number")

    def _refuse(self, link: Link, message: m.Call | m.Spawn, why: str) -> None:
        if message.number:
            with contextlib.suppress(PeerLost):
                link.send(m.Answer(message.number, False), failure.pack(InvalidUse(why)))

    def _lost(self, link: Link, error: TransportError) -> None:
        held = self._links.pop(link, {})
        self._offers.pop(link, None)
        self.rooms.gone(link)
        if link is self._owner:
            self.ended.set()
        for release in held.values():
            self.wheel.later(release)

    def _stop(self, link: Link) -> None:
        """Actors clean up, each in its own thread; then the process ends, if its owner says so."""
        stages = [s for s in tuple(self._stages.values()) if link in (s.owner, self._owner)]
        for stage in stages:
            stage.put(None)
        end = time.monotonic() + _CLEANUP
        for stage in stages:
            stage.over.wait(max(end - time.monotonic(), 0.0))
        if link is self._owner:
            self.ended.set()
        else:
            link.close()


def _tell(link: Link, message: m.Message) -> None:
    with contextlib.suppress(PeerLost):
        link.send(message)


def serve(sock: socket.socket, place: Place) -> int:
    """Takes the socket; returns the exit code when its other end says stop or is gone.

    Threads of actors may still run then: the caller ends the process (os._exit).
    """
    process = server()
    process.adopt(sock, owner=True)
    process.ended.wait()
    return process.code


_server: tuple[int, Server] | None = None
_making = threading.Lock()


def server() -> Server:
    """This process's, made when it is first asked for."""
    global _server
    with _making:
        if _server is None or _server[0] != os.getpid():
            _server = os.getpid(), Server()
        return _server[1]
