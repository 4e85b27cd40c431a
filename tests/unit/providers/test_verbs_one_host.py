"""verbs between engines of one host, joined by a unix socket: offered, and used when asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from fakeverbs import LIBRARY, Double

from transport import Engine
from transport.config import Settings

if TYPE_CHECKING:
    from pathlib import Path

WAIT = 60.0


def engine(path: Path, **settings: Any) -> Engine:
    made = Settings.from_env(verbs_lib=LIBRARY, **settings)
    return Engine(listen=f"unix:{path}", secret="a secret of this test only", settings=made)


def test_only_where_it_is_asked_for(double: Double, tmp_path: Path) -> None:
    with engine(tmp_path / "a") as near, engine(tmp_path / "b", verbs_qps_per_peer=3) as far:
        memory, source = np.zeros(4096, np.uint8), np.arange(4096, dtype=np.uint8)
        with far.register(memory) as region:
            remote = region.remote()
            assert near.write(source, remote).wait(WAIT).provider == "shm"
            assert double.get("qps") == 0  # lanes open at the first use
            memory[:] = 0
            assert near.write(source, remote, provider="verbs").wait(WAIT).provider == "verbs"
            assert np.array_equal(memory, source)
            (lane,) = next(iter(near.peers)).lanes()  # the lesser of 1 and 3
            assert (lane.device, lane.state, lane.bytes) == ("fake0", "ready", 4096)
            assert lane.operations >= 1
            assert lane.reason == ""
