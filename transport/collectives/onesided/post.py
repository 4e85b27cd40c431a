"""What one rank says to the others and keeps for them: offers, its arena, how far everybody is.

May import message, arena, board, task, group, hub, engine and errors. Used by one thread at a time.
Once two ranks of one machine look into each other's arenas they talk by their boards.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any

from transport.collectives.onesided.arena import Arena, Window, window
from transport.collectives.onesided.board import MOST_RANKS, Board
from transport.collectives.onesided.message import (
    MAX_INLINE,
    Lane,
    Message,
    What,
    Why,
    clipped,
    encode,
    handle_of,
    ranks_within,
)
from transport.collectives.onesided.task import copy
from transport.errors import InvalidUse, PeerError, PeerLost, RankLost, TransportError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from transport.collectives.group import Group
    from transport.collectives.onesided.task import Key, Task
    from transport.engine.transfer import Transfer
    from transport.memory.remote import RemoteRegion

ARENA_BYTES = 16 << 20
MAX_COPIED = 4 << 20  # bytes of an offer that go through the arena: a copy saves two wakings
WINDOW = 64  # calls that a rank may be ahead of the slowest; sends that a peer has not taken
_TELL = 16  # calls that a rank ends before it says so to who has not heard
_SCRATCH = 8  # blocks of memory that are kept
_MAP_TIMEOUT = 5.0  # seconds


class Post:
    """See Port."""

    def __init__(self, group: Group) -> None:
        self.rank = group.rank
        self.size = group.size
        self.engine = group.hub.engine
        self.hosts = [card.machine for card in group.cards]
        self.next = 0  # number of the next ordered call
        self._group = group
        self._open: dict[int, None] = {}  # ordered calls under way
        self._done = [0] * group.size  # of each rank, as far as it has said
        self._told = [0] * group.size  # what each has heard of this one's
        self._held: defaultdict[int, int] = defaultdict(int)  # sends that a peer has not taken
        self._arena: Arena | None = None
        self._windows: dict[int, Window | None] = {}
        self._mapped: set[int] = set()  # ranks that look into this one's arena
        self.board: Board | None = None
        self._closed = False
        self._reached: set[int] = set()  # ranks that hear what is said there
        self._came: set[int] = set()  # that have said something on theirs
        self._scratch: list[Any] = []
        self._sent: deque[Transfer] = deque()

    # ----------------------------------------------------------------------------- how far it is
    def open(self) -> int:
        """A number for an ordered call."""
        number, self.next = self.next, self.next + 1
        self._open[number] = None
        return number

    def ended(self, key: Key) -> None:
        if key.lane is Lane.ORDERED:
            self._open.pop(key.number, None)

    @property
    def done(self) -> int:
        """Ordered calls before this one have ended."""
        return next(iter(self._open), self.next)

    def crowded(self, key: Key) -> bool:
        """Whether a call must not begin yet: peers would have to keep too much of what it says."""
        if key.lane is Lane.ORDERED:
            return key.number - self._slowest() >= WINDOW
        return key.lane is Lane.SEND and self._held[key.peer] >= WINDOW

    def tell(self) -> None:
        """Those who have not heard for long how far this rank is."""
        done = self.done
        for rank in range(self.size):
            if rank != self.rank and done - self._told[rank] >= _TELL:
                self.say(rank, Message(What.TOLD, done))

    def _slowest(self) -> int:
        peers = (done for rank, done in enumerate(self._done) if rank != self.rank)
        return min(peers, default=self.next)

    # ------------------------------------------------------------------------------------ saying
    def greet(self) -> None:
        """Makes this rank's arena and shows it to all; once, when the first call begins."""
        if self._arena is not None or self.size == 1:
            return
        self._arena = Arena(self.engine, ARENA_BYTES, min(self.size, MOST_RANKS))
        if self._group.one_machine and self.size <= MOST_RANKS:
            self.board = Board(self._arena.sheet, self.rank, self.size)
        native, keys, offset = handle_of(self._arena.remote)
        size = self._arena.remote.nbytes
        hello = Message(What.HELLO, 0, size=size, native=native, keys=keys, offset=offset)
        for rank in range(self.size):
            if rank != self.rank:
                with contextlib.suppress(Unavailable):  # then it is of no use either
                    self.say(rank, hello)

    def say(self, rank: int, message: Message) -> None:
        """Raises PeerLost, Unavailable."""
        self._say_all((rank,), message)

    def offer(self, task: Task, phase: int, memory: Any, ranks: Sequence[int]) -> int:
        """Offers the bytes; how many of the ranks will say that they have them."""
        size, key = memory.numel(), task.key
        lane = Lane.RECV if key.lane is Lane.SEND else key.lane
        common = (What.OFFER, self.done, lane, key.number, key.tag, phase, task.sign, size)
        if lane is Lane.RECV:
            self._held[ranks[0]] += 1
        if size <= (0 if task.on_gpu else MAX_INLINE):
            # Not .numpy(), which would pin its storage.
            inline = ctypes.string_at(memory.data_ptr(), size) if size else b""
            self._say_all(ranks, Message(*common, inline=inline))
            return 0
        near, at = self._copied(task, memory, ranks)
        if at is not None:
            self._say_all(near, Message(*common, at=at))
        far = [rank for rank in ranks if rank not in near]
        if far:
            native, keys, offset = handle_of(task.grant(memory))
            self._say_all(far, Message(*common, native=native, keys=keys, offset=offset))
        return len(far)

    def _copied(
        self, task: Task, memory: Any, ranks: Sequence[int]
    ) -> tuple[list[int], int | None]:
        """The ranks that find a copy in the arena, and where."""
        size = memory.numel()
        ordered = task.key.lane is Lane.ORDERED
        if size > MAX_COPIED or not ordered or task.on_gpu or self._arena is None:
            return [], None
        near = [rank for rank in ranks if rank in self._mapped]
        found = self._arena.take(task.key.number, size) if near else None
        if found is None:
            return [], None
        at, room = found
        copy(room, memory)
        return near, at

    def failed(self, key: Key, error: TransportError, ranks: Iterable[int] | None = None) -> None:
        """Tells those whom the call concerns that it is over here."""
        lane = key.lane
        if lane is not Lane.ORDERED:
            lane, ranks = (Lane.RECV if lane is Lane.SEND else Lane.SEND), [key.peer]
        why, lost = Why.ENDED, tuple[int, ...]()
        if isinstance(error, RankLost):
            why, lost = Why.LOST, error.ranks[:64]
        elif isinstance(error, InvalidUse):
            why = Why.MISMATCH
        message = Message(What.FAILED, self.done, lane, key.number, key.tag, int(why),
                          clipped(str(error)), ranks=lost)  # fmt: skip
        for rank in range(self.size) if ranks is None else ranks:
            if rank != self.rank and rank not in lost:
                with contextlib.suppress(TransportError):
                    self.say(rank, message)

    def _say_all(self, ranks: Sequence[int], message: Message) -> None:
        payload = encode(message)
        for rank in ranks:
            self._told[rank] = message.done
        near = [rank for rank in ranks if rank in self._reached]
        if near and self.board is not None:
            missed = self.board.post(near, payload)
            ranks = [*missed, *(rank for rank in ranks if rank not in self._reached)]
        for rank in ranks:
            self._send(rank, payload)

    def _send(self, rank: int, payload: bytes) -> None:
        group = self._group
        sent = group.hub.send(group.peers[rank], group.id, payload)
        while self._sent and self._sent[0].quiet:  # seen to be quiet it costs less to drop
            self._sent.popleft()
        if sent is not None:
            self._sent.append(sent)

    # ----------------------------------------------------------------------------------- hearing
    def hear(self, rank: int, message: Message) -> bool:
        """Takes what is for this rank as a whole; False for what is for a call."""
        self._done[rank] = max(self._done[rank], message.done)
        if self._arena is not None:
            self._arena.ring.give_back(self._slowest())
        if message.what is What.HELLO and rank not in self._windows and not self._closed:
            remote = message.region(self._group.peers[rank].door)
            found = self._windows[rank] = window(self.engine, remote, _MAP_TIMEOUT)
            if found is not None:
                if self.board is not None:
                    self.board.attach(rank, found.sheet(self.size))
                self.say(rank, Message(What.MAPPED, self.done))
            self._reach(rank)
        elif message.what is What.MAPPED:
            self._mapped.add(rank)
            self._reach(rank)
        elif message.what is What.TAKEN and message.lane is Lane.SEND:
            self._held[rank] -= 1
            if self._held[rank] < 0:
                raise PeerError("it has taken what was not sent")
        return message.what in (What.HELLO, What.MAPPED, What.TOLD)

    def _reach(self, rank: int) -> None:
        """Talks by the board from now on, once both look into each other's memory."""
        if self.board is None or rank not in self._mapped or self._windows.get(rank) is None:
            return
        self._reached.add(rank)
        self.say(rank, Message(What.TOLD, self.done))

    def overhear(self) -> tuple[int, bytes] | None:
        """What a rank has said on its board. Raises PeerError for one that cannot be."""
        found = None if self.board is None else self.board.take()
        if found is not None:
            self._came.add(found[0])
        return found

    @property
    def boarded(self) -> bool:
        """Whether all peers talk by their boards: the mailbox gets what found no room there."""
        return len(self._came) == self.size - 1

    def window(self, rank: int) -> Window:
        """A peer's arena. Raises PeerError."""
        found = self._windows.get(rank)
        if found is None:
            raise PeerError(f"rank {rank} offers bytes of an arena that it has not shown")
        return found

    def region(self, rank: int, message: Message) -> RemoteRegion:
        return message.region(self._group.peers[rank].door)

    def name_of(self, rank: int) -> str:
        return self._group.peers[rank].name

    def why(self, rank: int, message: Message) -> TransportError:
        """Why a peer's call failed, as an error here."""
        if message.phase == Why.MISMATCH:
            return InvalidUse(message.text)
        lost = [each for each in ranks_within(message.ranks, self.size) if each != self.rank]
        if message.phase == Why.LOST and lost:
            return RankLost(message.text, ranks=tuple(lost), peer=self.name_of(lost[0]))
        text = f"rank {rank} could not go on: {message.text}"
        return PeerError(text, peer=self.name_of(rank))

    def whose(self, error: PeerLost) -> TransportError:
        """The same error, with the ranks that are lost."""
        lost = {
            rank: peer.lost or error  # a transfer may hear of it before the control plane does
            for rank, peer in enumerate(self._group.peers)
            if rank != self.rank and (peer.lost is not None or peer.name == error.peer)
        }
        return lost_ranks(lost) if lost else error

    # ------------------------------------------------------------------------------------ memory
    def borrow(self, nbytes: int) -> Any:
        """At least so many bytes, aligned to cache lines."""
        import torch

        for at, scratch in enumerate(self._scratch):
            if scratch.numel() >= nbytes:
                return self._scratch.pop(at)
        return torch.empty(max(nbytes, 4096), dtype=torch.uint8)

    def give_back(self, scratch: Any) -> None:
        if len(self._scratch) < _SCRATCH:
            self._scratch.append(scratch)

    def close(self) -> None:
        """While nobody waits for the board."""
        self._closed = True
        if self.board is not None:
            self.board.close()
            self.board = None
        self._came.clear()
        self._reached.clear()
        if self._arena is not None:
            self._arena.close()
        for found in self._windows.values():
            if found is not None:
                found.close()
        self._windows.clear()
        self._scratch.clear()
        self._sent.clear()


def lost_ranks(lost: Mapping[int, TransportError | None]) -> RankLost:
    """The error for ranks that are lost, and why."""
    words = "; ".join(f"rank {rank} is lost: {why}" for rank, why in sorted(lost.items()))
    first = next(iter(lost.values()))
    return RankLost(words, ranks=tuple(sorted(lost)), peer=getattr(first, "peer", None))
