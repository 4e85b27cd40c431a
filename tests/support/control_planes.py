"""Control planes over native engines, here or in a child process, and what tests do with them.

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
from pathlib import Path
from types import SimpleNamespace

from transport.config import Settings
from transport.control.plane import Callbacks, ControlPlane, Self
from transport.control.secret import Secret
from transport.errors import Status, TransportError, Unavailable
from transport.ffi import NativeEngine, check, ffi, last_error, lib
from transport.providers import registry
from transport.types import Offer

SECRET = "the secret of these tests"


def descriptors():
    """How many descriptors this process has open."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def open_engine(incarnation, settings, providers):
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
def open_plane(
    *,
    listen=None,
    advertise=None,
    providers=("shm", "tcp"),
    foreign=None,
    secret=SECRET,
    incarnation=None,
    name=None,
    callbacks=None,
    **settings,
):
    """A plane and its engine, closed in the right order; `foreign` is a third party's endpoint.

    `.lost` has the records that it reported as lost. It answers "echo".
    """
    settings = Settings(**settings)
    found = [registry.find(provider) for provider in providers]
    incarnation = incarnation or os.urandom(16)
    lost = []
    with contextlib.ExitStack() as stack:
        native = open_engine(incarnation, settings, found)
        stack.callback(lib.tn_engine_close, native.pointer)
        endpoints = {provider.name: provider.open(native, settings) for provider in found}
        plane = ControlPlane(
            native,
            settings,
            oneself=Self(incarnation, name or f"pid-{os.getpid()}", listen, advertise),
            secret=Secret(secret.encode()) if secret else None,
            endpoints=endpoints if foreign is None else {**endpoints, "foreign": foreign},
            callbacks=callbacks or Callbacks(on_lost=lost.append),
            handlers={"echo": lambda record, body: body},
        )
        stack.callback(plane.close)
        yield SimpleNamespace(plane=plane, native=native, incarnation=incarnation, lost=lost)


# ------------------------------------------------------------------------------ the native side
def native_state(record):
    """What C knows of the peer: its status and why it is down."""
    status = lib.tn_peer_state(record.native.pointer)
    return Status(status), last_error() if status < 0 else ""


def opened_peers(one):
    """How many native peers a plane has opened so far; opens one more, that of itself."""
    return one.plane.self_record().cookie - 1


def say(record, data):
    """A control message of any bytes. False: the link is full."""
    status = lib.tn_peer_send(record.native.pointer, data, len(data))
    return status != Status.AGAIN and check(status) == Status.OK


def take_notification(one):
    """Whether there was one."""
    out = ffi.new("struct tn_notification *")
    return check(lib.tn_notification_poll(one.native.pointer, out)) == 1


class Memory:
    """A region of an engine that peers may write."""

    def __init__(self, one, size=64):
        self._bytes = ffi.new("uint8_t[]", size)
        self._engine = one.native.pointer
        out = ffi.new("struct tn_region **")
        access = lib.TN_READ | lib.TN_WRITE
        check(lib.tn_region_open(self._engine, self._bytes, size, access, ffi.NULL, out))
        self._region = out[0]
        self.remote = ffi.new("struct tn_remote *")
        lib.tn_region_describe(self._region, self.remote)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        check(lib.tn_region_close(self._region, 60 * 10**9))
        lib.tn_region_release(self._region)


class Write:
    """Some bytes and a notification on their way into a peer's Memory."""

    def __init__(self, record, memory):
        self._bytes = ffi.new("uint8_t[]", memory.remote.length)
        self._range = ffi.new("struct tn_range *")
        self._range.local_address = int(ffi.cast("uintptr_t", self._bytes))
        self._range.length, self._range.rows = memory.remote.length, 1
        self._word = ffi.new("char[]", b"word")
        batch = ffi.new("struct tn_batch *")
        batch.op, batch.providers = lib.TN_OP_WRITE, 0xFF
        batch.remotes, batch.n_remotes = memory.remote, 1
        batch.ranges, batch.n_ranges = self._range, 1
        batch.deadline_ns = (1 << 64) - 1
        batch.notify, batch.notify_length = self._word, 4
        out = ffi.new("struct tn_transfer **")
        check(lib.tn_submit(record.native.pointer, batch, out))
        self._transfer = out[0]

    def status(self, seconds):
        """PENDING when it has not ended within that time."""
        return Status(lib.tn_transfer_wait(self._transfer, int(seconds * 1e9)))

    def provider(self):
        result = ffi.new("struct tn_result *")
        lib.tn_transfer_result(self._transfer, result)
        return result.provider

    def abandon(self, cookie):
        return Status(lib.tn_transfer_abandon(self._transfer, cookie))

    def release(self):
        assert lib.tn_transfer_wait_quiet(self._transfer, 60 * 10**9)
        lib.tn_transfer_release(self._transfer)


class TalkingConnection:
    def __init__(self, endpoint, facts):
        self.endpoint, self.facts = endpoint, facts
        self.state = "open"
        read, write = os.pipe()
        os.close(write)
        self.fds = (read,) if facts.is_unix else ()
        if not facts.is_unix:
            os.close(read)

    def offer(self):
        return Offer(self.endpoint.data, self.fds)

    def accept(self, offer, facts):
        for fd in offer.fds:
            os.close(fd)
        self.accepted = offer.data
        if self.endpoint.fails:
            raise Unavailable(self.endpoint.fails)

    def attach(self, peer):
        self.state = "attached"
        self._give_back()

    def close(self):
        assert self.state == "open"
        self.state = "closed"
        self._give_back()

    def _give_back(self):
        for fd in self.fds:
            os.close(fd)


class TalkingEndpoint:
    """A provider that exchanges offers, with one descriptor where they can travel."""

    def __init__(self, data=b"offer", *, fails="", unix_only=False):
        self.data, self.fails, self.unix_only = data, fails, unix_only
        self.connections = []

    def connection(self, facts):
        if self.unix_only and not facts.is_unix:
            return None
        self.connections.append(TalkingConnection(self, facts))
        return self.connections[-1]

    def describe(self):
        return "talks"

    def close(self):
        pass


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
            self.process.wait(60)
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
        echo = one.plane.request(record, "echo", b"hello", 60).result(60).decode()
        return {"link": record.link, "providers": record.providers, "echo": echo}
    except TransportError as error:
        return {"error": type(error).__name__, "text": str(error)}


def _peers(one, _):
    return [[record.incarnation.hex(), record.state.value] for record in one.plane.peers]


def _fork(one, seconds):
    """A child by fork that lives on for so long; it must not keep anybody waiting. Its pid."""
    if (pid := os.fork()) == 0:
        os.close(0)
        os.close(1)
        time.sleep(seconds)
        os._exit(0)
    return pid


def main():
    with open_plane(**json.loads(sys.argv[1])) as one:
        facts = {"addresses": one.plane.addresses, "incarnation": one.incarnation.hex()}
        print(json.dumps(facts), flush=True)
        for line in sys.stdin:
            method, argument = json.loads(line)
            answer = {"connect": _connect, "peers": _peers, "fork": _fork}[method](one, argument)
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
