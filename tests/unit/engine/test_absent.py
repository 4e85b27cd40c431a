"""A peer that has no verbs says why, and both ends tell it to whoever asks for verbs."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from fakeverbs import LIBRARY, Device, Double, Gid, Port, write_sysfs

from transport import Engine
from transport.config import Settings
from transport.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WAIT = 60.0
LEFT_OUT = "leaves it out"
NO_LIBRARY = "/no/such/libibverbs.so"


@contextlib.contextmanager
def engine(*providers: str, **settings: object) -> Iterator[Engine]:
    made = Settings.from_env(**settings)
    options = {"secret": "a secret of this test only", "listen": "127.0.0.1:0"}
    with Engine(providers=providers, settings=made, **options) as opened:
        yield opened


@pytest.fixture
def able(double: Double, tmp_path: Path) -> Iterator[Engine]:
    """One with a device."""
    devices = [Device("mlx5_0", (Port(gids={3: Gid("10.9.0.1")}),))]
    double.configure(devices)
    write_sysfs(tmp_path, devices)
    with engine("verbs", "tcp", verbs_lib=LIBRARY, verbs_sysfs=tmp_path) as opened:
        yield opened


@pytest.mark.parametrize(
    ("providers", "settings", "said"),
    [
        (("tcp",), {}, LEFT_OUT),
        (("verbs", "tcp"), {"verbs_lib": NO_LIBRARY}, NO_LIBRARY),
    ],
)
@pytest.mark.parametrize("able_begins", [True, False])
def test_why_the_peer_has_none(
    able: Engine, providers: tuple[str, ...], settings: dict, said: str, able_begins: bool
) -> None:
    with engine(*providers, **settings) as unable, unable.register(bytearray(100)) as region:
        if not able_begins:
            with able.register(bytearray(100)) as other:
                unable.read(other.remote(), bytearray(100)).wait(WAIT)
        read = able.read(region.remote(), bytearray(100), provider="verbs")
        with pytest.raises(Unavailable, match=rf"has no verbs: the peer says: .*{said}"):
            read.wait(WAIT)
        told = [line for line in able.peers[0].explain() if line.startswith("verbs: not used")]
        assert len(told) == 1
        assert said in told[0]
