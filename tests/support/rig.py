"""The rig's hosts, seen from a test that runs in the guest.

Duty: move the test's own process from host to host, and tell what the kernel holds there. May
import: the standard library. Hosts are network namespaces (tests/rig/two_hosts.sh); RDMA devices
belong to one each.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ADDRESSES = {"a": "10.8.0.1", "b": "10.8.0.2", "c": "10.8.1.1"}
DEVICES = {"a": "rxe_a", "b": "rxe_b", "c": "rxe_c0"}

_CLONE_NEWNS, _CLONE_NEWNET = 0x20000, 0x40000000
_MS_REC, _MS_SLAVE, _MNT_DETACH = 0x4000, 0x80000, 2


def on(host: str) -> tuple[str, ...]:
    """The command that runs another one on a host."""
    return ("ip", "netns", "exec", host)


def _call(name: str, *arguments: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}{arguments}: {os.strerror(error)}")


@contextlib.contextmanager
def moving() -> Iterator[None]:
    """Inside, `enter` works. The mounts that this process sees are its own from here on."""
    _call("unshare", _CLONE_NEWNS)
    _call("mount", b"none", b"/", None, _MS_REC | _MS_SLAVE, None)
    yield


@contextlib.contextmanager
def enter(host: str) -> Iterator[None]:
    """This thread, and the threads and processes that it makes, are on the host inside."""
    with Path("/proc/self/ns/net").open() as before, Path("/run/netns", host).open() as wanted:
        _move(wanted.fileno())
        try:
            yield
        finally:
            _move(before.fileno())


def _move(namespace: int) -> None:
    """A sysfs shows the devices of the namespace in which it was mounted, hence a new one."""
    _call("setns", namespace, _CLONE_NEWNET)
    _call("umount2", b"/sys", _MNT_DETACH)
    _call("mount", b"sysfs", b"/sys", b"sysfs", 0, None)


def run(*command: str) -> str:
    """Standard output; raises when the command fails."""
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout


def resources() -> dict[str, int]:
    """How many of each kind of RDMA object processes have on this host's devices."""
    return {kind: sum("pid" in row for row in _rows(kind)) for kind in ("pd", "cq", "qp", "mr")}


def _rows(kind: str) -> list[dict[str, object]]:
    """What the kernel has for itself has no process number; ours have a thread's."""
    return json.loads(run("rdma", "-j", "resource", "show", kind) or "[]")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208
