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
import time
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


@contextlib.contextmanager
def second_wire(*networks: str, rxe: bool = True) -> Iterator[None]:
    """Another cable between a and b: interfaces va2 and vb2, with addresses .1/::1 and .2/::2 of
    each network ("10.8.2.", "fd00:8::"), and devices rxe_a2 and rxe_b2. It comes before the engines
    and goes after them.
    """
    run("ip", "-n", "a", "link", "add", "va2", "type", "veth", "peer", "name", "vb2", "netns", "b")
    try:
        for number, host in enumerate(("a", "b"), 1):
            _plug(host, number, networks, rxe)
        yield
    finally:
        run("ip", "-n", "a", "link", "del", "va2")  # its end on b and the devices go with it


def _plug(host: str, number: int, networks: tuple[str, ...], rxe: bool) -> None:
    interface = f"v{host}2"
    run("ip", "-n", host, "link", "set", interface, "mtu", "4200", "up")
    for network in networks:
        width, once = ("64", ["nodad"]) if ":" in network else ("24", [])
        address = f"{network}{number}/{width}"
        run("ip", "-n", host, "addr", "add", address, "dev", interface, *once)
    if rxe:
        run(*on(host), "rdma", "link", "add", f"rxe_{host}2", "type", "rxe", "netdev", interface)
        _await_gids(host, f"rxe_{host}2", len(networks))


def _await_gids(host: str, device: str, count: int) -> None:
    """The kernel fills the table from a work queue: the link-local one and one per network."""
    gids = f"cat /sys/class/infiniband/{device}/ports/1/gids/{{0..7}}"
    for _ in range(200):
        text = subprocess.run([*on(host), "bash", "-c", gids], capture_output=True, text=True)
        if sum(set(line) > {"0", ":"} for line in text.stdout.split()) > count:
            return
        time.sleep(0.05)
    raise AssertionError(f"{device} has not got its GIDs: {text.stdout}")


@contextlib.contextmanager
def netem(*what: str) -> Iterator[None]:
    """On what both hosts send over their first wire: `netem("loss", "1%")`."""
    ends = (("a", "va"), ("b", "vb"))
    for host, interface in ends:
        run(*on(host), "tc", "qdisc", "add", "dev", interface, "root", "netem", *what)
    try:
        yield
    finally:
        for host, interface in ends:
            run(*on(host), "tc", "qdisc", "del", "dev", interface, "root")


@contextlib.contextmanager
def mtu(host: str, interface: str, size: int) -> Iterator[None]:
    """Of one interface, and with it of the port behind it."""
    run("ip", "-n", host, "link", "set", interface, "mtu", str(size))
    try:
        yield
    finally:
        run("ip", "-n", host, "link", "set", interface, "mtu", "4200")


def resources() -> dict[str, int]:
    """How many of each kind of RDMA object processes have on this host's devices."""
    return {kind: sum("pid" in row for row in _rows(kind)) for kind in ("pd", "cq", "qp", "mr")}


def _rows(kind: str) -> list[dict[str, object]]:
    """What the kernel has for itself has no process number; ours have a thread's."""
    return json.loads(run("rdma", "-j", "resource", "show", kind) or "[]")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208
