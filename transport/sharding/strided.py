"""Copies into and out of local tensors that are not contiguous.

Pure; may import cut. A plan counts elements in row-major order of the local shape. In a contiguous
tensor that is where they lie; in any other the digits of the number, in the radix of the shape,
are the index, and only steps that carry no digit are steps in memory.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from transport.sharding.cut import Cut, joined

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Dims = tuple[tuple[int, int, int], ...]  # size, step on this side, step on the other


def in_bytes(numbers: Numbers, shape: Sequence[int], strides: Sequence[int]) -> Numbers:
    """Row-major element numbers, or steps that carry nothing, as bytes in a tensor of `strides`."""
    found = np.zeros_like(numbers)
    for k, stride in enumerate(strides):
        found += numbers // prod(shape[k + 1 :]) % shape[k] * stride
    return found


def without_carries(cut: Cut, which: Numbers, shape: Sequence[int], *, near: bool) -> Cut:
    """These copies, cut where a step on the near (or far) side would carry a digit of the shape."""
    made: list[Cut] = []
    for i in which.tolist():
        one = cut.take(slice(i, i + 1))
        mine, other = ("near", "far") if near else ("far", "near")
        dims = zip(
            one.size[0].tolist(),
            getattr(one, f"{mine}_stride")[0].tolist(),
            getattr(one, f"{other}_stride")[0].tolist(),
        )
        start = int(getattr(one, f"{mine}_start")[0])
        beyond = int(getattr(one, f"{other}_start")[0])
        real = tuple(dim for dim in dims if dim[0] > 1)
        for first, second, fit in _fitting(start, beyond, real, tuple(shape)):
            table = np.array(fit, np.int64).reshape(1, -1, 3)
            changed = {
                "size": table[:, :, 0],
                f"{mine}_stride": table[:, :, 1],
                f"{other}_stride": table[:, :, 2],
                f"{mine}_start": np.array([first]),
                f"{other}_start": np.array([second]),
            }
            made.append(replace(one, **changed))
    return joined(made)


def _fitting(
    start: int, other: int, dims: Dims, shape: tuple[int, ...]
) -> Iterator[tuple[int, int, Dims]]:
    """The box as boxes of which no step carries a digit: start on both sides, dimensions."""
    used = _digits(start, shape)
    for j, (size, step, beyond) in enumerate(dims):
        digits = _digits(step, shape)
        fits = all(d + (size - 1) * s < n for d, s, n in zip(used, digits, shape))
        if fits:
            used = [d + (size - 1) * s for d, s in zip(used, digits)]
            continue
        before, after = dims[:j], dims[j + 1 :]
        k = next(k for k, digit in enumerate(digits) if digit)
        per, rest = divmod(shape[k], digits[k])
        aligned = not rest and not any(digits[k + 1 :]) and used[k] < digits[k]
        if aligned and size % per == 0:
            two = ((size // per, step * per, beyond * per), (per, step, beyond))
            yield from _fitting(start, other, (*before, *two, *after), shape)
            return
        # The head up to where it carries, or whole rounds; then the rest.
        room = max((shape[k] - 1 - used[k]) // digits[k] + 1, 1) if digits[k] else 1
        head = size - size % per if aligned and size > per else min(room, size - 1)
        parts = ((start, other, head), (start + head * step, other + head * beyond, size - head))
        for first, second, many in parts:
            cut = (*before, (many, step, beyond), *after)
            yield from _fitting(first, second, cut, shape)
        return
    yield start, other, dims


def _digits(number: int, shape: tuple[int, ...]) -> list[int]:
    digits: list[int] = []
    for size in reversed(shape):
        number, digit = divmod(number, size)
        digits.append(digit)
    return digits[::-1]
