"""Publishing the trainer's own memory: nothing is copied, and there is one version.

May import engine, memory and errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transport.errors import InvalidUse

if TYPE_CHECKING:
    from collections.abc import Mapping

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

    def take(self, slot: int) -> None:
        """The memory is the slot."""
        del slot

    def close(self) -> None:
        for region in self._regions:
            region.close()
