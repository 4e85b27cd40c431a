"""Moves existing torch tensors into the pool, in place: the same objects over other memory.

May import allocate, core, memory and errors; torch is there where a tensor is. All is checked
before anything moves. A storage moves as a whole, with every tensor over it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transport.engine import allocate
from transport.errors import InvalidUse
from transport.ffi import ffi, lib
from transport.memory.host import host_view
from transport.memory.needs import needed_torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transport.engine.core import Core
    from transport.types import Access


@dataclass(frozen=True, slots=True)
class Adopted:
    """What `Engine.adopt` has moved; nothing the second time."""

    count: int
    """Tensors."""
    bytes: int
    """Of their storages."""


class _Group:
    """One storage and the tensors over it, by id, each with its name for errors."""

    __slots__ = ("storage", "tensors")

    def __init__(self, storage: Any) -> None:
        self.storage = storage
        self.tensors: dict[int, tuple[str, Any]] = {}

    @property
    def name(self) -> str:
        return next(iter(self.tensors.values()))[0]


def adopt(core: Core, what: Any, access: Access) -> Adopted:
    """See `Engine.adopt`."""
    torch = needed_torch()

    groups: dict[int, _Group] = {}  # by id of the storage, which the group keeps alive
    for name, tensor in _tensors(torch, what, ""):
        _check_tensor(torch, name, tensor)
        storage = tensor.untyped_storage()
        group = groups.setdefault(id(storage), _Group(storage))
        group.tensors.setdefault(id(tensor), (name, tensor))
    moving = [group for group in groups.values() if _must_move(core, group, access)]
    for group in moving:
        _check_storage(torch, core, group)
    groups.clear()
    count = moved = 0
    while moving:  # each old storage goes before the next one is moved
        group = moving.pop()
        moved += _move(torch, core, group, access)
        count += len(group.tensors)
    return Adopted(count, moved)


def _tensors(torch: Any, what: Any, name: str) -> Iterator[tuple[str, Any]]:
    """All tensors in it, with names. What a state dict may hold beside tensors is passed over."""
    if isinstance(what, torch.Tensor):
        yield name or "the tensor", what
    elif isinstance(what, torch.nn.Module):
        yield from what.named_parameters()
        yield from what.named_buffers()
    elif isinstance(what, (Mapping, list, tuple)):
        items = what.items() if isinstance(what, Mapping) else enumerate(what)
        for key, value in items:
            if isinstance(value, (torch.Tensor, torch.nn.Module, Mapping, list, tuple)):
                yield from _tensors(torch, value, f"{name}.{key}" if name else str(key))
    else:
        raise InvalidUse(f"a {type(what).__name__} is no module, state dict or tensor")


def _check_tensor(torch: Any, name: str, tensor: Any) -> None:
    plain = (torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.Tensor))
    if type(tensor) not in plain:
        raise InvalidUse(f"{name} is a {type(tensor).__name__}, which is more than a tensor")
    try:
        host_view(tensor, "what is adopted")
    except InvalidUse as error:
        raise InvalidUse(f"{name} cannot be moved: {error}") from None


def _must_move(core: Core, group: _Group, access: Access) -> bool:
    storage = group.storage
    return storage.nbytes() > 0 and core.pool.access_at(storage.data_ptr()) is not access


def _check_storage(torch: Any, core: Core, group: _Group) -> None:
    """Whether the storage may move away under everybody who has it."""
    storage, name = group.storage, group.name
    if core.regions.registered(id(storage)):
        raise InvalidUse(f"{name} is registered: close its region, adopt, and register it again")
    if any(_uses(owner, storage) for pins in core.pinned.copy().values() for owner in pins.copy()):
        raise InvalidUse(f"{name} is in a transfer that is not over (or is prepared)")
    if storage.is_shared():
        raise InvalidUse(f"{name} is shared with other processes; register it as it is")
    for _, tensor in list(group.tensors.values()):
        base = tensor._base  # a tensor of its own that autograd keeps with each view
        if base is not None:
            group.tensors.setdefault(id(base), (name, base))
    strangers = _users(torch, storage) - len(group.tensors)
    if strangers > 0:
        raise InvalidUse(
            f"{strangers} more tensors share the storage of {name}, and would be left behind: drop"
            " them, or pass them too (the module rather than its state_dict())"
        )


def _users(torch: Any, storage: Any) -> int:
    """How many tensors have the storage; 0 where this version of torch does not tell."""
    count = getattr(torch._C, "_storage_Use_Count", None)
    return 0 if count is None else int(count(storage._cdata)) - 1  # the Python object is one


def _uses(owner: Any, storage: Any) -> bool:
    tensor = owner if hasattr(owner, "untyped_storage") else None
    return tensor is not None and tensor.untyped_storage() is storage


def _move(torch: Any, core: Core, group: _Group, access: Access) -> int:
    old, group.storage = group.storage, None
    nbytes: int = old.nbytes()
    new = allocate.storage(core.pool, torch, nbytes, access)
    there, here = (ffi.cast("void *", each.data_ptr()) for each in (new, old))
    lib.tn_copy(there, here, nbytes)
    twins = [(tensor, allocate.over(new, tensor)) for _, tensor in group.tensors.values()]
    for tensor, twin in twins:  # nothing that could fail, so that tied tensors stay tied
        tensor.data = twin
    return nbytes
