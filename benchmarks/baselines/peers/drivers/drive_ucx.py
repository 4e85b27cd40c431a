"""UCX's C library: ucp_put into private memory, or into the shared memory that UCX allocates."""

from __future__ import annotations

import base64
import ctypes
import importlib.metadata

import numpy as np
from protocol import Driver, aligned, at_address, serve

_FACTS = 1 << 16


def _library(path):
    found = ctypes.CDLL(path)
    pointer, number = ctypes.c_void_p, ctypes.c_uint64
    found.side_error.restype = ctypes.c_char_p
    found.side_open.argtypes = [pointer, number, ctypes.POINTER(pointer)]
    found.side_buffer.argtypes, found.side_buffer.restype = [pointer], pointer
    found.side_facts.argtypes, found.side_facts.restype = [pointer, pointer, number], ctypes.c_int64
    found.side_connect.argtypes = [pointer, ctypes.c_char_p]
    found.side_prepare.argtypes = [pointer, number, number, pointer, pointer]
    found.side_progress.argtypes = [pointer]
    found.side_run.argtypes = [pointer, number, pointer]
    return found


class Ucx(Driver):
    """`memory` is of both sides: "own" or "private"."""

    version = importlib.metadata.version("libucx-cu12")

    def __init__(self, role, options):
        super().__init__(role, options)
        self.native = _library(options["library"])
        self.side = ctypes.c_void_p()
        self.private = None if options["memory"] == "own" else aligned(self.bytes)
        given = None if self.private is None else self.private.ctypes.data
        self._check(self.native.side_open(given, self.bytes, ctypes.byref(self.side)))
        self.buffer = at_address(self.native.side_buffer(self.side), self.bytes)
        self.buffer[:] = 0
        self.offsets = ()

    def _check(self, status):
        if status < 0:
            raise RuntimeError(self.native.side_error().decode())
        return status

    def facts(self):
        room = ctypes.create_string_buffer(_FACTS)
        size = self._check(self.native.side_facts(self.side, room, _FACTS))
        return {"packed": base64.b64encode(room.raw[:size]).decode()}

    def connect(self, facts):
        packed = base64.b64decode(facts["packed"])
        self._check(self.native.side_connect(self.side, packed))

    def prepare(self, layout):
        sides = layout.offsets("initiator"), layout.offsets("target")
        self.offsets = [places.astype(np.uint64) for places in sides]
        local, remote = (places.ctypes.data for places in self.offsets)
        self.native.side_prepare(self.side, layout.batch, layout.size, local, remote)

    def run(self, count):
        if self.role == "target":
            return None
        times = np.zeros(count, np.uint64)
        self._check(self.native.side_run(self.side, count, times.ctypes.data))
        return times.tolist()

    def idle(self):
        self.native.side_progress(self.side)


serve(Ucx)
