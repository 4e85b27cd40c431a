"""The carrier for GPU tensors: one communicator of NCCL or RCCL, and what is under way on it.

May import the other files of this room, call, the engine's streams, and memory.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from transport.collectives.call import gpu_of
from transport.collectives.nccl.agreement import agree, standing
from transport.collectives.nccl.comm import Comm, open_comm
from transport.collectives.nccl.enrolled import Enrolled
from transport.collectives.nccl.library import ID_BYTES, Library, library, unique_id
from transport.collectives.nccl.translate import Translator, element_of, refusal
from transport.collectives.nccl.work import NcclWork, Watcher
from transport.config import Settings
from transport.engine.streams import current_stream, stream_of
from transport.errors import InvalidUse, TransportError, Unavailable, VersionMismatch
from transport.memory.device import Device, parse
from transport.memory.gpu_pool import GpuPool
from transport.types import Closing

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from transport.collectives.call import Call
    from transport.collectives.group import Group

    Exchange = Callable[[bytes | None], bytes]

_log = logging.getLogger("transport.collectives.nccl")
_SETTLE_SECONDS = 0.4  # for the GPU to let go of what an abort has ended


class NcclCarrier(Closing):
    """One group of ranks, each with a GPU of its own. Made by all of them at the same time.

    `exchange` is called once: by rank 0 with bytes that every rank is to have, by the others with
    None; it gives them to all. Raises Unavailable without a GPU or a library, VersionMismatch where
    rank 0 has another one, DeadlineExceeded (`timeout`, seconds), NcclError, PeerLost.
    """

    def __init__(
        self,
        rank: int,
        ranks: int,
        device: int,
        exchange: Exchange,
        *,
        timeout: float = 60.0,
        settings: Settings | None = None,
    ) -> None:
        ends = time.monotonic() + timeout
        used = settings or Settings.from_env()
        found, unique = _introduce(rank, exchange, used)
        comm = open_comm(device, ranks, rank, unique, ends - time.monotonic())
        self._set_up(rank, ranks, comm, found)

    def _set_up(self, rank: int, ranks: int, comm: Comm, used: Library) -> None:
        self.rank, self.ranks = rank, ranks
        self.library = used
        self._comm = comm
        self._error: TransportError | None = None
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._ending: threading.Thread | None = None
        self._revoked = False
        self._pool = GpuPool()
        self._enrolled = Enrolled(comm) if used.has("registered memory") else None
        self._watcher = Watcher(comm, self.abort)

    @classmethod
    def _over(cls, rank: int, ranks: int, comm: Comm, used: Library) -> NcclCarrier:
        made = cls.__new__(cls)
        made._set_up(rank, ranks, comm, used)
        return made

    @property
    def name(self) -> str:
        return "nccl"

    @property
    def driven(self) -> bool:
        return True

    @property
    def streamed(self) -> bool:
        return True

    def refusal(self, call: Call) -> str:
        return refusal(call, self.library)

    # ----------------------------------------------------------------------------------- beginning
    def begin(self, calls: Sequence[Call], stream: Any, deadline: float) -> NcclWork:
        """`stream` None: torch's current one, where torch is in use, else the default one. The
        tensors are the stream's until the work has ended."""
        ends = time.monotonic() + deadline
        name = calls[0].kind.value if calls else "nothing"
        handle = current_stream(self._comm.device) if stream is None else stream_of(stream).handle
        self._check_gpu(calls)
        with self._turn:
            self._check()
            kept: list[object] = [part for call in calls for part in (*call.source, *call.target)]
            if self._enrolled is not None:
                self._enrolled.add(kept)
            with self._factors() as factor:
                translator = Translator(self.rank, self.ranks, self._scratch(kept), factor)
                ops = [op for call in calls for op in translator.ops(call)]
                self._watcher.begins(ends, name)
                try:
                    mark = self._comm.run(ops, handle, ends - time.monotonic())
                except TransportError as error:
                    raise self._failed(error) from None
                finally:
                    self._watcher.has_begun()
        work = NcclWork(mark, kept, ends, name, self._is_failing)
        self._watcher.add(work)
        if self._error is not None:  # it came while this began: nobody else ends it
            self._end_works(self._error)
        return work

    def _failed(self, error: TransportError) -> TransportError:
        """What a call that could not begin raises. Of an argument the communicator survives."""
        if isinstance(error, InvalidUse):
            return error
        self.abort(error)
        return self._error or error

    def _scratch(self, kept: list[object]) -> Callable[[int], int]:
        def take(nbytes: int) -> int:
            block = self._pool.take(nbytes, Device("cuda", self._comm.device))
            kept.append(block)
            return block.address

        return take

    @contextmanager
    def _factors(self) -> Generator[Callable[[float, Any], int]]:
        """Reductions with a factor: made before the operations, and given back once those are in
        the stream."""
        made: list[int] = []

        def factor(value: float, part: Any) -> int:
            import torch

            dtype = part.dtype.to_real() if part.dtype.is_complex else part.dtype
            raw = torch.tensor([value], dtype=dtype).view(torch.uint8).numpy().tobytes()
            made.append(self._comm.scale(raw, element_of(part).type))
            return made[-1]

        try:
            yield factor
        finally:
            for each in made:
                self._comm.unscale(each)

    def _check_gpu(self, calls: Sequence[Call]) -> None:
        wrong = {gpu_of(call) for call in calls} - {None, self._comm.device}
        if wrong:
            raise InvalidUse(
                f"the communicator of {self.library.name} has GPU {self._comm.device}, as its first"
                f" call had: it cannot carry tensors of GPU {wrong.pop()}"
            )

    def _is_failing(self) -> bool:
        return self._error is not None

    def _check(self) -> None:
        if self._error is not None:
            raise self._error.again()

    # ------------------------------------------------------------------------------------- the end
    def abort(self, error: TransportError) -> None:
        """Idempotent: the first error stays. Returns at once; the works end within a second."""
        with self._lock:
            if self._error is not None:
                return
            self._error = error
            self._ending = threading.Thread(
                target=self._abort, args=(error,), name="transport-nccl-abort", daemon=True
            )
            self._ending.start()

    def _abort(self, error: TransportError) -> None:
        if self.library.has("revoke"):
            # What is revoked can still be shrunk, without meeting anew.
            self._revoked = self._comm.revoke()
        if not self._revoked and not self._comm.abort():
            _log.warning("%s does not return from ncclCommAbort: %s", self.library.name, error)
        self._end_works(error)

    def _end_works(self, error: TransportError) -> None:
        """Once the GPU has let go of them, or does not."""
        works = self._watcher.pending()
        until = time.monotonic() + _SETTLE_SECONDS
        while not all(work.passed() for work in works) and time.monotonic() < until:
            time.sleep(1e-3)
        stuck = [work for work in works if not work.passed()]
        if stuck and self._revoked:
            self._revoked = False
            self._comm.abort()
            until = time.monotonic() + _SETTLE_SECONDS
            while not all(work.passed() for work in works) and time.monotonic() < until:
                time.sleep(1e-3)
            stuck = [work for work in works if not work.passed()]
        for work in works:
            work.fail(error, keep=work in stuck)
        if stuck:
            _log.warning(
                "the GPU is still at %d aborted operations: their memory stays", len(stuck)
            )

    def close(self) -> None:
        """Waits some two seconds at most: for what peers have not received yet."""
        with self._lock:
            if isinstance(self._error, _Closed):
                return
            self._watcher.sweep()  # from now on, nothing that passes its mark counts as done
            failed, self._error = self._error, _Closed("this carrier is closed")
        if self._ending is not None:
            self._ending.join(_CLOSE_SECONDS)
        self._watcher.close()
        works = self._watcher.pending()
        if failed is None and not works:
            if self._enrolled is not None:
                self._enrolled.close()
            self._comm.close()
        else:
            self._comm.abort()
            for work in works:
                work.fail(failed or _Closed("this carrier was closed"), keep=not work.passed())
        self._pool.close()

    # -------------------------------------------------------------------------------------- groups
    def shrink(self, lost: Sequence[int], timeout: float) -> NcclCarrier:
        """A carrier of the ranks that are not lost, by those alone; they keep their order.

        Raises Unavailable where the library cannot, or this one was aborted for good: then a new
        one is made through the meeting. What is under way here ends.
        """
        left = sorted(set(lost))
        if not left or self.rank in left or not 0 <= left[0] <= left[-1] < self.ranks:
            raise InvalidUse(f"of {self.ranks} ranks, {left} cannot leave rank {self.rank} alone")
        if self._ending is not None:
            self._ending.join(timeout)
        if self._error is not None and not self._revoked:
            raise Unavailable("this communicator was aborted", "make a new one")
        comm = self._comm.shrink(left, abort=True, seconds=timeout)
        rank = self.rank - sum(each < self.rank for each in left)
        return self._over(rank, self.ranks - len(left), comm, self.library)

    def split(self, color: int, key: int, ranks: int, rank: int, timeout: float) -> Any:
        """By all ranks: one carrier for each color, of `ranks` ranks, this one being `rank` of
        them by `key`; color -1: None. Raises Unavailable where the library cannot."""
        self._check()
        comm = self._comm.split(color, key, timeout)
        return None if comm is None else self._over(rank, ranks, comm, self.library)


def make(group: Group, deadline: float, gpu: int | None = None) -> NcclCarrier:
    """By all ranks of the group, each with a GPU (None: torch's current one; without torch, the
    first). Raises Absent on all of them where one cannot have it, or two share a GPU."""
    ends = time.monotonic() + deadline

    def exchange(data: bytes | None) -> bytes:
        if data is None:
            return group.meeting.get(_KEY, ends - time.monotonic())
        group.meeting.set(_KEY, data, ends - time.monotonic())
        return data

    device = parse("cuda" if gpu is None else gpu)
    assert device is not None
    settings = group.hub.engine._core.settings
    agree(group, standing(settings, device.ordinal), deadline)
    left = ends - time.monotonic()
    return NcclCarrier(
        group.rank, group.size, device.ordinal, exchange, timeout=left, settings=settings
    )


_KEY = "nccl/id"


class _Closed(InvalidUse):
    pass


_CLOSE_SECONDS = 2.0


def _introduce(rank: int, exchange: Exchange, settings: Settings) -> tuple[Library, bytes]:
    """The library here, and the id of the group; what keeps rank 0 from it, all ranks are told."""
    if rank:
        found = library(settings)
        return found, _read(exchange(None), found)
    try:
        found = library(settings)
        told = {"library": found.name, "version": found.version, "id": unique_id().hex()}
    except TransportError as error:
        exchange(json.dumps({"error": str(error)}).encode())
        raise
    return found, _read(exchange(json.dumps(told).encode()), found)


def _read(data: bytes, found: Library) -> bytes:
    try:
        told = json.loads(data)
        if "error" in told:
            raise Unavailable(f"rank 0 cannot make a communicator: {told['error']}")
        name, version, unique = told["library"], told["version"], bytes.fromhex(told["id"])
        agrees = (name, int(version) // 100) == (found.name, found.version // 100)
    except (ValueError, KeyError, TypeError):
        raise VersionMismatch("rank 0 sent something that is no id of a group") from None
    if len(unique) != ID_BYTES:
        raise VersionMismatch("rank 0 sent something that is no id of a group")
    if not agrees:
        raise VersionMismatch(
            f"rank 0 has {name} {version}, this rank {found.name} {found.version}"
            f" ({found.file}): all ranks need the same"
        )
    return unique
