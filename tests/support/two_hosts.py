"""Two hosts, which are network namespaces: only TCP leads from one to the other."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

NEAR, FAR = "10.77.3.1", "10.77.3.2"
LINK = "m0"  # in each of them


def ip(*words: str) -> None:
    """Raises OSError with what the command says."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


@contextlib.contextmanager
def two_hosts() -> Iterator[tuple[str, str]]:
    """Names of namespaces that a veth pair joins; skips where they cannot be made."""
    names = f"tn-near-{os.getpid()}", f"tn-far-{os.getpid()}"
    with contextlib.ExitStack() as stack:
        for name in names:
            try:
                ip("netns", "add", name)
            except OSError as error:
                pytest.skip(f"netns: {error}")
            stack.callback(ip, "netns", "del", name)
            ip("-n", name, "link", "set", "lo", "up")
        one, other = (("name", LINK, "netns", name) for name in names)
        ip("link", "add", *one, "type", "veth", "peer", *other)
        for name, address in zip(names, (NEAR, FAR)):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", LINK)
            ip("-n", name, "link", "set", LINK, "up")
        yield names


@contextlib.contextmanager
def job(program: str, *hosts: str) -> Iterator[list[subprocess.Popen[str]]]:
    """A process on each of these hosts, as a launcher starts them."""
    common = {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "TRANSPORT_SECRET": "0123456789abcdef of the tests",
        "TRANSPORT_LIVENESS": "5",
        "TRANSPORT_HEARTBEAT": "0.5",
        "TRANSPORT_HEARTBEAT_TIMEOUT": "5",
        "WORLD_SIZE": str(len(hosts)),
        "MASTER_ADDR": NEAR,
        "MASTER_PORT": "29517",
    }
    with contextlib.ExitStack() as stack:
        started = []
        for rank, host in enumerate(hosts):
            process = subprocess.Popen(
                ["ip", "netns", "exec", host, sys.executable, "-c", program],
                env={**os.environ, **common, "RANK": str(rank)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            started.append(process)
            stack.callback(process.communicate)
            stack.callback(process.kill)
        yield started
