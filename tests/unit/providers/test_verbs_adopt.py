"""Contexts that somebody else opened: found, checked, used, and left open."""

from __future__ import annotations

import ctypes
import gc
import os
from typing import TYPE_CHECKING, Any

import pytest
from fakeverbs import LIBRARY

import transport
from transport.config import Settings
from transport.errors import InvalidUse
from transport.providers.verbs.adopt import adopt

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Double:
    """The library as another user of it in this process."""

    def __init__(self) -> None:
        self._lib = ctypes.CDLL(LIBRARY)
        for name in ("ibv_get_device_list", "ibv_open_device"):
            getattr(self._lib, name).restype = ctypes.c_void_p

    def open(self) -> int:
        count = ctypes.c_int()
        devices = self._lib.ibv_get_device_list(ctypes.byref(count))
        first = ctypes.c_void_p.from_address(devices)
        address = self._lib.ibv_open_device(first)
        self._lib.ibv_free_device_list(ctypes.c_void_p(devices))
        assert address
        return int(address)

    def close(self, address: int) -> None:
        assert self._lib.ibv_close_device(ctypes.c_void_p(address)) == 0

    def count(self, name: str) -> int:
        self._lib.fakeverbs_get.restype = ctypes.c_long
        return int(self._lib.fakeverbs_get(name.encode()))


@pytest.fixture
def double() -> Double:
    return Double()


@pytest.fixture
def context(double: Double) -> Iterator[int]:
    address = double.open()
    yield address
    double.close(address)


def settings(tmp_path: Path) -> Settings:
    return Settings.from_env(verbs_lib=LIBRARY, secret_file=None, verbs_sysfs=tmp_path)


def test_by_address(double: Double, context: int, tmp_path: Path) -> None:
    """The engine uses the context, opens none of its own, and leaves it open."""
    before = double.count("contexts")
    options: dict[str, Any] = {
        "providers": ("verbs", "tcp"), "secret": "a secret of this test run only",
        "listen": "127.0.0.1:0", "settings": settings(tmp_path),
    }  # fmt: skip
    near = transport.Engine(verbs_context=context, **options)
    far = transport.Engine(**options)
    with near, far:
        assert double.count("contexts") == before + 1  # that of the other engine
        target = bytearray(1 << 20)
        region = far.register(target)
        done = near.write(b"\x5a" * len(target), region.remote())
        done.wait(30)
        assert done.provider == "verbs"
        assert target == b"\x5a" * len(target)
        region.close()
    del near, far
    gc.collect()
    assert double.count("contexts") == before


def test_what_is_no_context(context: int, tmp_path: Path) -> None:
    buffer = ctypes.create_string_buffer(4096)
    for wrong in (0, -8, 1 << 63, True, 16, ctypes.addressof(buffer) & ~7, context + 1):
        with pytest.raises(InvalidUse):
            adopt(wrong, LIBRARY)
    for wrong in ("mlx5_0", object(), 3.5, {"context": context}):
        with pytest.raises(InvalidUse, match=r"verbs_context= takes a pyverbs Context"):
            adopt(wrong, LIBRARY)
    with pytest.raises(InvalidUse, match="no address of a struct ibv_context"):
        adopt(0, LIBRARY)
    with pytest.raises(InvalidUse, match="no readable struct ibv_context"):
        adopt(16, LIBRARY)
    with pytest.raises(InvalidUse, match="two contexts of fake0"):
        adopt([context, context], LIBRARY)
    with pytest.raises(InvalidUse, match="takes a pyverbs Context"):
        transport.Engine(verbs_context=object(), settings=settings(tmp_path))
    with pytest.raises(InvalidUse, match='without the provider "verbs"'):
        transport.Engine(verbs_context=context, providers=("tcp",), settings=settings(tmp_path))
    assert adopt(context, LIBRARY) == {"fake0": context}
    assert adopt([context], LIBRARY) == {"fake0": context}


class Context:
    """An object of the shape of pyverbs': the pointer is somewhere in its memory, under no name."""

    __module__ = "pyverbs.device"
    __slots__ = ("name", "words")

    def __init__(self, name: str | bytes, words: Any) -> None:
        self.name = name
        self.words = words


def test_an_object_that_has_the_pointer_somewhere(context: int) -> None:
    """Each word of it is tried; nothing wrong is followed."""
    for name in ("fake0", b"fake0"):
        with pytest.raises(InvalidUse, match=r"closed, or uses another copy of libibverbs"):
            adopt(Context(name, os.urandom(64)), LIBRARY)
        made = Context(name, None)
        word = ctypes.c_size_t.from_address(id(made) + type(made).__basicsize__ - 8)
        kept = word.value
        word.value = context
        try:
            assert adopt(made, LIBRARY) == {"fake0": context}
            made.name = "mlx5_0"
            with pytest.raises(InvalidUse, match="closed"):
                adopt(made, LIBRARY)
        finally:
            word.value = kept
