"""What runs where a fleet's processes shall be: a local host, commanded over one proven socket.

May import introduction, orders and local. It is started by a launcher, by Ray or by Monarch, joins
the fleet of its job, starts and ends processes as it is told, and reports their output and ends.
When the fleet is gone all of its processes end.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import threading
from typing import TYPE_CHECKING

from transport.control.messages import LENGTH, MAX_FRAME
from transport.errors import PeerError, PeerLost, TransportError
from transport.mesh.hosts import orders
from transport.mesh.hosts.introduction import join, party
from transport.mesh.hosts.local import LocalHost
from transport.mesh.process import Start

if TYPE_CHECKING:
    import concurrent.futures
    import socket
    from collections.abc import Sequence
    from typing import Any

    from transport.control.address import Address
    from transport.control.secret import Secret
    from transport.mesh.hosts.nursery import Child
    from transport.mesh.process import Cause

_log = logging.getLogger(__name__)
_LINK_TIMEOUT = 30.0


class Agent:
    """One of a job's agents; `index` tells which."""

    def __init__(
        self, addresses: Sequence[Address], secret: Secret | None, job: str, index: int
    ) -> None:
        self._addresses = addresses
        self._who = party(f"agent {index} on {platform.node()}", secret)
        self._job, self._index = job, index
        self._lock = threading.Lock()
        self._children: dict[int, Child] = {}
        self._socket: socket.socket | None = None

    def run(self, host: LocalHost, timeout: float) -> None:
        """Joins within `timeout` seconds, then serves; returns when the fleet says that all is
        over. Raises PeerLost when the fleet is gone, PeerRefused when it does not want us.
        """
        enlist = orders.Enlist(self._job, self._index, platform.node(), os.getpid())
        self._socket = join(self._addresses, self._who, enlist, timeout)
        with self._socket:
            while True:
                order = orders.decode(self._read(), orders.ORDER)
                if isinstance(order, orders.Leave):
                    return
                self._obey(order, host)

    def say(self, label: str, stream: int, line: str) -> None:
        """For the host's `logs`."""
        self._send(orders.Said(label, stream, line[:2048]))

    def _obey(self, order: orders.Begin | orders.Kill, host: LocalHost) -> None:
        if isinstance(order, orders.Kill):
            child = self._children.get(order.number)
            if child is not None:
                host.kill(child)
            return
        try:
            child = self._begin(order, host)
        except TransportError as error:
            self._send(orders.Over(order.number, None, None, str(error)[:2048], ()))
            return
        self._children[order.number] = child
        self._send(orders.Begun(order.number, child.begun.result(0)))
        child.ended.add_done_callback(lambda ended: self._report(order.number, ended))

    def _begin(self, order: orders.Begin, host: LocalHost) -> Child:
        connect = orders.Connect(self._job, order.number)
        with join(self._addresses, self._who, connect, _LINK_TIMEOUT) as link:
            start = Start(order.rank, order.name, order.environment)
            return host.start_on([start], [link])[0]

    def _report(self, number: int, ended: concurrent.futures.Future[Cause]) -> None:
        self._children.pop(number, None)
        cause = ended.result()
        lines = tuple(line[:1000] for line in cause.logs)
        self._send(orders.Over(number, cause.code, cause.signal, cause.text, lines))

    def _send(self, news: orders.News) -> None:
        # A fleet that is gone is noticed by who reads.
        with self._lock, contextlib.suppress(OSError):
            if self._socket is not None:
                self._socket.sendall(orders.frame(news))

    def _read(self) -> bytes:
        (length,) = LENGTH.unpack(self._exactly(LENGTH.size))
        if not 0 < length <= MAX_FRAME:
            raise PeerLost(f"the fleet sent a frame of {length} bytes")
        return self._exactly(length)

    def _exactly(self, length: int) -> bytes:
        assert self._socket is not None
        data = b""
        while len(data) < length:
            try:
                part = self._socket.recv(length - len(data))
            except OSError as error:
                raise PeerLost(f"the mesh's owner is gone: {error.strerror}") from None
            if not part:
                raise PeerLost("the mesh's owner is gone")
            data += part
        return data


def serve(agent: Agent, timeout: float, options: dict[str, Any]) -> int:
    """With a local host of these options. An exit status: 0 when the fleet was closed."""
    host = LocalHost(logs=agent.say, **options)
    try:
        agent.run(host, timeout)
    except PeerError as error:
        _log.error("%s", error)
        return 1
    finally:
        host.close()
    return 0
