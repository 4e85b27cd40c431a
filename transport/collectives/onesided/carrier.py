"""The carrier "onesided": calls under way, who drives them, and how they end.

May import task, moves, reduces, message, arena, call, carrier, group, hub, engine and errors.
Whoever waits for a call hears what peers say and takes every call a step further; while nobody
waits a thread of the carrier does.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from transport.collectives.call import Kind, gpu_of
from transport.collectives.onesided import moves, reduces
from transport.collectives.onesided.message import Lane, Message, What, decode
from transport.collectives.onesided.post import WINDOW, Post, lost_ranks
from transport.collectives.onesided.task import Key, Task
from transport.collectives.reduction import Premultiplied
from transport.engine.batch import Read
from transport.engine.streams import Stream, current_stream, stream_of
from transport.errors import (
    DeadlineExceeded,
    InvalidUse,
    PeerError,
    PeerLost,
    RankLost,
    TransportError,
)
from transport.memory.device import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from transport.collectives.call import Call
    from transport.collectives.carrier import Work
    from transport.collectives.group import Group
    from transport.collectives.hub import Note
    from transport.engine.transfer import Transfer

_IDLE = 500  # looks of the thread at nothing before it sleeps
_EARLY = 8 * WINDOW  # messages of one rank for calls that have not begun here
_PAST = 2 * WINDOW  # ordered calls of which it is remembered what they were
_SLICE = 0.02  # seconds of one look at what peers say
_BOARDING = 0.001  # the same while some talk by the mailbox and some by their boards
_MOVE = 0.002  # seconds that a transfer is waited for before a look at what peers say


class Moment(NamedTuple):
    """Transfers that end when GPUs' streams have done what they had to do when it was made."""

    ready: tuple[Transfer, ...]


class OneSided:
    """Calls of CPU and GPU tensors by one-sided transfers. Made by all ranks of a group, whose
    mailboxes are open; from then on the group's mailbox is this carrier's to read."""

    name = "onesided"
    driven = True

    def __init__(self, group: Group) -> None:
        self._post = Post(group)
        self._ranks = {peer.incarnation: rank for rank, peer in enumerate(group.peers)}
        self._mailbox = group.mailbox
        self._own_door = group.peers[group.rank].door
        self._nothing = bytearray(1)
        self._tasks: dict[Key, Task] = {}
        self._early: dict[Key, list[tuple[int, Message]]] = {}
        self._n_early = [0] * group.size
        self._past: dict[int, str] = {}  # what ordered calls were that have ended well
        self._messages: defaultdict[tuple[Lane, int, int], int] = defaultdict(int)  # SEND and RECV
        self._lost: dict[int, TransportError] = {}  # written by the control thread
        self._broken: TransportError | None = None
        self._closed = False
        self._state = threading.RLock()  # of all the above
        self._wheel = threading.Lock()  # whoever has it listens to the mailbox
        self._wanted = 0  # threads that wait
        self._waits = 0  # that there were
        self._ended = threading.Condition()
        self._stirred = threading.Event()
        self._thread: threading.Thread | None = None
        self._unwatch = group.hub.watch(self._on_lost)
        for rank, peer in enumerate(group.peers):
            if rank != group.rank and peer.lost is not None:
                self._lost[rank] = peer.lost

    # ------------------------------------------------------------------------------------- carrier
    def refusal(self, call: Call) -> str:
        """See Carrier."""
        parts = (*call.source, *call.target)
        kinds = {part.device.type for part in parts}
        if not kinds <= {"cpu", *KINDS}:
            return "one-sided collectives are of CPU and GPU tensors"
        if call.kind in reduces.ALL and kinds - {"cpu"}:
            return "one-sided collectives move tensors of GPUs, and reduce only those of CPUs"
        if call.kind in reduces.ALL and parts:
            return reduces.refusal(parts[0].dtype, call.reduction)
        return ""

    def moment(
        self, calls: Sequence[Call], stream: Any, before: Iterable[Work], deadline: float
    ) -> Any:
        """See Carrier. A transfer of one byte waits for the stream: whoever drives wakes by it."""
        gpus = sorted({gpu for call in calls if (gpu := gpu_of(call)) is not None})
        if not gpus:
            return stream
        made: list[Transfer] = []
        given = None if stream is None else stream_of(stream)
        if given is not None:
            gpus = gpus[:1] if given.device is None else [given.device]
        for gpu in gpus:
            at = Stream(current_stream(gpu) if given is None else given.handle, gpu)
            for work in before:
                with contextlib.suppress(TransportError):  # who called it is told
                    work.wait_on(at)
            look = Read(self._own_door, self._nothing)
            made.append(self._post.engine.submit([look], deadline=deadline, stream=at))
        return Moment(tuple(made))

    def begin(self, calls: Sequence[Call], stream: Any, deadline: float) -> Begun:
        """See Carrier. Nothing of a call on GPUs is offered or written before its moment."""
        if not isinstance(stream, Moment):
            stream = self.moment(calls, stream, (), deadline)
        ready = stream.ready if isinstance(stream, Moment) else ()
        with self._state:
            if self._broken is None:
                with contextlib.suppress(PeerLost):  # the hub tells
                    self._post.greet()
            tasks = [self._open(call, deadline, ready) for call in calls]
            self._advance()
        if not all(task.ended for task in tasks):
            self._stir()
        return Begun(self, tasks)

    def abort(self, error: TransportError) -> None:
        """See Carrier."""
        self._break(error)
        if self._state.acquire(timeout=_SLICE):  # else whoever has it is about to look
            try:
                self._advance()
            finally:
                self._state.release()
        self._stir()

    def close(self) -> None:
        """See Carrier."""
        self.abort(InvalidUse("this communicator is closed"))
        with self._wheel, self._state:  # nobody looks at memory of peers any more
            if self._closed:
                return
            self._closed = True
            self._unwatch()
            self._post.close()
        self._stirred.set()

    # ------------------------------------------------------------------------------------- driving
    def drive(self, work: Begun, timeout: float) -> bool:
        """Until the work is done; False after `timeout` seconds."""
        until = time.monotonic() + timeout
        self._wanted += 1
        self._waits += 1
        try:
            while not work.done():
                left = until - time.monotonic()
                if left <= 0:
                    return False
                if self._wheel.acquire(blocking=False):
                    self._drive_with_wheel(work, until)
                    continue
                with self._ended:
                    if not work.done():
                        self._ended.wait(min(left, _SLICE))
            return True
        finally:
            self._wanted -= 1

    def _drive_with_wheel(self, work: Begun, until: float) -> None:
        try:
            while not work.done() and (left := until - time.monotonic()) > 0:
                self._turn(min(left, _SLICE))
        finally:
            self._wheel.release()
            if self._wanted > 1:  # another takes the wheel
                with self._ended:
                    self._ended.notify_all()

    def _turn(self, slice_: float) -> None:
        moving = self._moving()
        if moving is not None:
            with contextlib.suppress(TransportError, TimeoutError):  # its task sees it
                moving.wait(min(slice_, _MOVE))
            slice_ = 0.0
        try:
            self._listen(slice_)
        except TransportError as error:  # the mailbox has ended
            self._break(error)
        with self._state:
            self._advance()

    def _listen(self, slice_: float) -> None:
        """Hears what peers have said; waits so long for the first of it."""
        board, boarded, note = self._post.board, self._post.boarded, None
        if board is not None and boarded:
            if slice_ > 0:
                board.wait(slice_)
            slice_ = 0.0
        elif board is not None:
            slice_ = min(slice_, _BOARDING)
        if not boarded or self._mailbox.unread:
            note = self._mailbox.wait(slice_)
        with self._state:
            while note is not None:
                self._hear(note)
                note = self._mailbox.wait(0.0)
            self._overhear()

    def _overhear(self) -> None:
        """Takes what is on the boards. Within the state."""
        try:
            while (found := self._post.overhear()) is not None:
                self._hear_from(*found)
        except PeerError as error:
            self._break(error)

    def _moving(self) -> Transfer | None:
        with self._state:
            for task in self._tasks.values():
                if (found := task.moving) is not None:
                    return found
        return None

    def _stir(self) -> None:
        """So that calls go on when nobody waits for them."""
        if self._thread is None:
            with self._state:
                self._start_thread()
        if not self._stirred.is_set():
            self._stirred.set()

    def _start_thread(self) -> None:
        if self._thread is None and not self._closed:
            made = threading.Thread(target=self._tend, name="transport-onesided", daemon=True)
            self._thread = made
            made.start()

    def _tend(self) -> None:
        idle = 0
        while not self._closed or self._tasks:
            self._stirred.wait()
            waits = self._waits
            time.sleep(_MOVE)
            if self._tasks:
                idle = 0
                if self._waits == waits:  # else somebody looks after his calls himself
                    self._go_on()
            else:
                idle += 1
            if idle > _IDLE and not self._closed:  # calls that follow each other wake nobody
                self._stirred.clear()
                idle = 0
                if self._tasks:
                    self._stirred.set()

    def _go_on(self) -> None:
        """While nobody waits."""
        while self._tasks and not self._wanted and self._wheel.acquire(blocking=False):
            try:
                self._turn(_MOVE)
            finally:
                self._wheel.release()
                with self._ended:
                    self._ended.notify_all()

    # ---------------------------------------------------------------------------------------- calls
    def _open(self, call: Call, deadline: float, ready: Sequence[Transfer]) -> Task:
        """Within the state."""
        task = Task(self._post, self._key(call), call, signature(call), deadline, ready)
        self._tasks[task.key] = task
        task.steps = self._steps(task)
        for rank, message in self._early.pop(task.key, ()):
            self._n_early[rank] -= 1
            self._hear_of(task, rank, message)
        return task

    def _key(self, call: Call) -> Key:
        if call.kind not in (Kind.SEND, Kind.RECV):
            return Key(Lane.ORDERED, self._post.open())
        lane = Lane.SEND if call.kind is Kind.SEND else Lane.RECV
        counter = lane, call.peer, call.tag
        number = self._messages[counter]
        self._messages[counter] += 1
        return Key(lane, number, call.peer, call.tag)

    def _steps(self, task: Task) -> Any:
        yield from task.get_ready()
        while self._post.crowded(task.key):
            yield None
        steps = moves.ALL.get(task.call.kind) or reduces.ALL[task.call.kind]
        yield from steps(task)

    def _advance(self) -> None:
        """Takes every call as far as it goes. Within the state."""
        if self._lost and self._broken is None:
            self._finish_what_came()
            self._break(lost_ranks(dict(self._lost)))
        ended = False
        for task in list(self._tasks.values()):
            if not task.over:
                self._step(task)
            if task.over and task.quiet:
                del self._tasks[task.key]
                self._remember(task)
                task.bury()
                self._post.ended(task.key)
                ended = True
        if ended and self._broken is None:
            with contextlib.suppress(TransportError):  # who is lost is told soon
                self._post.tell()
        if ended and self._wanted:
            with self._ended:
                self._ended.notify_all()

    def _remember(self, task: Task) -> None:
        if task.key.lane is Lane.ORDERED:
            self._past.pop(task.key.number - _PAST, None)
            if task.error is None:
                self._past[task.key.number] = task.sign

    def _break(self, error: TransportError) -> None:
        """The first error counts. Kept without its frames, which look into memory of peers."""
        self._broken = self._broken or error.again()

    def _finish_what_came(self) -> None:
        """A rank may leave after its last call: what it said before that still counts."""
        with contextlib.suppress(TransportError):  # the mailbox has ended
            while (note := self._mailbox.wait(0.0)) is not None:
                self._hear(note)
        self._overhear()
        for task in list(self._tasks.values()):
            if not task.over:
                self._step(task)

    def _step(self, task: Task) -> None:
        if self._broken is not None:
            self._fail(task, self._broken)
            return
        try:
            if time.monotonic() > task.end:
                raise DeadlineExceeded(f"{task.sign} has not ended within its deadline")
            assert task.steps is not None
            next(task.steps)
        except StopIteration:
            task.stop(None)
        except TransportError as error:
            self._fail(task, error)
        except Exception as error:  # of torch: memory, say
            failure = TransportError(f"{task.sign}: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self._fail(task, failure)

    def _fail(self, task: Task, error: TransportError) -> None:
        """Ends it here, and lets the others know."""
        if isinstance(error, PeerLost) and not isinstance(error, RankLost):
            error = self._post.whose(error)
            self._break(error)
        task.stop(error.again())
        self._post.failed(task.key, error)

    # ------------------------------------------------------------------------------- what peers say
    def _hear(self, note: Note) -> None:
        """Within the state."""
        rank = self._ranks.get(note.peer)
        if rank is not None and rank != self._post.rank:
            self._hear_from(rank, note.payload)

    def _hear_from(self, rank: int, payload: bytes) -> None:
        try:
            message = decode(payload)
            if self._post.hear(rank, message):
                return
            self._route(rank, message)
        except PeerLost:
            pass  # the hub tells
        except TransportError as error:
            text = f"rank {rank} broke the protocol of collectives: {error}"
            self._break(PeerError(text, peer=self._post.name_of(rank)))

    def _route(self, rank: int, message: Message) -> None:
        key = Key(message.lane, message.number)
        if message.lane is not Lane.ORDERED:
            key = Key(message.lane, message.number, rank, message.tag)
        task = self._tasks.get(key)
        if task is not None:
            self._hear_of(task, rank, message)
        elif message.what is What.OFFER and self._broken is not None:
            self._post.failed(key, self._broken, [rank])
        elif not self._is_over(key):
            if self._n_early[rank] >= _EARLY or message.what is What.TAKEN:
                raise PeerError("it is too far ahead")
            self._n_early[rank] += 1
            self._early.setdefault(key, []).append((rank, message))
        elif message.what is What.OFFER and key.lane is Lane.ORDERED:
            self._compare(rank, message)

    def _compare(self, rank: int, message: Message) -> None:
        """An offer for a call that has ended well here: nobody can take back what that gave."""
        sign = self._past.get(message.number, message.text)
        if message.text != sign:
            words = (
                f"ranks ask for different collectives: rank {rank} for {message.text}, rank"
                f" {self._post.rank} for {sign}, which has ended here: what it gave may be wrong."
                " Close this communicator"
            )
            self._break(InvalidUse(words))

    def _is_over(self, key: Key) -> bool:
        if key.lane is Lane.ORDERED:
            return key.number < self._post.next
        return key.number < self._messages.get((key.lane, key.peer, key.tag), 0)

    def _hear_of(self, task: Task, rank: int, message: Message) -> None:
        if task.over or self._broken is not None:  # which ends it, whatever is said
            return
        try:
            if message.what is What.FAILED:
                task.stop(self._post.why(rank, message))
            else:
                task.hear(rank, message)
        except TransportError as error:
            self._fail(task, error)

    def _on_lost(self, incarnation: bytes, error: TransportError) -> None:
        """The control thread: whoever drives sees it."""
        rank = self._ranks.get(incarnation)
        if rank is not None and rank != self._post.rank:
            self._lost[rank] = error
            if self._tasks:
                self._stir()


class Begun:
    """See Work."""

    def __init__(self, carrier: OneSided, tasks: list[Task]) -> None:
        self._carrier = carrier
        self._tasks = tasks

    def done(self) -> bool:
        return all(task.ended for task in self._tasks)

    def wait(self, timeout: float) -> bool:
        if not self.done() and not self._carrier.drive(self, timeout):
            return False
        for task in self._tasks:
            if task.error is not None:
                raise task.error.again()
        return True

    def wait_on(self, stream: Any) -> None:
        """Blocks, also for tensors of GPUs: what comes into a stream later finds them written."""
        while not self.wait(3600.0):
            pass


def signature(call: Call) -> str:
    """What all ranks must ask for alike, in words that users can read."""
    parts = (*call.source, *call.target)
    dtype = str(parts[0].dtype).removeprefix("torch.") if parts else ""
    dtype += "" if gpu_of(call) is None else " on a GPU"
    kind, words = call.kind, [call.kind.value]
    if kind in (Kind.SEND, Kind.RECV):
        return f"send and recv of {dtype}"
    if kind in (Kind.ALL_REDUCE, Kind.REDUCE, Kind.BROADCAST):
        words.append(str(parts[0].numel()))
    elif kind is Kind.REDUCE_SCATTER:
        words.append(str(sum(part.numel() for part in call.source)))
    if dtype:
        words.append(dtype)
    if kind in reduces.ALL:
        scaled = isinstance(call.reduction, Premultiplied)
        words.append("premultiplied" if scaled else call.reduction.value)  # type: ignore[union-attr]
    if kind in (Kind.REDUCE, Kind.BROADCAST, Kind.GATHER, Kind.SCATTER):
        words.append(f"root {call.root}")
    return " ".join(words)
