"""The owner's side of a zygote: asks for processes, hears of their ends.

May import nest, printer and process. One thread reads what the zygote reports. Every future here is
resolved when the zygote reports or when it is gone, whichever comes first.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import socket
import struct
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from transport.errors import InvalidUse, Unavailable
from transport.mesh.hosts import nest
from transport.mesh.process import Cause
from transport.types import UNDECODABLE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transport.mesh.hosts.printer import Printer

_SEND_TIMEOUT = 60  # seconds; a zygote that imports reads nothing meanwhile
_LOST = "the process that had started it ended, and took it along"


class Child:
    """A process that begins, runs or has ended. Until it is told its setup it is a spare."""

    def __init__(self, number: int, setup: socket.socket) -> None:
        self.number = number
        self.begun: concurrent.futures.Future[int] = concurrent.futures.Future()
        self.ended: concurrent.futures.Future[Cause] = concurrent.futures.Future()
        self._setup = setup

    def tell(self, setup: nest.Setup, link: socket.socket, patience: float = 0.0) -> bool:
        """What to be; `link` stays the caller's. Whether the process has read it within `patience`
        seconds. One that has just died is no error."""
        with self._setup, contextlib.suppress(OSError):
            nest.send(self._setup, setup, (link.fileno(),))
            self._setup.settimeout(patience)
            return self._setup.recv(len(nest.HEARD)) == nest.HEARD
        return False

    def dismiss(self) -> None:
        """A spare that nobody needs ends; no effect on one that was told its setup."""
        self._setup.close()

    def end(self, cause: Cause) -> None:
        self.dismiss()
        if not self.begun.done():
            self.begun.set_exception(Unavailable(f"a process could not be started: {cause}"))
        self.ended.set_result(cause)


class Nursery:
    """A zygote, and the processes that it has. Any thread may call.

    `command`: the method, "fork" or "spawn", and the modules to import.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], printer: Printer
    ) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._children: dict[int, Child] = {}
        self._labels: dict[int, str] = {}  # stays: lines may come after the end
        self._count = 0
        self._closed = False
        self._links: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self.imported: concurrent.futures.Future[nest.Imported] = concurrent.futures.Future()
        self._control, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._log, log = socket.socketpair()
        with control, log:
            self._zygote = _start_zygote((control, log), command, environment)
        patience = struct.pack("ll", _SEND_TIMEOUT, 0)
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)
        self._threads = (
            threading.Thread(target=self._listen, name="mesh-nursery", daemon=True),
            threading.Thread(
                target=printer.run, args=(self._log, self._label), name="mesh-output", daemon=True
            ),
        )
        for thread in self._threads:
            thread.start()
        _nurseries.add(self)

    def fork(self, *, fresh: bool) -> Child:
        """Asks for a process; its `begun` tells the pid. Raises Unavailable, InvalidUse."""
        if self._pid != os.getpid():
            raise InvalidUse("this host belongs to the process that made it, not to its fork")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, self._lock:
            self._count += 1
            child = self._children[self._count] = Child(self._count, ours)
            try:
                nest.send(self._control, nest.Fork(child.number, fresh), (theirs.fileno(),))
            except OSError as error:
                del self._children[child.number]
                ours.close()
                raise Unavailable(f"no process can be started here any more: {error}") from None
        return child

    def lend(self, link: socket.socket) -> None:
        """The owner's end of a process's life line."""
        self._links.add(link)

    def name(self, child: Child, label: str) -> None:
        """What its lines begin with."""
        self._labels[child.number] = label

    def kill(self, child: Child) -> None:
        """With all of its process group. Not an error when it has ended."""
        with self._lock, contextlib.suppress(OSError):
            if child.number in self._children and not self._closed:
                nest.send(self._control, nest.Kill(child.number))

    def close(self, timeout: float) -> None:
        """Ends whatever still runs: within the zygote's grace, by force after `timeout`."""
        with self._lock:
            closed, self._closed = self._closed, True
        if closed:
            return
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._zygote.wait(timeout)
        if self._zygote.poll() is None:
            self._zygote.kill()  # and the kernel its children
            self._zygote.wait()
        for thread in self._threads:
            thread.join(timeout)
        self._control.close()
        self._log.close()

    def forget(self) -> None:
        """In a fork of the owner: it must not keep the owner's processes alive."""
        self._closed = True
        self._control.close()
        self._log.close()
        for link in tuple(self._links):
            link.close()
        for child in self._children.values():
            child.dismiss()

    def _label(self, number: int) -> str:
        return self._labels.get(number, f"spare[{number}]")

    # -------------------------------------------------------------------------------------- reports
    def _listen(self) -> None:
        try:
            with contextlib.suppress(OSError, *UNDECODABLE):
                while received := nest.receive(self._control, nest.REPORT):
                    self._hear(received[0])
        finally:
            self._lose()

    def _lose(self) -> None:
        """Nothing is heard of the zygote any more, so it must not live on."""
        self._zygote.kill()
        if not self.imported.done():
            self.imported.set_exception(Unavailable("the process that starts others has ended"))
        with self._lock:
            children, self._children = tuple(self._children.values()), {}
        for child in children:
            child.end(Cause(text=_LOST))

    def _hear(self, report: nest.Report) -> None:
        if isinstance(report, nest.Imported):
            self.imported.set_result(report)
        elif isinstance(report, nest.Forked):
            self._children[report.number].begun.set_result(report.pid)
        elif isinstance(report, nest.Failed):
            self._take(report.number).end(Cause(text=report.text))
        else:
            cause = Cause(code=report.code, signal=report.signal, logs=report.logs)
            self._take(report.number).end(cause)

    def _take(self, number: int) -> Child:
        with self._lock:
            return self._children.pop(number)


def _start_zygote(
    sockets: tuple[socket.socket, socket.socket], command: Sequence[str], given: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    fds = sockets[0].fileno(), sockets[1].fileno()
    module = ["-m", "transport.mesh.hosts.zygote", *map(str, fds), str(os.getpid()), *command]
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    return subprocess.Popen(
        [sys.executable, *module],
        pass_fds=fds,
        env={**os.environ, "PYTHONPATH": path, **given},
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is the owner's; it decides what it means
    )


_nurseries: weakref.WeakSet[Nursery] = weakref.WeakSet()


def _forget_all() -> None:
    for nursery in tuple(_nurseries):
        nursery.forget()


os.register_at_fork(after_in_child=_forget_all)
