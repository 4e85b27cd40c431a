"""verbs keeps the contract over whatever RDMA device is here (tests/rig brings one)."""

from __future__ import annotations

from typing import Any

import pytest

from transport.testing.contract import Contract, Way

_VERBS: dict[str, Any] = {
    "providers": ("verbs", "tcp"),
    "secret": "a secret of this test run only",
    "listen": "127.0.0.1:0",
}


@pytest.mark.rdma
class TestVerbsDevice(Contract):
    way = Way("verbs", "rc", atomics=True, near=_VERBS, far=_VERBS)
