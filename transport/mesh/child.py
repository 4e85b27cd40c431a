"""A process of a mesh, from its first moment on this machine until it serves.

Run as `python -m transport.mesh.child FD [MODULE ...]`, or entered by a fork of the zygote. May
import serve, process and hosts.nest.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import socket
import sys
import types
from typing import NoReturn

from transport.mesh.hosts.nest import HEARD, SETUP, Setup, receive
from transport.mesh.process import Place
from transport.mesh.serve import serve

_PR_SET_NAME = 15


def main(fd: int, preload: tuple[str, ...] = ()) -> None:
    """Imports, then waits for what to be: until then it is a spare. Ends when its owner does."""
    for module in preload:
        importlib.import_module(module)
    # As if started by hand: what is pickled by reference to __main__ must not find this module.
    sys.modules["__main__"] = types.ModuleType("__main__")
    with socket.socket(fileno=fd) as setup:
        given = receive(setup, SETUP)
        if given is None:
            return
        with contextlib.suppress(OSError):  # who does not wait for it has closed its end
            setup.send(HEARD, socket.MSG_NOSIGNAL)
    told, (link,) = given
    _settle(told)
    leave(serve(socket.socket(fileno=link), Place(told.host)))


def leave(code: int = 0) -> NoReturn:
    """Ends the process without taking apart what was imported, which takes torch half a second."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _settle(told: Setup) -> None:
    os.environ.update(told.environment)
    if told.cpus:
        os.sched_setaffinity(0, told.cpus)
    for stream in (sys.stdout, sys.stderr):
        # A line is forwarded when it is written, not when the process ends.
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    name_process(told.name)


def name_process(name: str) -> None:
    """As `ps` and `top` show it; the kernel keeps 15 bytes."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15])


if __name__ == "__main__":
    main(int(sys.argv[1]), tuple(sys.argv[2:]))
