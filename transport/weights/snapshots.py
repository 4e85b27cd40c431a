"""Publishing copies: the last versions in memory that peers on this host can map.

May import engine, memory and errors. One block and one region hold all slots, however many tensors
there are.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from transport.errors import InvalidUse
from transport.memory.remote import RemoteRegion

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transport.engine.engine import Engine
    from transport.memory.host import View

_ALIGNED = 64  # bytes: a cache line


class Snapshots:
    """`keep` versions and the one that is being written."""

    def __init__(
        self, engine: Engine, tensors: Mapping[str, Any], views: Mapping[str, View], keep: int
    ) -> None:
        self.slots = keep + 1
        self._size, offsets = _packed(views)
        self._copy: _Torch | _Numpy
        torch: Any = sys.modules.get("torch")
        if torch is not None and any(map(torch.is_tensor, tensors.values())):
            self._copy, kind = _Torch(torch), torch.uint8
        else:
            self._copy, kind = _Numpy(), "uint8"
        block = engine.empty(self.slots * self._size, kind, access="read")
        self._sources = [self._copy.source(tensors[name]) for name in views]
        self._region = engine.register(block, access="read")
        whole = self._region.remote()
        self.handles: list[dict[str, RemoteRegion]] = []
        self._targets: list[Sequence[Any]] = []
        for base in range(0, self.slots * self._size, self._size):
            parts = {
                name: (block[base + at : base + at + views[name].nbytes], views[name])
                for name, at in offsets.items()
            }
            self._targets.append([self._copy.target(*part) for part in parts.values()])
            self.handles.append(
                {
                    name: RemoteRegion(
                        whole._owner, whole.offset + base + at, views[name].dtype, views[name].shape
                    )
                    for name, at in offsets.items()
                }
            )

    @property
    def nbytes(self) -> int:
        """What publishing takes beside the tensors themselves."""
        return self.slots * self._size

    def check(self) -> None:
        """The tensors are looked up when they are copied."""

    def take(self, slot: int) -> None:
        """Copies the tensors as they are now. Raises InvalidUse once it is closed."""
        targets, sources = self._targets, self._sources
        if not targets:
            raise InvalidUse("this publication was closed while a version of it was published")
        self._copy.all(targets[slot], sources)

    def close(self) -> None:
        self._region.close()
        self._targets, self._sources = [], []  # another thread may be copying


def _packed(views: Mapping[str, View]) -> tuple[int, dict[str, int]]:
    """Bytes for all of them, and where each begins."""
    offsets: dict[str, int] = {}
    end = 0
    for name, view in views.items():
        offsets[name] = end
        end += -(-view.nbytes // _ALIGNED) * _ALIGNED
    return max(end, _ALIGNED), offsets


class _Torch:
    """All of them in one call, by torch's own threads."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def source(self, tensor: Any) -> Any:
        if isinstance(tensor, np.ndarray):
            return self._torch.from_numpy(tensor)
        return tensor  # not .detach(): what is assigned to its .data later is to be copied

    def target(self, memory: Any, view: View) -> Any:
        dtype = getattr(self._torch, str(view.dtype))
        if not view.nbytes:
            return self._torch.empty(tuple(view.shape), dtype=dtype)
        return memory.view(dtype).view(tuple(view.shape))

    def all(self, targets: Sequence[Any], sources: Sequence[Any]) -> None:
        if not targets:
            return
        with self._torch.no_grad():
            self._torch._foreach_copy_(targets, sources)


class _Numpy:
    def source(self, array: Any) -> Any:
        return array

    def target(self, memory: Any, view: View) -> Any:
        return memory.view(view.dtype).reshape(view.shape)

    def all(self, targets: Sequence[Any], sources: Sequence[Any]) -> None:
        for target, source in zip(targets, sources):
            np.copyto(target, source)


def check_keep(keep: Any, most: int) -> int:
    """How many versions are kept, as it came from the user. Raises InvalidUse."""
    if isinstance(keep, bool) or not isinstance(keep, int) or not 1 <= keep < most:
        raise InvalidUse(f"keep is between 1 and {most - 1}, not {keep!r:.80}")
    return keep
