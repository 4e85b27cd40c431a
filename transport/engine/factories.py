"""`with engine.pool()`: torch's CPU factory functions give tensors in memory that peers can map.

May import allocate, core and torch, which is imported when a pool is first asked for. A factory is
first run on the meta device, which tells dtype, shape and strides; then the memory is taken and
filled in place. Whatever would not be an ordinary CPU tensor is left to torch.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from transport.engine import allocate
from transport.memory.needs import needed_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from transport.engine.core import Core
    from transport.types import Access

    # Puts into `made` what func(*args, **kwargs) would hold.
    Fill = Callable[[Any, Any, tuple[Any, ...], Mapping[str, Any]], object]


def pool(core: Core, access: Access) -> Any:
    """The context manager; of this thread only, and it may be nested."""
    return _mode_class()(core, access)


@functools.cache
def _mode_class() -> Any:
    torch = needed_torch()
    from torch.overrides import TorchFunctionMode

    fills = _fills(torch)

    class PoolMode(TorchFunctionMode):
        """See `Engine.pool`."""

        def __init__(self, core: Core, access: Access) -> None:
            super().__init__()
            self._core = core
            self._access = access

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            given = kwargs or {}
            fill = fills.get(func)
            if fill is None or not _is_ordinary(torch, args, given):
                return func(*args, **given)
            template = _template(torch, func, args, given)
            if template is None:
                return func(*args, **given)
            made = self._take(template)
            with torch.no_grad():
                fill(made, func, args, given)
            return made.requires_grad_() if given.get("requires_grad") else made

        def _take(self, template: Any) -> Any:
            with self._core as core:
                return allocate.like(core.pool, template, self._access)

    return PoolMode


def _is_ordinary(torch: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether it makes new strided memory on the CPU, as far as the arguments tell."""
    if any(kwargs.get(name) is not None for name in ("out", "names")) or kwargs.get("pin_memory"):
        return False
    model = args[0] if args and isinstance(args[0], torch.Tensor) else kwargs.get("input")
    if isinstance(model, torch.Tensor) and type(model) not in (torch.Tensor, torch.nn.Parameter):
        return False  # a subclass may make more than a tensor
    layout = kwargs.get("layout") or getattr(model, "layout", torch.strided)
    device = kwargs.get("device")
    if device is None:  # inside the mode this is what torch.set_default_device says
        device = model.device if model is not None else torch.empty(0).device
    kind = "cuda" if isinstance(device, int) else torch.device(device).type
    return layout is torch.strided and kind == "cpu"


_ELSEWHERE = ("device", "pin_memory", "requires_grad", "generator")  # of no use on the meta device


def _template(torch: Any, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What it would be, without memory; None where that is nothing for the pool."""
    plain = {name: value for name, value in kwargs.items() if name not in _ELSEWHERE}
    try:
        found = func(*args, **plain, device="meta")
    except Exception:  # torch says it in better words on the real device
        return None
    fits = type(found) is torch.Tensor and not found.is_quantized
    return found if fits and found.untyped_storage().nbytes() else None


# ----------------------------------------------------------------------------------------- filling
def _nothing(made: Any, func: Any, args: Any, kwargs: Any) -> None:
    """Uninitialised."""


def _zeros(made: Any, func: Any, args: Any, kwargs: Any) -> None:
    made.zero_()


def _ones(made: Any, func: Any, args: Any, kwargs: Any) -> None:
    made.fill_(1)


def _last(made: Any, func: Any, args: Any, kwargs: Any) -> None:
    """full_like(x, value), x.new_full(shape, value)."""
    made.fill_(kwargs["fill_value"] if "fill_value" in kwargs else args[-1])


_SAID = ("device", "layout", "pin_memory", "requires_grad", "dtype")  # the output has them


def _out(made: Any, func: Any, args: Any, kwargs: Any) -> None:
    func(*args, **{name: value for name, value in kwargs.items() if name not in _SAID}, out=made)


def _copy(made: Any, func: Any, args: Any, kwargs: Any) -> None:
    """Small things as a rule, which torch makes first."""
    plain = {name: value for name, value in kwargs.items() if name != "requires_grad"}
    made.copy_(func(*args, **plain))


def _fills(torch: Any) -> dict[Any, Fill]:
    """Every factory function, and how its tensors are filled."""
    ways: dict[Fill, str] = {
        _nothing: "empty empty_like empty_strided empty_permuted new_empty new_empty_strided",
        _zeros: "zeros zeros_like new_zeros",
        _ones: "ones ones_like new_ones",
        _last: "full_like new_full",
        _out: "full rand randn randint randperm arange range linspace logspace eye",
        _copy: "tensor scalar_tensor new_tensor rand_like randn_like randint_like normal"
        " tril_indices triu_indices bartlett_window blackman_window hamming_window hann_window"
        " kaiser_window",
    }
    found: dict[Any, Fill] = {}
    for fill, names in ways.items():
        for name in names.split():
            func = getattr(torch.Tensor if name.startswith("new_") else torch, name, None)
            if func is not None:  # versions of torch differ
                found[func] = fill
    return found
