"""Which providers a transfer may use."""

from __future__ import annotations

import pytest

from transport.engine.path import Paths
from transport.errors import InvalidUse, Unavailable

PATHS = Paths({"shm": 0, "verbs": 1, "tcp": 2, "pigeon": 5})


@pytest.mark.parametrize(
    ("provider", "fallback", "attached", "mask"),
    [
        (None, None, (), 0b100111),
        (None, "allow", (), 0b100111),
        (None, "error", ("tcp", "verbs"), 0b10),
        (None, "error", ("pigeon",), 0b100000),
        ("verbs", None, (), 0b10),
        ("verbs", "error", ("shm",), 0b10),
        ("verbs", "allow", (), 0b100110),
    ],
)
def test_masks(provider, fallback, attached, mask):
    assert PATHS.mask(provider, fallback, attached) == mask


def test_what_is_for_gpus_only_leaves_host_memory_to_the_next():
    paths = Paths({"gpu_ipc": 3, "shm": 0, "tcp": 2})
    assert paths.mask(None, "error", ("gpu_ipc", "shm", "tcp")) == 0b1001
    assert paths.mask(None, "error", ("shm", "tcp")) == 0b1
    assert paths.mask("gpu_ipc", None, ()) == 0b1000


def test_refusals():
    with pytest.raises(InvalidUse, match="no provider 'x'; it has shm, verbs"):
        PATHS.mask("x", None, ())
    with pytest.raises(InvalidUse, match="'allow' or 'error'"):
        PATHS.mask(None, "yes", ())
    with pytest.raises(Unavailable):
        PATHS.mask(None, "error", ())


def test_a_provider_of_no_use_here_says_why():
    paths = Paths({"shm": 0}, {"verbs": "no RDMA devices"})
    with pytest.raises(Unavailable, match="verbs cannot be used here: no RDMA devices"):
        paths.mask("verbs", None, ())


def test_names():
    assert PATHS.name(5) == "pigeon"
    assert PATHS.name(8) is None
