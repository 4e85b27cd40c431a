"""Prepared transfers in steps, run by one call into C.

May import prepared, transfer, submit, order, ffi and errors. For what is done again and again and
whose every step is known before it begins: between two steps, and for each transfer, no Python
runs.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from transport.engine import order
from transport.engine.submit import lifetime_ns
from transport.engine.transfer import slice_ns
from transport.errors import InvalidUse, Status
from transport.ffi import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transport.engine.core import Core
    from transport.engine.prepared import Prepared

_PENDING, _OK = int(Status.PENDING), int(Status.OK)
_STEPS = ffi.typeof("struct tn_step[]")
_POINTERS = ffi.typeof("struct tn_transfer *[]")
_SEQUENCE = ffi.typeof("struct tn_sequence *")


class Step(NamedTuple):
    """Transfers that begin together. The next step begins when all of them have ended well and, if
    it is given, `found` (a contiguous buffer) has the bytes of `expected`."""

    transfers: Sequence[Prepared]
    found: Any = None
    expected: Any = None


class Steps:
    """Made once, run any number of times; what is in it stays the caller's to close, and to check:
    a transfer whose local tensors can be resized is not looked at here.
    """

    __slots__ = ("_core", "_held", "_native", "_prepared", "_steps", "at", "begun", "stopped")

    def __init__(self, core: Core, steps: Sequence[Step]) -> None:
        self._core = core
        self._prepared = [it for step in steps for it in step.transfers]
        self._steps = steps
        self._native = ffi.new(_SEQUENCE)
        self._held: list[Any] = []  # what C has the addresses of
        self._native.steps = made = self._keep(ffi.new(_STEPS, len(steps)))
        self._native.count = len(steps)
        for step, native in zip(steps, made):
            flights = [flight.pointer for it in step.transfers for flight in it._flights]
            native.transfers = self._keep(ffi.new(_POINTERS, flights))
            native.count = len(flights)
            if step.found is not None:
                native.found = found = self._keep(ffi.from_buffer("char[]", step.found))
                native.expected = self._keep(ffi.from_buffer("char[]", step.expected))
                native.bytes = len(found)
        self.stopped = False
        """Any thread may set it during a run, which then goes no further than it has."""
        self.at = 0
        """After a run: the step that did not end well; all of them: how many there are."""
        self.begun = 0
        """After a run: how many of that step's transfers have begun, and are still under way."""

    @property
    def done(self) -> bool:
        """Whether every step of the last run ended well."""
        return self.at == len(self._steps)

    def run(self, seconds: float) -> bool:
        """Whether every step ended well. If not, `at` and `begun` say how far it came.

        What has begun is not waited for then: whoever looks at it finds out what went wrong. That
        is so, too, when the engine is closed, the time is over, and after Ctrl-C.
        """
        native, core = self._native, self._core
        lifetime, end = lifetime_ns(core, seconds), time.monotonic() + seconds
        native.at = native.begun = 0
        self.stopped = False
        for it in self._prepared:
            it._runs += 1
        status = _PENDING
        fence = self._follow_gpus()
        try:
            while status == _PENDING and not self.stopped and (left := slice_ns(end)):
                with core:
                    status = lib.tn_sequence_run(native, lifetime, left)
        except InvalidUse:  # the engine is being closed
            if not core.gate.closed:
                raise
        finally:
            self.at, self.begun = native.at, native.begun
            self._let_go(fence)
        return status == _OK

    def _follow_gpus(self) -> Any:
        """Transfers of GPU memory begin when what is in the GPUs' streams now is done."""
        devices = {device for it in self._prepared for device in it._devices}
        if not devices:
            return ffi.NULL
        with self._core as core:
            fence = order.fence(core, devices, None)
            for it in self._prepared:
                if it._devices:
                    it._follow(fence)
        return fence

    def _let_go(self, fence: Any) -> None:
        if not fence:
            return
        for it in self._prepared:
            if it._devices and it.quiet:  # it was not begun: a later run follows what is later
                it._follow(ffi.NULL)
        order.close(fence)

    def _keep(self, made: Any) -> Any:
        self._held.append(made)
        return made
