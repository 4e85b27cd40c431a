"""A killed process that had forked is lost at once: its children hold no socket of it."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from transport import Engine, PeerLost, RemoteRegion, Settings

PATIENT = Settings.from_env(liveness=1000.0)  # its silence alone does not make a peer lost

OWNER = """
import os, sys, time
from transport import Engine

engine = Engine(name="owner", listen=sys.argv[1] or None)
memory = engine.empty(1 << 20, "uint8")  # mapped: reading it asks nobody
region = engine.register(memory)
print(region.remote().to_json(), flush=True)
sys.stdin.readline()  # the peer is connected by now
child = os.fork()
if child == 0:
    time.sleep(300)
    os._exit(0)
print(child, flush=True)
time.sleep(300)
"""


def read_until(end: float, engine: Engine, remote: RemoteRegion, local: object) -> None:
    while time.monotonic() < end:
        engine.read(remote, local).wait(60)
        time.sleep(0.01)


@pytest.mark.parametrize("providers", [["shm"], ["tcp"]])
def test_a_killed_parent_is_lost_although_its_child_lives(providers: list[str]) -> None:
    listen = "127.0.0.1:0" if providers == ["tcp"] else ""
    with (
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", OWNER, listen],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as owner,
        Engine(name="witness", providers=providers, settings=PATIENT) as engine,
    ):
        assert owner.stdin is not None
        assert owner.stdout is not None
        remote = RemoteRegion.from_json(owner.stdout.readline())
        local = np.zeros(1 << 20, "uint8")
        engine.read(remote, local).wait(60)
        owner.stdin.write("\n")
        owner.stdin.flush()
        child = int(owner.stdout.readline())
        try:
            owner.send_signal(signal.SIGKILL)
            with pytest.raises(PeerLost):
                read_until(time.monotonic() + 60, engine, remote, local)
            assert pathlib.Path(f"/proc/{child}").exists()
        finally:
            os.kill(child, signal.SIGKILL)
