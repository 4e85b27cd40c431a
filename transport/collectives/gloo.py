"""Collectives of CPU tensors by torch's gloo, without torch.distributed's global state.

Imports torch when a carrier is made; may import gloo_calls, gloo_store, gloo_links, call, errors.
gloo's connections are not encrypted and prove nothing: they belong into a trusted network.
"""

from __future__ import annotations

import contextlib
import datetime
import threading
import time
from typing import TYPE_CHECKING, Any

from transport.errors import DeadlineExceeded, InvalidUse, PeerLost, TransportError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transport.collectives.call import Call
    from transport.collectives.gloo_calls import Begun
    from transport.collectives.group import Group

_CONNECTING = 60.0  # seconds that gloo may take for a question at most
_LAST = 2.0  # seconds for works to end once their connections have
_SLICE = 0.05  # seconds between looks at whether it was aborted
_LONGEST = 2e6  # seconds: gloo counts milliseconds in 32 bits
_LATER = 5.0  # seconds after which gloo's own deadline follows ours


def make(group: Group, deadline: float, gpu: int | None = None) -> GlooCarrier:
    """Connects all ranks. Raises Unavailable without torch, DeadlineExceeded, PeerLost."""
    try:
        import torch
        import torch.distributed
    except ImportError:
        raise Unavailable("gloo comes with torch, which is not here", "pip install torch") from None
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        raise Unavailable("this torch was built without gloo", "install another build of torch")
    return GlooCarrier(group, deadline)


class GlooCarrier:
    """One gloo context with one thread: what it begins, it does in order."""

    name = "gloo"
    driven = True

    def __init__(self, group: Group, deadline: float) -> None:
        from transport.collectives import gloo_calls
        from transport.collectives.gloo_links import Links
        from transport.collectives.gloo_store import MeetingStore

        self.rank, self.size = group.rank, group.size
        self._calls = gloo_calls.Calls(group.rank, group.size)
        self._error: TransportError | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._works: list[GlooWork] = []
        store = MeetingStore(group.meeting.under("gloo"), min(deadline, _CONNECTING))
        self._context: Any = _connect(group, store, deadline)
        told = [store.get(f"0/{rank}") for rank in range(self.size)] if self.size > 1 else []
        self._links = Links(told)
        if len(self._links) != self.size - 1:
            found = len(self._links)
            self.close()
            raise Unavailable(
                f"gloo has {self.size - 1} connections of which {found} were found, so that it"
                " could not be interrupted",
                "unset TORCH_GLOO_LAZY_INIT and GLOO_DEVICE_TRANSPORT",
            )

    def refusal(self, call: Call) -> str:
        part = next(iter((*call.source, *call.target)), None)
        if part is None:
            return ""
        if part.device.type != "cpu":
            return f"gloo carries CPU tensors here, not those of {part.device}"
        return self._calls.refusal(call, part.dtype)

    def begin(self, calls: Sequence[Call], stream: Any, deadline: float) -> GlooWork:
        with self._lock:
            if self._error is not None:
                raise self._error.again()
            if self._closed:
                raise InvalidUse("this communicator is closed")
            work = GlooWork(self, deadline)
            self._works = [each for each in self._works if not each.ended]
            self._works.append(work)
            context = self._context
        limit = _span(deadline + _LATER)
        try:
            for call in calls:
                work.begun.append(self._calls.begin(context, call, limit))
        except RuntimeError as error:  # a connection has ended
            work.fail(self.error or PeerLost(f"gloo: {_first_line(error)}"))
        return work

    def abort(self, error: TransportError) -> None:
        with self._lock:
            if self._error is None:
                self._error = error
        self._links.cut()

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            context, self._context = self._context, None
            works, self._works = self._works, []
        links = getattr(self, "_links", None)
        if links is not None:
            if any(not work.done() for work in works):
                links.cut()
            for work in works:
                with contextlib.suppress(TransportError):
                    work.wait(_LAST)
            links.close()
        del context  # ends its threads and connections

    @property
    def error(self) -> TransportError | None:
        return self._error


class GlooWork:
    """Calls that gloo has begun."""

    def __init__(self, carrier: GlooCarrier, deadline: float) -> None:
        self.begun: list[Begun] = []
        self.ended = False
        self._carrier = carrier
        self._end = time.monotonic() + deadline
        self._lock = threading.Lock()  # of whoever waits
        self._error: TransportError | None = None

    def fail(self, error: TransportError) -> None:
        """What has been begun must still end: gloo may use its memory until then."""
        self._error = error

    def done(self) -> bool:
        self._abandon()
        return self.ended or all(begun.done() for begun in list(self.begun))

    def wait(self, timeout: float) -> bool:
        end = time.monotonic() + timeout
        if not self._lock.acquire(timeout=max(timeout, 0)):
            return False
        try:
            if not self.ended and not self._all(end):
                return False
        finally:
            self._lock.release()
        if self._error is not None:
            raise self._error.again()
        return True

    def wait_on(self, stream: Any) -> None:
        self.wait(max(self._end - time.monotonic(), 0) + _LAST)

    def _all(self, end: float) -> bool:
        """Whether all have ended, which is waited for until `end`."""
        for begun in self.begun:
            self._abandon()
            while not begun.wait(min(end - time.monotonic(), _SLICE)):
                self._abandon()
                now = time.monotonic()
                if now >= self._end:  # gloo ends with the connections
                    late = DeadlineExceeded("the collective did not end within its deadline")
                    self._carrier.abort(late)
                    self._end = now + _LAST
                if now >= end:
                    return False
        self._conclude()
        return True

    def _abandon(self) -> None:
        """Messages that a cut connection may leave without an end."""
        if self._carrier.error is not None:
            for begun in list(self.begun):
                begun.abandon()

    def _conclude(self) -> None:
        try:
            for begun in self.begun:
                begun.finish()
        except RuntimeError as error:
            self._error = self._carrier.error or PeerLost(f"gloo: {_first_line(error)}")
        self.begun.clear()
        self.ended = True


def _span(seconds: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=min(seconds, _LONGEST))


def _first_line(error: Exception) -> str:
    text = str(error).split("] ", 1)[-1]  # without the place in its source
    return text.split(". This is typically")[0].split("\n")[0]


def _connect(group: Group, store: Any, deadline: float) -> Any:
    from torch.distributed import ProcessGroupGloo

    makers: Any = ProcessGroupGloo  # what its type stub leaves out
    host = "127.0.0.1" if group.one_machine else group.cards[group.rank].host
    if not host:
        raise Unavailable(
            "gloo needs an address of this host, for its ranks are on several",
            'give the engine listen="HOST:PORT"',
        )
    options = makers._Options()
    options._threads = 1
    options._timeout = _span(deadline)
    try:
        options._devices = [makers.create_device(hostname=host, lazy_init=False)]
        return makers(store, group.rank, group.size, options)
    except RuntimeError as error:
        raise PeerLost(f"gloo could not connect all ranks: {_first_line(error)}") from None
