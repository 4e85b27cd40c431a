"""A process of a mesh as its owner, or whoever calls its actors, sees it. May import link, future,
failure, payload, messages, process.

It holds the link, the calls that wait for this process and nobody else, and what is known of its
end. Once it is lost it stays lost; what takes its place is another member.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import socket
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transport.errors import ActorCrashed, PeerLost, TransportError
from transport.mesh import failure, payload, reach, rooms
from transport.mesh import messages as m
from transport.mesh.future import Failed
from transport.mesh.link import Link
from transport.mesh.offers import Offers
from transport.mesh.process import Cause
from transport.mesh.window import Window

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from transport.mesh.future import Reply
    from transport.mesh.link import Body
    from transport.mesh.process import Process
    from transport.mesh.rooms import Room
    from transport.mesh.wheel import Wheel

    class Sink(Protocol):
        """Who waits for a reply."""

        def settle(self, index: int, reply: Reply) -> None: ...


_GRACE = 1.0  # seconds: a link that ended is told a moment before why its process did
WORD = 0.5  # the same, where its owner has to say why


@dataclass(slots=True)
class Pending:
    """A call that waits."""

    sink: Sink
    index: int
    what: str  # "Trainer.step"
    end: float


class Answered:
    """A reply that came."""

    __slots__ = ("_answer", "_body", "_member", "_room", "_what")

    def __init__(
        self, member: Member, answer: m.Answer, body: Body, what: str, room: Room | None
    ) -> None:
        self._member = member
        self._answer = answer
        self._body = body
        self._what = what
        self._room = room

    @property
    def failed(self) -> bool:
        return not self._answer.ok

    @property
    def heavy(self) -> bool:
        return self._answer.held

    def value(self) -> Any:
        member = self._member
        if not self._answer.ok:
            raise failure.unpack(self._body, self._what, member.rank, member.host)
        try:
            context = payload.Context(member.name, room=self._room)
            return payload.decode(payload.Payload(self._body, self._answer.held), context)
        except PeerLost as error:
            lost = error.again()  # without its transfer and its frames, which hold the peer
        except TransportError:
            raise
        except BaseException as error:  # what unpickling does is up to who made it
            if failure.is_interrupt(error):
                raise
            raise failure.unreadable(error, self._what, member.rank, member.host) from error
        finally:
            self.drop()
        found = member.lost_with(lost, self._what)
        raise found from (None if found is lost else lost)

    def drop(self) -> None:
        if self._answer.held:
            self._member.taken(self._answer)


class Unreachable:
    """The link of a process to which there is none."""

    full = False

    def await_room(self, end: float) -> None:
        pass

    def begin(self) -> None:
        pass

    def close(self) -> None:
        pass

    def send(self, message: m.Message, body: Body = b"") -> None:
        raise PeerLost("there is no link")


class Member:
    """`ended` is told once, on whichever thread finds it out, after all waiting calls have failed;
    `fault` what an endpoint raised that nobody waits for."""

    def __init__(
        self,
        rank: int,
        host: str,
        name: str,
        sock: socket.socket | Unreachable,
        wheel: Wheel,
        process: Process | None = None,
    ) -> None:
        self.rank = rank
        self.host = host
        self.name = name  # for errors: "rank 3 of trainers"
        self.process = process
        self.ready: m.Ready | None = None
        self.crash: ActorCrashed | None = None
        self.heard = time.monotonic()
        self.stopping = False
        self.told = False  # whether a call failed with its end
        self.on_ready: Callable[[], None] = lambda: None
        self.on_ended: Callable[[Member, ActorCrashed], None] = lambda member, crash: None
        self.on_fault: Callable[[Member, m.Fault, Body], None] = lambda member, fault, body: None
        self.on_meet: Callable[[Member, m.Meet], None] = lambda member, message: None
        self._wheel = wheel
        self._numbers = itertools.count(1)
        self._pending: dict[int, Pending] = {}
        self.window = Window(wheel)
        self.offers = Offers(self.tell)
        self._lock = threading.Lock()
        self._link_lost = 0.0  # when it was, or the process was given up
        self._why = ""
        self._rooms = rooms.shared()
        if not isinstance(sock, Unreachable):
            reach.note(sock)
        self.link: Link | Unreachable = (
            sock if isinstance(sock, Unreachable) else Link(sock, wheel, self._received, self._lost)
        )
        self._near = not isinstance(sock, Unreachable) and sock.family == socket.AF_UNIX

    def begin(self) -> None:
        if self._near:
            self._rooms.admit(self.link)
        self.link.begin()
        if self.process is not None:
            self.process.ended.add_done_callback(
                lambda future: self._process_ended(future.result())
            )

    # -------------------------------------------------------------------------------------- calling
    def ask(self, make: Callable[[int], m.Message], body: Body, pending: Pending) -> None:
        """Sends what `make` makes of a number; its sink hears of it exactly once."""
        number = next(self._numbers)
        with self._lock:
            crash = self.crash
            if crash is None:
                self._pending[number] = pending
        if crash is not None:
            self.told = self.told or pending.sink is not self.window
            pending.sink.settle(pending.index, self._failed(crash, pending.what))
            return
        self._wheel.sooner(pending.end)
        try:
            self.link.send(make(number), body)
        except PeerLost:
            pass  # the link's end is on its way, and fails the call with its cause
        except BaseException:
            self._pending.pop(number, None)
            raise

    def await_room(self, end: float) -> None:
        """Blocks while more waits to be sent than the process reads. Its link's end lets go."""
        if self.link.full:
            self.link.await_room(end)

    def tell(self, message: m.Message, body: Body = b"") -> None:
        """What a lost process does not hear is lost with it."""
        with contextlib.suppress(PeerLost):
            self.link.send(message, body)

    def taken(self, answer: m.Answer) -> None:
        """It is decoded, or nobody will. Takes no lock."""
        self._wheel.later(lambda: self._taken(answer))

    def _taken(self, answer: m.Answer) -> None:
        self.tell(m.Taken(answer.number))
        self._rooms.done(self.link, answer)

    @property
    def waiting(self) -> int:
        """Calls that are not answered."""
        return len(self._pending)

    def check(self, now: float) -> float:
        """Ends what is overdue; when to look again. A process that is ours and hangs is ended; of
        others only the calls are."""
        late = [(n, call) for n, call in tuple(self._pending.items()) if call.end <= now]
        if late and self.process is not None:
            self.end(f"hangs: {late[0][1].what} did not answer within its deadline")
        elif late:
            self._expire(late)
        nearest = self.offers.check(now)
        nearest = min((call.end for call in tuple(self._pending.values())), default=nearest)
        if self._link_lost and self.crash is None:
            return min(nearest if not late else float("inf"), self._check_grace(now))
        return nearest

    def _expire(self, late: list[tuple[int, Pending]]) -> None:
        for number, call in late:
            cause = "did not answer within its deadline"
            error = ActorCrashed(
                f"{call.what}: {self.name} {cause}", rank=self.rank, host=self.host, cause=cause
            )
            call.sink.settle(call.index, Failed(error))
            self._pending.pop(number, None)

    # ------------------------------------------------------------------------------------ receiving
    def _received(self, link: Link, message: m.Message, body: Body) -> None:
        self.heard = time.monotonic()
        if isinstance(message, m.Answer):
            pending = self._pending.get(message.number)
            if pending is not None:
                room = self._rooms.claim(link, message.room)
                answer = Answered(self, message, body, pending.what, room)
                pending.sink.settle(pending.index, answer)
                self._pending.pop(message.number, None)
            elif message.held:
                self.taken(message)  # nobody waits any more
        elif isinstance(message, m.Left):
            self._rooms.left(link, message.number)
        elif isinstance(message, m.Room):
            self._wheel.sooner(self.offers.came(message.number, body))
        elif isinstance(message, m.Ready):
            self.ready = message
            self.on_ready()
        elif isinstance(message, m.Fault):
            self.on_fault(self, message, body)
        elif isinstance(message, m.Meet):
            self.on_meet(self, message)

    # ------------------------------------------------------------------------------------------ end
    def end(self, why: str) -> None:
        """We find that it must not go on: it is ended, and its calls fail with this cause."""
        if self._link_lost:
            return  # it is ending
        self._why = self._why or why
        if self.process is None:
            self.link.close()
            return
        self.process.kill()  # before its link is closed, which would make it end by itself
        self._link_lost = self._link_lost or time.monotonic()
        self._wheel.sooner(self._link_lost + _GRACE)

    def _lost(self, link: Link, error: TransportError) -> None:
        """Why is known once the process has ended; that is waited for a moment."""
        self._rooms.gone(link)
        self._link_lost = self._link_lost or time.monotonic()
        if self.process is None and self._why:
            self.finish(Cause())
            return
        if self.process is not None and self.process.ended.done():
            self.finish(self.process.ended.result())
            return
        if str(error) and not isinstance(error, PeerLost):
            self._why = self._why or str(error)
        self._wheel.sooner(self._link_lost + self._grace)

    def _process_ended(self, cause: Cause) -> None:
        self.link.close()
        self.finish(cause)

    def _check_grace(self, now: float) -> float:
        """Gives up a process that lives on without a link, or after it was killed."""
        if now >= self._link_lost + self._grace:
            if self.process is not None:
                self.process.kill()
            self.link.close()
            self.finish(Cause(text=self._why or "closed its link"))
        return self._link_lost + self._grace

    @property
    def _grace(self) -> float:
        return WORD if self.process is None else _GRACE

    def finish(self, cause: Cause) -> None:
        """All that waits for this process fails. Idempotent."""
        text = self._why or str(cause)
        with self._lock:
            if self.crash is not None:
                return
            self.crash = crash = ActorCrashed(
                f"{self.name}{f' on {self.host}' if self.host else ''} {text}",
                rank=self.rank,
                host=self.host,
                cause=text,
                logs=cause.logs,
            )
            pending, self._pending = tuple(self._pending.values()), {}
            self.told = any(call.sink is not self.window for call in pending)
        for call in pending:
            call.sink.settle(call.index, self._failed(crash, call.what))
        self.on_ended(self, crash)

    def lost_with(self, error: PeerLost, what: str) -> TransportError:
        """What to raise where its memory was lost: why it ended, if it did."""
        if self.process is not None:
            concurrent.futures.wait([self.process.ended], _GRACE)
            if self.process.ended.done():
                self.finish(self.process.ended.result())
        return error if self.crash is None else self._again(self.crash, what)

    def _failed(self, crash: ActorCrashed, what: str) -> Failed:
        return Failed(self._again(crash, what), expected=self.stopping)

    def _again(self, crash: ActorCrashed, what: str) -> ActorCrashed:
        """Each call raises an exception of its own."""
        return ActorCrashed(
            f"{what}: {crash.args[0]}",
            rank=crash.rank,
            host=crash.host,
            cause=crash.cause,
            logs=crash.logs,
        )
