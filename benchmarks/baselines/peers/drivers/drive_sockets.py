"""No library: TCP sockets on loopback, a thread for each at either end, who send and receive.

The bytes of a batch are cut evenly between the sockets, and each block, or part of one, is one call
that does not hold the interpreter. A batch ends with one byte back, when all has arrived.
"""

from __future__ import annotations

import platform
import socket
from concurrent.futures import ThreadPoolExecutor

from protocol import Driver, aligned, clocked, serve

_HOST = "127.0.0.1"


class Sockets(Driver):
    version = f"Linux {platform.release()}"

    def __init__(self, role, options):
        super().__init__(role, options)
        self.buffer = aligned(self.bytes)
        self.threads = ThreadPoolExecutor(options["streams"])
        self.sockets, self.parts = [], []
        self.listener = socket.create_server((_HOST, 0)) if role == "target" else None

    def facts(self):
        return {"port": self.listener.getsockname()[1]} if self.listener else {}

    def connect(self, facts):
        for _ in range(self.options["streams"]):
            if self.listener:
                one = self.listener.accept()[0]
            else:
                one = socket.create_connection((_HOST, facts["port"]))
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.sockets.append(one)

    def prepare(self, layout):
        places = layout.offsets(self.role).tolist()
        share = -(-layout.bytes // len(self.sockets))
        self.parts = [
            list(self._between(places, layout.size, at, min(at + share, layout.bytes)))
            for at in range(0, layout.bytes, share)
        ]

    def _between(self, places, size, at, end):
        """The memory of bytes `at` to `end` of the batch."""
        view = memoryview(self.buffer)
        while at < end:
            block, skip = divmod(at, size)
            length = min(size - skip, end - at)
            begin = places[block] + skip
            yield view[begin : begin + length]
            at += length

    def run(self, count):
        if self.role == "initiator":
            return clocked(self._send, count)
        for _ in range(count):
            self._all(_receive_all)
            self.sockets[0].sendall(b"1")
        return None

    def _send(self):
        self._all(_send_all)
        if not self.sockets[0].recv(1):
            raise ConnectionError("the other side went away")

    def _all(self, move):
        list(self.threads.map(move, self.sockets, self.parts))

    def close(self):
        for one in self.sockets:
            one.close()


def _send_all(one, parts):
    for part in parts:
        one.sendall(part)


def _receive_all(one, parts):
    for part in parts:
        while part:
            got = one.recv_into(part, len(part), socket.MSG_WAITALL)
            if not got:
                raise ConnectionError("the other side went away")
            part = part[got:]


serve(Sockets)
