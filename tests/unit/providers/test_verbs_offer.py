"""The verbs offer on the wire: what a peer sends is checked before C sees it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.config import Settings
from transport.errors import PeerRefused
from transport.providers.base import Provider
from transport.providers.verbs import PROVIDER
from transport.providers.verbs.provider import _checked, _encode, _Offer
from transport.providers.verbs.rails import RailFacts

RAIL = RailFacts(0, "mlx5_0:1", bytes(range(16)), 64, 0, True, 2, 4096, 12.5, 0, 16, 16, True)
GOOD = _Offer(2, 2, [RAIL])


def test_there_and_back() -> None:
    assert _checked(_encode(GOOD)) == GOOD


@pytest.mark.parametrize(
    "change",
    [
        {"revision": 1},
        {"revision": 3},
        {"qps": 0},
        {"qps": 33},
        {"rails": [RAIL, RAIL]},
        {"rails": [RAIL] * 9},
    ],
)
def test_out_of_range(change: dict[str, object]) -> None:
    with pytest.raises(PeerRefused):
        _checked(_encode(msgspec.structs.replace(GOOD, **change)))


@pytest.mark.parametrize(
    "change",
    [
        {"gid": b"short"},
        {"number": 8},
        {"mtu": -1},
        {"numa": -2},
        {"prefix": 129},
        {"atomics": 2},
        {"atomics": None},
    ],
)
def test_rails_out_of_range(change: dict[str, object]) -> None:
    bad = msgspec.structs.replace(RAIL, **change)
    with pytest.raises(PeerRefused):
        _checked(_encode(msgspec.structs.replace(GOOD, rails=[bad])))


def test_a_rail_that_does_not_tell_of_atomics() -> None:
    told = msgspec.msgpack.decode(_encode(GOOD))
    told[2][0].pop()
    with pytest.raises(PeerRefused, match="not one of this protocol"):
        _checked(msgspec.msgpack.encode(told))


@given(st.binary(max_size=200))
def test_nonsense_is_refused(data: bytes) -> None:
    with pytest.raises(PeerRefused):
        _checked(data)


def test_absence_is_a_reason() -> None:
    assert isinstance(PROVIDER, Provider)
    viability = PROVIDER.probe(Settings(verbs_lib="/nonexistent/libibverbs.so.1"))
    assert not viability
    assert "/nonexistent/libibverbs.so.1 not found: install" in viability.reason
