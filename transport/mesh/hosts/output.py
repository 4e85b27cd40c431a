"""What processes write: cut into lines, the last ones kept, all of them passed on to the host.

Runs in the zygote and never blocks it: while the host does not take what was written, the pipes are
not read, and who writes waits. May import nest.
"""

from __future__ import annotations

import collections
import contextlib
import os
import selectors
from typing import TYPE_CHECKING

from transport.mesh.hosts import nest

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

_READ = 1 << 16
_FULL = 1 << 20  # bytes that wait for the host before the pipes rest
_LAST = 1 << 20  # bytes that are still read of a process that has ended


class Kept:
    """The last lines of a process, from both of its streams: at most KEPT_LINES and KEPT_BYTES."""

    def __init__(self) -> None:
        self._lines: collections.deque[str] = collections.deque()
        self._size = 0

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(self._lines)

    def add(self, lines: Sequence[str]) -> None:
        for line in lines[-nest.KEPT_LINES :]:
            self._lines.append(line)
            self._size += len(line.encode())
            while len(self._lines) > nest.KEPT_LINES or self._size > nest.KEPT_BYTES:
                self._size -= len(self._lines.popleft().encode())


class Outlet:
    """The log socket."""

    def __init__(self, sock: socket.socket, selector: selectors.BaseSelector) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._selector = selector
        self._waiting = bytearray()
        self._streams: set[Stream] = set()
        self._resting = self._gone = False

    def put(self, output: nest.Output) -> None:
        if self._gone:
            return
        if not self._waiting:
            self._selector.register(self._socket, selectors.EVENT_WRITE, self._write)
        self._waiting += nest.log_frame(output)
        self._rest(len(self._waiting) > _FULL)

    def add(self, stream: Stream) -> None:
        self._streams.add(stream)
        if not self._resting:
            self._selector.register(stream.fd, selectors.EVENT_READ, stream.read)

    def remove(self, stream: Stream) -> None:
        self._streams.discard(stream)
        if not self._resting:
            self._selector.unregister(stream.fd)

    def forget(self) -> None:
        """In a forked child: closes what is the zygote's, and takes nothing from it."""
        self._socket.close()
        for stream in self._streams:
            os.close(stream.fd)

    def _write(self) -> None:
        try:
            sent = self._socket.send(self._waiting)
        except BlockingIOError:
            return
        except OSError:  # the host does not listen any more
            self._gone, sent = True, len(self._waiting)
        del self._waiting[:sent]
        if not self._waiting:
            self._selector.unregister(self._socket)
        self._rest(len(self._waiting) > _FULL)

    def _rest(self, resting: bool) -> None:
        if resting == self._resting:
            return
        self._resting = resting
        for stream in self._streams:
            if resting:
                self._selector.unregister(stream.fd)
            else:
                self._selector.register(stream.fd, selectors.EVENT_READ, stream.read)


class Stream:
    """The read end of a pipe that is the standard output (1) or error (2) of a process."""

    def __init__(self, outlet: Outlet, number: int, which: int, fd: int, kept: Kept) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self._outlet = outlet
        self._number, self._which = number, which
        self._kept = kept
        self._rest = b""
        self._open = True
        outlet.add(self)

    def read(self) -> bool:
        """Whether there may be more."""
        if not self._open:  # closed after it was found to be readable
            return False
        try:
            data = os.read(self.fd, _READ)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > nest.MAX_LINE:
            lines.append(self._rest)
            self._rest = b""
        self._pass_on(lines)
        return True

    def finish(self) -> None:
        """The process has ended: what is still in the pipe, and no more."""
        for _ in range(_LAST // _READ):
            if not self.read():
                break
        self.close()

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        if self._rest:
            self._pass_on([self._rest])
        self._outlet.remove(self)
        with contextlib.suppress(OSError):
            os.close(self.fd)

    def _pass_on(self, lines: list[bytes]) -> None:
        texts = tuple(line[: nest.MAX_LINE].decode(errors="replace") for line in lines)
        if texts:
            self._kept.add(texts)
            self._outlet.put(nest.Output(self._number, self._which, texts))
