"""What a process of a mesh does once it is set up: serves its link until it ends.

May import link, messages, payload and process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

    from transport.mesh.process import Place


def serve(sock: socket.socket, place: Place) -> None:
    """Takes the socket; returns when its other end says stop or is gone."""
    with sock:
        while sock.recv(1 << 16):
            pass
