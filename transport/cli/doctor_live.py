"""The live half of `transport doctor`: every provider moves bytes, or says why not.

May import engine and providers.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transport.cli.bench_side import fill, is_pattern, listen_for, open_engine, pick_address
from transport.errors import TransportError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transport.config import Settings
    from transport.engine.engine import Engine

_GPU_ONLY = ("gpu_ipc", "staged")
_SIZE = 1 << 20
_SEED = 7
_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True)
class Trial:
    """One provider: "passed", "unavailable" (with reason and remedy) or "failed"."""

    provider: str
    state: str
    detail: str
    remedy: str = ""
    path: str = ""


def trials(settings: Settings) -> Iterator[Trial]:
    """All providers that this library knows, third parties' too."""
    from transport.providers import registry

    for name in registry.names():
        try:
            viability = registry.find(name).probe(settings)
            if not viability.usable:
                yield Trial(name, "unavailable", viability.reason, _beyond(viability.remedy))
            else:
                yield _trial(name)
        except Unavailable as error:
            yield Trial(name, "unavailable", error.reason, _beyond(error.remedy))
        except (TransportError, OSError) as error:
            yield Trial(name, "failed", f"{type(error).__name__}: {error}")


def _beyond(remedy: str) -> str:
    """Nothing for one that sends the reader here."""
    return "" if "`transport doctor`" in remedy else remedy


def _trial(provider: str) -> Trial:
    """Writes and reads back 1 MiB between two engines of this process."""
    secret = secrets.token_bytes(32)
    with (
        open_engine("doctor-a", provider, secret=secret) as near,
        open_engine("doctor-b", provider, secret=secret, listen=listen_for(provider)) as far,
    ):
        near.connect(pick_address(far.addresses, provider), timeout=_TIMEOUT)
        good, path = (_gpu_trip if provider in _GPU_ONLY else _trip)(near, far, provider)
    if not good:
        return Trial(provider, "failed", "the bytes that arrived are not those that were sent")
    return Trial(provider, "passed", f"1 MiB written and read back ({path})", path=path)


def _trip(near: Engine, far: Engine, provider: str) -> tuple[bool, str]:
    """Whether what came back is right, and the path there."""
    import numpy as np

    target = far.empty((_SIZE,), "uint8")
    source, copy = np.empty(_SIZE, np.uint8), np.zeros(_SIZE, np.uint8)
    fill(source, _SEED)
    with far.register(target) as region:
        remote = region.remote()
        done = near.write(source, remote, provider=provider, deadline=_TIMEOUT).wait()
        near.read(remote, copy, provider=provider, deadline=_TIMEOUT).wait()
        good = is_pattern(target, _SEED) and is_pattern(copy, _SEED)
    return good, done.path or ""


def _gpu_trip(near: Engine, far: Engine, provider: str) -> tuple[bool, str]:
    """The same to a GPU's memory; Unavailable without a GPU."""
    import numpy as np

    target = far.empty((_SIZE,), "uint8", device="cuda")
    source, copy = np.empty(_SIZE, np.uint8), np.zeros(_SIZE, np.uint8)
    fill(source, _SEED)
    with far.register(target) as region:
        remote = region.remote()
        done = near.write(source, remote, provider=provider, deadline=_TIMEOUT).wait()
        near.read(remote, copy, provider=provider, deadline=_TIMEOUT).wait()
    return is_pattern(copy, _SEED), done.path or ""
