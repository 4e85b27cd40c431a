"""Drives socket_pair.c: a bare TCP sender and receiver on loopback, one iteration when asked."""

from __future__ import annotations

import subprocess
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_BUILT = _HERE.parent.parent / "build" / "baselines"


def build(name: str = "socket_pair") -> Path:
    """Compiles one of the C programs here where its source is newer; needs a compiler called cc."""
    source, program = _HERE / f"{name}.c", _BUILT / name
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        _BUILT.mkdir(parents=True, exist_ok=True)
        command = ["cc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-pthread", "-o"]
        subprocess.run([*command, str(program), str(source)], check=True)
    return program


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
