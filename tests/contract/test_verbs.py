"""verbs keeps the contract, between two processes over the double of libibverbs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from fakeverbs import LIBRARY, Double

from transport.config import Settings
from transport.testing.contract import Contract, Way

if TYPE_CHECKING:
    from collections.abc import Iterator

# A send queue smaller than it says, which refuses oddly; completions that wake twice and outlive
# their queue pair; short messages, few entries, small registrations, no inline data.
_POOR = {
    "send_limit": 17,
    "full_style": 1,
    "duplicate_events": 1,
    "keep_on_destroy": 1,
    "max_msg_sz": 65536,
    "max_cqe": 512,
    "max_mr_size": 1 << 20,
    "max_inline": 0,
    "max_sge": 1,
    "max_qp_rd_atom": 1,
    "max_qp_init_rd_atom": 1,
    "atomic_cap": 0,
}


def _options(**settings: Any) -> dict[str, Any]:
    return {
        "providers": ("verbs", "tcp"),
        "secret": "a secret of this test run only",
        "listen": "127.0.0.1:0",
        "settings": Settings.from_env(verbs_lib=LIBRARY, **settings),
    }


class TestVerbs(Contract):
    way = Way("verbs", "rc", atomics=True, near=_options(), far=_options())


class TestVerbsOnPoorDevices(Contract):
    way = Way(
        "verbs",
        "rc",
        near=_options(verbs_depth=64),
        far=_options(verbs_depth=32),
        environment={"FAKEVERBS": " ".join(f"{name}={value}" for name, value in _POOR.items())},
    )

    @pytest.fixture(scope="class", autouse=True)
    @staticmethod
    def poor() -> Iterator[None]:
        double = Double()
        double.reset()
        double.set(**_POOR)
        yield
        double.reset()
