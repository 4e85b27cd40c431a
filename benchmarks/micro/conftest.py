"""Two engines in two processes, and a thread that keeps the GIL busy."""

from __future__ import annotations

import secrets
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import transport
from benchmarks.micro.owner import SIZE, own
from transport.cli import child

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

# The second process imports benchmarks.micro.owner, and gets this path from here.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


@pytest.fixture(scope="session")
def pair() -> Iterator[tuple[transport.Engine, transport.RemoteRegion]]:
    """This process's engine and a region of BLOCKS x SIZE bytes in another process."""
    secret = secrets.token_bytes(32)
    with (
        child.Child(own, secret) as owner,
        transport.Engine(name="micro", secret=secret) as engine,
    ):
        yield engine, owner.ask("remote")


@pytest.fixture
def engine(pair):
    return pair[0]


@pytest.fixture
def remote(pair):
    return pair[1]


@pytest.fixture
def block(engine) -> np.ndarray:
    return engine.empty((SIZE,), "uint8")


@pytest.fixture
def busy_thread() -> Iterator[None]:
    """A second Python thread that never blocks: a call that dropped the GIL must win it back."""
    stopped = False

    def spin() -> None:
        while not stopped:
            pass

    thread = threading.Thread(target=spin, daemon=True)
    thread.start()
    yield
    stopped = True
    thread.join()
