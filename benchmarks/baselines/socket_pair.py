"""Drives socket_pair.c: a bare TCP sender and receiver on loopback, one iteration when asked."""

from __future__ import annotations

import subprocess
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_BUILT = _HERE.parent.parent / "build" / "baselines" / "socket_pair"


def build() -> Path:
    """Compiles it where the source is newer; needs a C compiler called cc."""
    source = _HERE / "socket_pair.c"
    if not _BUILT.exists() or _BUILT.stat().st_mtime < source.stat().st_mtime:
        _BUILT.parent.mkdir(parents=True, exist_ok=True)
        command = ["cc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-o", str(_BUILT), str(source)]
        subprocess.run(command, check=True)
    return _BUILT


class SocketPair:
    """Two processes joined by TCP; `op` is "read" or "write" as seen from the client."""

    def __init__(self, size: int, op: str) -> None:
        command = [str(build()), str(size), op]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1)

    def once(self) -> int:
        """Nanoseconds that one move of `size` bytes took."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("1\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def __enter__(self) -> SocketPair:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # closes stdin, upon which both ends go
