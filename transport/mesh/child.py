"""The program of a process that a host on this machine started: `-m transport.mesh.child FD`.

May import serve and process.
"""

from __future__ import annotations

import socket
import sys

from transport.mesh.process import Place
from transport.mesh.serve import serve


def main() -> None:
    serve(socket.socket(fileno=int(sys.argv[1])), Place())


if __name__ == "__main__":
    main()
