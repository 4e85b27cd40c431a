"""The parent of a host's processes: forks them, passes on their output, reports how they ended.

Run by nursery as `python -m transport.mesh.hosts.zygote CONTROL LOG OWNER METHOD [MODULE ...]`. It
has imported what processes need, has one thread and never waits for one of them, so that it can end
them at any time: when its owner has died (the owner's pidfd, or the end of the control socket)
they get GRACE seconds to end by themselves. When it dies itself the kernel ends them
(PR_SET_PDEATHSIG). May import child, nest and output.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import math
import os
import resource
import selectors
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from transport.mesh import child
from transport.mesh.hosts import nest
from transport.mesh.hosts.output import Kept, Outlet, Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

GRACE = 3.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
_ROUNDS = 100  # of killing what dead processes left behind; each may leave more behind


@dataclass
class Offspring:
    """A process that was forked and is not reaped yet."""

    number: int
    pid: int
    streams: tuple[Stream, Stream]
    kept: Kept


class Zygote:
    """One loop over the control socket, the owner's life, ended children and their output."""

    def __init__(
        self, control: socket.socket, log: socket.socket, owner: int, preload: Sequence[str]
    ) -> None:
        self._pid, self._owner = os.getpid(), owner
        self._preload = preload
        self._control = control
        self._selector = selectors.DefaultSelector()
        self._outlet = Outlet(log, self._selector)
        self._children: dict[int, Offspring] = {}  # by pid
        self._files = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._end = math.inf  # when what still runs is killed
        self._life = -1
        self._born: int | None = None  # in a forked child: its setup socket

    def run(self, *, forks: bool) -> int | None:
        """In the zygote: None, when all is over. In a forked child: its setup socket."""
        self._prepare()
        self._report(_import(self._preload if forks else ()))
        gc.collect()
        gc.freeze()  # a collection in a child would else write to all that it shares
        while self._children or self._end == math.inf:
            for key, _ in self._selector.select(self._patience()):
                key.data()
                if self._born is not None:
                    return self._born
            if time.monotonic() >= self._end:
                self._kill_all()
        _end_adopted()
        return None

    def _prepare(self) -> None:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what a dead process leaves behind comes to us
        resource.setrlimit(resource.RLIMIT_NOFILE, (self._files[1], self._files[1]))
        self._wakeup = socket.socketpair()
        for sock in self._wakeup:
            sock.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # else it would not write to the wakeup
        signal.set_wakeup_fd(self._wakeup[1].fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._watch(self._wakeup[0], self._reap)
        self._watch(self._control, self._obey)
        with contextlib.suppress(ProcessLookupError):
            self._life = os.pidfd_open(self._owner)
            self._watch(self._life, self._abandon)
        if os.getppid() != self._owner:  # else the pidfd is of another process
            self._abandon()

    def _watch(self, what: socket.socket | int, run: Callable[[], None]) -> None:
        self._selector.register(what, selectors.EVENT_READ, run)

    def _patience(self) -> float | None:
        return None if self._end == math.inf else max(self._end - time.monotonic(), 0.0)

    # ------------------------------------------------------------------------------------- requests
    def _obey(self) -> None:
        if self._end < math.inf:  # abandoned after this was found to be readable
            return
        received = nest.receive(self._control, nest.REQUEST)
        if received is None:
            self._abandon()
            return
        request, fds = received
        if isinstance(request, nest.Fork):
            self._start(request, fds)
            return
        for offspring in self._children.values():
            if offspring.number == request.number:
                _kill_group(offspring.pid)

    def _start(self, request: nest.Fork, fds: Sequence[int]) -> None:
        if not fds:  # the kernel drops what it has no room for
            self._report(nest.Failed(request.number, "no file descriptor is left for it"))
            return
        (setup,) = fds
        try:
            self._fork(request, setup)
        except OSError as error:
            text = f"a process could not be started: {error.strerror}"
            self._report(nest.Failed(request.number, text))
        finally:
            if self._born is None:
                os.close(setup)

    def _fork(self, request: nest.Fork, setup: int) -> None:
        pipes = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            self._become(request, setup, pipes)
            return
        with contextlib.suppress(OSError):  # the child does it, too: whoever is first
            os.setpgid(pid, pid)
        kept = Kept()
        for _, written in pipes:
            os.close(written)
        out, err = (
            Stream(self._outlet, request.number, which, read, kept)
            for which, (read, _) in enumerate(pipes, 1)
        )
        self._children[pid] = Offspring(request.number, pid, (out, err), kept)
        self._report(nest.Forked(request.number, pid))

    def _report(self, report: nest.Report) -> None:
        with contextlib.suppress(ConnectionError):
            nest.send(self._control, report)

    # ---------------------------------------------------------------------------- in a new process
    def _become(
        self, request: nest.Fork, setup: int, pipes: tuple[tuple[int, int], tuple[int, int]]
    ) -> None:
        """Nothing of the zygote's stays open or set. It must not return into the zygote's loop as
        a zygote: what goes wrong ends it."""
        try:
            os.setpgid(0, 0)
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != self._pid:
                os._exit(1)
            self._leave_behind()
            for stream, (read, written) in enumerate(pipes, 1):
                os.dup2(written, stream)
                os.close(read)
                os.close(written)
            os.set_inheritable(setup, request.fresh)
            if request.fresh:
                module = ["-m", child.__name__, str(setup), *self._preload]
                os.execv(sys.executable, [sys.executable, *module])
            _own_random_numbers()
            self._born = setup
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def _leave_behind(self) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        resource.setrlimit(resource.RLIMIT_NOFILE, self._files)
        self._selector.close()  # not unregister: what is registered is shared with the zygote
        self._outlet.forget()
        for sock in (*self._wakeup, self._control):
            sock.close()
        if self._life >= 0:
            os.close(self._life)

    # ---------------------------------------------------------------------------------------- ends
    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wakeup[0].recv(1 << 12)
        while ended := _next_ended():
            offspring = self._children.pop(ended.si_pid, None)
            if offspring is not None:
                _kill_group(ended.si_pid)  # before it is reaped: until then the number is its own
            os.waitpid(ended.si_pid, 0)
            if offspring is not None:
                self._tell_end(offspring, ended)

    def _tell_end(self, offspring: Offspring, ended: os.waitid_result) -> None:
        for stream in offspring.streams:
            stream.finish()
        code = ended.si_status if ended.si_code == os.CLD_EXITED else None
        number = None if code is not None else ended.si_status
        self._report(nest.Ended(offspring.number, code, number, offspring.kept.lines))

    def _abandon(self) -> None:
        """The owner is gone. Its processes hear it from their links; who does not is killed."""
        if self._end < math.inf:
            return
        self._end = time.monotonic() + GRACE
        self._selector.unregister(self._control)  # what is over stays readable
        if self._life >= 0:
            self._selector.unregister(self._life)

    def _kill_all(self) -> None:
        for pid in self._children:
            _kill_group(pid)
        self._end = time.monotonic() + GRACE


def _next_ended() -> os.waitid_result | None:
    with contextlib.suppress(ChildProcessError):
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return None


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _end_adopted() -> None:
    """Kills what dead processes have left behind and whose groups were others."""
    for _ in range(_ROUNDS):
        pids = _adopted()
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _adopted() -> list[int]:
    """All children. Not each kernel has a list of them."""
    me, found = os.getpid(), list[int]()
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # After the name, which may hold anything: state and parent (proc_pid_stat(5)).
            if int(status.read_text().rpartition(")")[2].split()[1]) == me:
                found.append(int(status.parent.name))
    return found


def _import(preload: Sequence[str]) -> nest.Imported:
    failed: dict[str, str] = {}
    for module in preload:
        try:
            importlib.import_module(module)
        except (Exception, SystemExit) as error:
            reason = f"{type(error).__name__}: {error}"[:1024]
            failed[module] = reason.encode(errors="backslashreplace").decode()
            break  # one is enough, and fits into one message
    return nest.Imported(failed, _threads())


def _threads() -> int:
    """Threads of this process that a fork does not end.

    Libraries that know of forks (OpenBLAS, which NumPy brings) end theirs before one and start
    them again when they are needed.
    """
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return sum(1 for _ in Path("/proc/self/task").iterdir())


def _own_random_numbers() -> None:
    """As Python's own generator does after a fork: those of NumPy and torch would give the same
    numbers in each process, and in processes that were not forked they do not."""
    numpy, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    if numpy is not None:
        numpy.seed()
    if torch is not None:
        torch.default_generator.seed()  # of the CPU; those of GPUs are made after the fork


def _prctl(option: int, argument: int) -> None:
    ctypes.CDLL(None).prctl(option, argument, 0, 0, 0)


def main() -> None:
    control, log = (socket.socket(fileno=int(fd)) for fd in sys.argv[1:3])
    child.name_process("mesh-zygote")
    owner, method, *preload = sys.argv[3:]
    born = Zygote(control, log, int(owner), preload).run(forks=method == "fork")
    if born is None:
        os._exit(0)  # what modules want done at an exit is done in the processes
    child.main(born)


if __name__ == "__main__":
    main()
