"""A control plane over a real native engine, here or in a child process.

As a program it opens one, prints a line of JSON about it, and answers each line of JSON on its
standard input ([method, argument]) with one on its standard output, until that ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace

from transport.config import Settings
from transport.control.border import NativeBorder
from transport.control.plane import ControlPlane, Self
from transport.control.secret import Secret
from transport.errors import TransportError
from transport.ffi import NativeEngine, check, ffi, lib
from transport.providers import registry

SECRET = "the secret of these tests"


def open_native(incarnation, settings, providers):
    options = ffi.new("struct tn_engine_options *")
    ffi.memmove(options.incarnation, incarnation, 16)
    options.liveness_ns = int(settings.liveness * 1e9)
    options.inline_bytes, options.chunk_bytes = settings.inline_bytes, settings.chunk_bytes
    options.notify_depth, options.max_regions = settings.notify_depth, settings.max_regions
    options.stream_window = settings.stream_window
    for index, provider in enumerate(providers):
        options.order[index] = provider.identifier
    options.providers = len(providers)
    out = ffi.new("struct tn_engine **")
    check(lib.tn_engine_open(options, out))
    return NativeEngine(out[0])


@contextlib.contextmanager
def native_plane(
    *, listen=None, providers=("shm", "tcp"), secret=SECRET, incarnation=None, **settings
):
    """A plane and its native engine, closed in the right order."""
    settings = Settings(**settings)
    found = [registry.find(name) for name in providers]
    incarnation = incarnation or os.urandom(16)
    native = open_native(incarnation, settings, found)
    plane = None
    try:
        plane = ControlPlane(
            NativeBorder(native),
            settings,
            oneself=Self(incarnation, f"pid-{os.getpid()}", listen),
            secret=Secret(secret.encode()) if secret else None,
            endpoints={p.name: p.open(native, settings) for p in found},
            handlers={"echo": lambda record, body: body},
        )
        yield SimpleNamespace(plane=plane, native=native, incarnation=incarnation)
    finally:
        if plane is not None:
            plane.close()
        lib.tn_engine_close(native.pointer)


class Child:
    """A plane in a process of its own."""

    def __init__(self, **arguments):
        self.process = subprocess.Popen(
            [sys.executable, __file__, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        facts = json.loads(self.process.stdout.readline())
        self.addresses = facts["addresses"]
        self.incarnation = bytes.fromhex(facts["incarnation"])
        self.pid = self.process.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        finally:
            self.process.stdout.close()

    def do(self, method, argument=None):
        self.process.stdin.write(json.dumps([method, argument]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def kill(self):
        self.process.kill()
        self.process.wait()


def _connect(one, argument):
    try:
        record = one.plane.connect(argument)
        echo = one.plane.request(record, "echo", b"hello", 5).result(5).decode()
        return {"link": record.link, "providers": record.providers, "echo": echo}
    except TransportError as error:
        return {"error": type(error).__name__, "text": str(error)}


def _peers(one, _):
    return [[record.incarnation.hex(), record.state.value] for record in one.plane.peers]


def _fork(one, seconds):
    """A child by fork that lives on for so long; it must not keep anybody waiting."""
    if os.fork() == 0:
        os.close(0)
        os.close(1)
        time.sleep(seconds)
        os._exit(0)
    return True


def main():
    with native_plane(**json.loads(sys.argv[1])) as one:
        facts = {"addresses": one.plane.addresses, "incarnation": one.incarnation.hex()}
        print(json.dumps(facts), flush=True)
        for line in sys.stdin:
            method, argument = json.loads(line)
            answer = {"connect": _connect, "peers": _peers, "fork": _fork}[method](one, argument)
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
