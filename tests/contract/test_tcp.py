"""tcp keeps the contract, with IPv4 and IPv6."""

from __future__ import annotations

from typing import Any

from transport.testing.contract import Contract, Way

_TCP: dict[str, Any] = {"providers": ("tcp",), "secret": "a secret of this test run only"}


class TestTcp(Contract):
    way = Way("tcp", "tcp", near=_TCP, far={**_TCP, "listen": "127.0.0.1:0"})
