"""A remote region that is plain memory here, and what C would do with a batch, done in Python."""

from __future__ import annotations

import ctypes

import numpy as np

from transport.engine.batch import OUTER, RANGE, READ
from transport.memory.remote import NATIVE, Owner, RemoteRegion


class Far:
    """Memory that plays the remote region's."""

    def __init__(self, array, access=3, number=1, incarnation=b"i" * 16):
        self.array = array
        low, high = np.lib.array_utils.byte_bounds(array) if array.size else (0, 0)
        self.base = low
        native = NATIVE.pack(number, 1, b"k" * 16, low, high - low, 0, 0, access, *[0] * 12)
        owner = Owner.make(incarnation, (), native)
        offset = array.__array_interface__["data"][0] - low if array.size else 0
        self.remote = RemoteRegion(owner, offset, array.dtype.name, array.shape, array.strides)


def carry_out(batch):
    for part in batch.parts():
        outers = b"".join(part.outers)
        for local, _, offset, length, rows, ls, rs, remote, outer in ranges_of(part):
            dims = [(rows, ls, rs)]
            if outer:
                packed = OUTER.unpack_from(outers, (outer - 1) * OUTER.size)
                dims += [packed[1 + 3 * i : 4 + 3 * i] for i in range(packed[0])]
            base = NATIVE.unpack(part.owners[remote].native)[3]
            for index in np.ndindex(*[size for size, _, _ in dims]):
                here = local + sum(i * dim[1] for i, dim in zip(index, dims))
                there = base + offset + sum(i * dim[2] for i, dim in zip(index, dims))
                to, source = (here, there) if part.op == READ else (there, here)
                ctypes.memmove(to, source, length)


def ranges_of(part):
    return list(RANGE.iter_unpack(b"".join(part.ranges)))
