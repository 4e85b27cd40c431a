"""Doubles for the control plane: a native engine that only remembers, providers that only talk."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections import deque
from pathlib import Path
from types import SimpleNamespace

from transport.config import Settings
from transport.control.border import CONTROL, PEER_DOWN, Event
from transport.control.plane import Callbacks, ControlPlane, Self
from transport.control.secret import Secret
from transport.errors import Status, Unavailable
from transport.types import Offer

SECRET = Secret(b"a secret for the tests only")


def descriptors():
    """How many descriptors this process has open."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


class FakePeer:
    """What tn_peer_open returns."""

    def __init__(self, border, incarnation, cookie):
        self.border, self.incarnation, self.cookie = border, incarnation, cookie
        self.pointer = self
        self.state = Status.PENDING
        self.sock = self.reader = self.provider = self.depth = self.text = None
        self.released = False


class FakeBorder:
    """A native engine with the documented behaviour of peers and events and no data path."""

    def __init__(self):
        self.event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.events = deque()
        self.peers = []
        self.full = 0  # sends that find no room first
        self.lock = threading.Lock()

    def next_event(self):
        with self.lock:
            if self.events:
                return self.events.popleft()
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self.event_fd)
            return None

    def publish(self, event):
        with self.lock:
            self.events.append(event)
            os.eventfd_write(self.event_fd, 1)

    def open_peer(self, incarnation, cookie):
        peer = FakePeer(self, incarnation, cookie)
        self.peers.append(peer)
        return peer

    def open_self(self, cookie):
        peer = self.open_peer(b"", cookie)
        peer.state = Status.OK
        return peer

    def up(self, peer, fd, provider, depth):
        assert peer.state == Status.PENDING
        peer.state, peer.provider, peer.depth = Status.OK, provider, depth
        peer.sock = socket.socket(fileno=fd)
        peer.sock.setblocking(True)
        peer.reader = threading.Thread(target=self._read, args=(peer,), daemon=True)
        peer.reader.start()

    def _read(self, peer):
        with contextlib.suppress(OSError), peer.sock.makefile("rb") as stream:
            while head := stream.read(4):
                data = stream.read(int.from_bytes(head, "little"))
                self.publish(Event(CONTROL, peer.cookie, data=data))
        self._fail(peer, Status.PEER_LOST, "the peer closed the connection")

    def _fail(self, peer, status, text):
        if peer.state >= 0:
            peer.state, peer.text = status, text
            self.publish(Event(PEER_DOWN, peer.cookie, status, text))

    def down(self, peer, status, text):
        was_up = peer.state == Status.OK and peer.sock is not None
        self._fail(peer, status, text)
        if was_up:
            with contextlib.suppress(OSError):
                peer.sock.shutdown(socket.SHUT_RDWR)

    def send(self, peer, data):
        if self.full:
            self.full -= 1
            return False
        with contextlib.suppress(OSError):
            peer.sock.sendall(len(data).to_bytes(4, "little") + data)
        return True

    def release(self, peer):
        assert not peer.released
        peer.released = True

    def close(self):
        for peer in self.peers:
            self.down(peer, Status.CLOSED, "closed")
            if peer.sock is not None:
                peer.reader.join(5)
                peer.sock.close()
        os.close(self.event_fd)


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


def make_plane(
    *,
    incarnation=None,
    listen=None,
    secret=SECRET,
    endpoints=None,
    advertise=None,
    on_lost=None,
    name=None,
    **settings,
):
    """A plane over a fake border; `.border` and `.lost` beside the plane's own attributes."""
    border, lost = FakeBorder(), []
    incarnation = incarnation or os.urandom(16)

    def note(record):
        lost.append(record)
        if on_lost is not None:
            on_lost(record)

    plane = ControlPlane(
        border,
        Settings(**settings),
        oneself=Self(incarnation, name or f"test-{incarnation.hex()[:4]}", listen, advertise),
        secret=secret,
        endpoints={"shm": TalkingEndpoint(unix_only=True)} if endpoints is None else endpoints,
        callbacks=Callbacks(on_lost=note),
    )
    return SimpleNamespace(plane=plane, border=border, lost=lost, incarnation=incarnation)
