"""verbs keeps the contract, between two processes over the double of libibverbs."""

from __future__ import annotations

from typing import Any

from fakeverbs import LIBRARY

from transport.config import Settings
from transport.errors import RemoteAccessError, StaleRegion
from transport.testing.contract import Contract, Way

_SETTINGS = Settings.from_env(verbs_lib=LIBRARY)
# A NIC does not tell a closed region from a wrong range; later transfers use TCP, which does.
_STALE = (StaleRegion, RemoteAccessError)
_VERBS: dict[str, Any] = {
    "providers": ("verbs", "tcp"),
    "secret": "a secret of this test run only",
    "listen": "127.0.0.1:0",
    "settings": _SETTINGS,
}


class TestVerbs(Contract):
    way = Way("verbs", "rc", near=_VERBS, far=_VERBS, stale=_STALE)
