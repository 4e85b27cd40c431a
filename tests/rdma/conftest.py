"""Real verbs in the guest that tests/rig boots; `make test-rdma` runs this folder there.

pytest itself moves onto a host (fixtures `on_b`, `on_c`), and its engine is the near side; the far
sides are processes on host a, or on c, too.
"""

from __future__ import annotations

import os

import pytest
import rig
from capabilities import require


@pytest.fixture(scope="session", autouse=True)
def guest():
    require("rdma", None if "TRANSPORT_RIG" in os.environ else "not in the guest: `make test-rdma`")
    os.environ["TRANSPORT_SECRET"] = "a secret of this test run only"
    with rig.moving():
        yield


@pytest.fixture(scope="module")
def on_b(guest):
    with rig.enter("b"):
        yield


@pytest.fixture(scope="module")
def on_c(guest):
    with rig.enter("c"):
        yield
