"""A network between two planes that a test can stop or cut, and small things to do with both."""

from __future__ import annotations

import contextlib
import socket
import threading


def tcp_address(server):
    return f"127.0.0.1:{server.getsockname()[1]}"


def wait_up(record, seconds=60):
    """Raises why it is lost."""
    record.ready.result(seconds)
    record.check()
    return record


class Relay:
    """The network between the one who connects and an engine: it can stand still, and break."""

    def __init__(self, target):
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._server = socket.create_server(("127.0.0.1", 0))
        self._ends = []
        self.address = tcp_address(self._server)
        self.flows = threading.Event()
        self.flows.set()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        with contextlib.suppress(OSError):
            self._ends.append(self._server.accept()[0])
            self._ends.append(socket.create_connection(self._target))
            near, far = self._ends
            back = threading.Thread(target=self._pass_on, args=(far, near))
            back.start()
            self._pass_on(near, far)
            back.join()

    def _pass_on(self, source, sink):
        with contextlib.suppress(OSError):
            while self.flows.wait() and (part := source.recv(1 << 16)):
                sink.sendall(part)

    def cut_near(self):
        """The side that connected finds the link broken; the other one hears nothing."""
        self._ends[0].shutdown(socket.SHUT_RDWR)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.flows.set()
        for sock in (self._server, *self._ends):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for sock in (self._server, *self._ends):
            sock.close()
