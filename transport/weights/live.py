"""Publishing the trainer's own memory: nothing is copied, and there is one version.

May import engine, memory and errors.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from transport.errors import InvalidUse

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from transport.engine.engine import Engine
    from transport.memory.host import View
    from transport.memory.region import Region
    from transport.memory.remote import RemoteRegion


class Live:
    """A region for each tensor."""

    slots = 1

    def __init__(
        self, engine: Engine, tensors: Mapping[str, Any], views: Mapping[str, View]
    ) -> None:
        for name, view in views.items():
            if not view.contiguous:
                raise InvalidUse(
                    f'{name}: mode="live" needs contiguous tensors; publish a .contiguous() one, or'
                    ' use mode="snapshot"'
                )
        # Arrays keep their memory; torch can give a tensor another.
        self._loose = {name: it for name in views if hasattr(it := tensors[name], "data_ptr")}
        self._places = _places(self._loose.values())
        self._regions: list[Region] = []
        self.handles: list[dict[str, RemoteRegion]] = [{}]
        try:
            for name in views:
                region = engine.register(tensors[name], access="read")
                self._regions.append(region)
                self.handles[0][name] = region.remote()
        except BaseException:
            self.close()
            raise

    @property
    def nbytes(self) -> int:
        """What publishing takes beside the tensors themselves."""
        return 0

    def check(self) -> None:
        """Raises InvalidUse where a tensor has moved to other memory since it was published."""
        places = _places(self._loose.values())
        if places == self._places:
            return
        before, after = zip(*self._places), zip(*places)
        moved = [name for name, a, b in zip(self._loose, before, after) if a != b]
        more = f" and {len(moved) - 4} more" if len(moved) > 4 else ""
        raise InvalidUse(
            f"{', '.join(moved[:4])}{more} {'have' if len(moved) > 1 else 'has'} other memory than"
            ' was published; mode="live" needs changes in place, as tensor.copy_(...)'
        )

    def take(self, slot: int) -> None:
        """The memory is the slot."""
        del slot

    def close(self) -> None:
        for region in self._regions:
            region.close()
        self._loose, self._places = {}, ([], [])


def _places(tensors: Iterable[Any]) -> tuple[list[int], list[int]]:
    """Where they lie and how many elements they have, of as many as there may be."""
    held = list(tensors)
    if not held:
        return [], []
    kind: Any = sys.modules["torch"].Tensor
    return list(map(kind.data_ptr, held)), list(map(kind.numel, held))
