"""The tensors of a state dict as one rank has them, checked against what the layout says.

May import memory, sharding and errors. torch is used where the tensors are torch's, never imported.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from transport.errors import InvalidUse, LayoutError
from transport.memory.dtypes import ITEMSIZES
from transport.memory.host import view
from transport.sharding.importers.dtensor import flattened, is_dtensor, layouts_of
from transport.sharding.layout import Layout
from transport.sharding.state import StateLayout

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from transport.memory.host import View


def tensors_of(state: Any) -> dict[str, Any]:
    """The tensors and arrays of a state dict (nested ones by dotted names), or of a module; of
    DTensors their local tensors. Anything else in it is passed over.

    Raises InvalidUse for what is neither.
    """
    kinds = _kinds()
    return {
        name: _local(value) for name, value in flattened(_state(state)) if isinstance(value, kinds)
    }


def left_out(state: Any, published: Collection[str]) -> list[str]:
    """Names in the state of what is not published: tensors, numbers, lists."""
    return [name for name in _names(_state(state)) if name not in published]


def _names(state: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in state.items():
        if isinstance(value, Mapping):
            yield from _names(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def some(names: Sequence[str]) -> str:
    """The first four, and how many more there are."""
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"{', '.join(names[:4])}{more}"


def _local(tensor: Any) -> Any:
    return tensor.to_local() if is_dtensor(tensor) else tensor


def described(state: Any, rank: int | None) -> tuple[StateLayout | None, int]:
    """The layout of the whole group, and the rank of this process in it, where DTensors tell."""
    found = dict(flattened(_state(state)))
    dtensor = next((value for value in found.values() if is_dtensor(value)), None)
    if dtensor is None:
        return None, 0 if rank is None else rank
    return layouts_of(found), dtensor.device_mesh.get_rank() if rank is None else rank


def _state(state: Any) -> Mapping[str, Any]:
    if hasattr(state, "state_dict") and not isinstance(state, Mapping):
        state = state.state_dict(keep_vars=True)  # the parameters themselves, not views of now
    if not isinstance(state, Mapping):
        raise InvalidUse(f"a state dict or a module is wanted, not a {type(state).__name__}")
    return state


def check_named(tensors: Mapping[str, Any], layout: StateLayout) -> None:
    """Raises LayoutError for tensors that no rank has in the layout."""
    named = {entry.tensor for entry in layout.values()}
    unknown = [name for name in tensors if name not in named]
    if unknown:
        raise LayoutError(
            f"the layout names no {some(unknown)}, which no reader would get; with partial=True"
            " only what it names is published"
        )


def check_shapes(
    tensors: Mapping[str, Any], wanted: Mapping[str, tuple[Sequence[int], str]], who: str
) -> dict[str, View]:
    """The views of the tensors that a layout names, all there with shape and dtype as it says.

    Raises LayoutError naming the tensor and `who`, InvalidUse for memory that cannot be used.
    """
    if tensors and not wanted:
        raise LayoutError(f"the layout gives {who} nothing: is that its number in the group?")
    views: dict[str, View] = {}
    for name, (shape, dtype) in wanted.items():
        if name not in tensors:
            raise LayoutError(f"{name}: {who} has no such tensor, which the layout gives it")
        found = _view(name, tensors[name])
        if found.dtype is None and found.nbytes == math.prod(shape) * ITEMSIZES[dtype]:
            views[name] = found  # bytes without a type
            continue
        if tuple(found.shape) != tuple(shape) or found.dtype != dtype:
            raise LayoutError(
                f"{name}: {who} has {found.dtype}{list(found.shape)}, the layout says"
                f" {dtype}{list(shape)}"
            )
        views[name] = found
    return views


def shapes_of(tensors: Mapping[str, Any]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and dtype of each. Raises InvalidUse for what has none that travels."""
    shapes: dict[str, tuple[tuple[int, ...], str]] = {}
    for name, tensor in tensors.items():
        found = _view(name, tensor)
        if found.dtype is None:
            raise InvalidUse(f"{name}: its elements are plain bytes; give them a dtype")
        shapes[name] = tuple(found.shape), found.dtype
    return shapes


def layout_for(
    given: Any, told: StateLayout | None, tensors: Mapping[str, Any], rank: int
) -> StateLayout:
    """What the caller gave, else what DTensors tell, else that this rank has all of it."""
    if given is not None and not isinstance(given, StateLayout):
        raise InvalidUse(
            f"layout is a StateLayout, which names tensors, not a {type(given).__name__}"
        )
    return given or told or whole_layout(tensors, rank)


def whole_layout(tensors: Mapping[str, Any], rank: int) -> StateLayout:
    """Every tensor unsharded, at one rank."""
    shapes = shapes_of(tensors)
    return StateLayout(
        {name: Layout.whole(shape, dtype, rank) for name, (shape, dtype) in shapes.items()}
    )


def _view(name: str, tensor: Any) -> View:
    try:
        return view(tensor)
    except InvalidUse as error:
        raise InvalidUse(f"{name}: {error}") from None


def _kinds() -> tuple[type, ...]:
    """The classes of tensors and arrays that are loaded."""
    import numpy

    torch = sys.modules.get("torch")
    return (numpy.ndarray,) if torch is None else (numpy.ndarray, torch.Tensor)
