"""The verbs offer on the wire: what a peer sends is checked before C sees it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.config import Settings
from transport.errors import PeerRefused
from transport.ffi import ffi
from transport.providers.base import Provider
from transport.providers.verbs import PROVIDER
from transport.providers.verbs.provider import _encode, _Facts, _native_offer

GOOD = _Facts(bytes(range(16)), 1 << 47, 5, 64, 17, 99, 0, 4096, 0, 2, 16, 16)


def test_there_and_back() -> None:
    native = _native_offer(_encode(GOOD))
    assert bytes(ffi.buffer(native.gid)) == GOOD.gid
    for name in _Facts.__struct_fields__[1:]:
        assert getattr(native, name) == getattr(GOOD, name)


@pytest.mark.parametrize(
    "change",
    [{"gid": b"short"}, {"queue_pair": 1 << 32}, {"mtu": -1}, {"ring_address": -5}],
)
def test_out_of_range(change: dict[str, object]) -> None:
    with pytest.raises(PeerRefused):
        _native_offer(_encode(msgspec.structs.replace(GOOD, **change)))


@given(st.binary(max_size=200))
def test_nonsense_is_refused(data: bytes) -> None:
    with pytest.raises(PeerRefused):
        _native_offer(data)


def test_absence_is_a_reason() -> None:
    assert isinstance(PROVIDER, Provider)
    viability = PROVIDER.probe(Settings(verbs_lib="/nonexistent/libibverbs.so.1"))
    assert not viability
    assert "/nonexistent/libibverbs.so.1 not found: install" in viability.reason
