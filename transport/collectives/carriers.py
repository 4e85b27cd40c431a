"""The carriers by name, each imported when it is first needed. May import carrier, call, group and
errors.

A communicator makes those for CPU tensors when it is made, and those for GPUs with the first call
that needs one. One that no rank can have is passed over, with the reason.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

from transport.collectives.call import gpu_of
from transport.collectives.carrier import Absent
from transport.errors import InvalidUse, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from transport.collectives.call import Call
    from transport.collectives.carrier import Carrier
    from transport.collectives.choice import Choice
    from transport.collectives.group import Group
    from transport.errors import TransportError

    Maker = Callable[[Group, float, int | None], Carrier]

_log = logging.getLogger("transport.collectives")
_LOOK = 0.02  # seconds

MAKERS: dict[str, str] = {
    "gloo": "transport.collectives.gloo",
    "nccl": "transport.collectives.nccl",
    "onesided": "transport.collectives.onesided",
}
"""Modules that have `make(group, deadline, gpu) -> Carrier`."""


class Carriers:
    """Those of one communicator."""

    def __init__(self, group: Group, choice: Choice) -> None:
        self._group = group
        self._choice = choice
        self._made: dict[str, Carrier] = {}
        self._absent: dict[str, Absent] = {}
        self._lock = threading.Lock()
        self._error: TransportError | None = None
        _living.add(self)

    def make_all(self, devices: Iterable[str], deadline: float) -> None:
        for device in devices:
            for name in self._choice.all_of(device):
                self._get(name, deadline)

    def choose(self, calls: Sequence[Call], deadline: float) -> Carrier:
        """The one for all of these: the first that can be had, and does not refuse them. Raises
        with the reasons InvalidUse where all refuse, Unavailable where one cannot be had."""
        reasons: list[str] = []
        absent: Absent | None = None
        for name in self._choice.carriers(calls[0]):
            try:
                carrier = self._get(name, deadline, gpu_of(calls[0]))
            except Absent as error:
                reasons.append(f"{name}: {error.reason}")
                absent = error
                continue
            refusal = next(filter(None, map(carrier.refusal, calls)), "")
            if not refusal:
                return carrier
            reasons.append(f"{name}: {refusal}")
        told = "; ".join(reasons) or "no carrier is for this device"
        text = f"this {calls[0].kind.value} is not carried: {told}"
        raise InvalidUse(text) if absent is None else Unavailable(text, absent.remedy)

    def _get(self, name: str, deadline: float, gpu: int | None = None) -> Carrier:
        found = self._made.get(name)
        if found is not None:
            return found
        with self._lock:
            if self._error is not None:
                raise self._error.again()
            if name in self._absent:
                raise self._absent[name].again()
            found = self._made.get(name)
            if found is None:
                found = self._made[name] = self._made_or_absent(name, deadline, gpu)
        self._pass_on(found)
        return found

    def _made_or_absent(self, name: str, deadline: float, gpu: int | None) -> Carrier:
        try:
            return self._make(maker(name), deadline, gpu)
        except Absent as error:
            self._absent[name] = error.again()
            _log.warning("%r goes without %s: %s", self._group.name, name, error)
            raise

    def _make(self, make: Maker, deadline: float, gpu: int | None) -> Carrier:
        """In a thread that is left behind when a rank is lost: libraries wait for it for long."""
        outcome: list[Any] = []

        def run() -> None:
            try:
                outcome.append(make(self._group, deadline, gpu))
            except BaseException as error:
                outcome.append(error)
            made.set()
            if self._error is not None and not isinstance(outcome[0], BaseException):
                outcome[0].abort(self._error)

        made = threading.Event()
        threading.Thread(target=run, name="transport-carrier", daemon=True).start()
        while not made.wait(_LOOK):
            if self._error is not None:
                raise self._error.again()
        if isinstance(outcome[0], BaseException):
            raise outcome[0]
        carrier: Carrier = outcome[0]
        return carrier

    def _pass_on(self, carrier: Carrier) -> None:
        """An error that came while it was made."""
        if self._error is not None:
            carrier.abort(self._error)

    def abort(self, error: TransportError) -> None:
        self._error = self._error or error
        for carrier in list(self._made.values()):
            carrier.abort(error)

    def close(self) -> None:
        for carrier in list(self._made.values()):
            carrier.close()


_living: weakref.WeakSet[Carriers] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """What they hold is the parent's: one more reference that nobody drops, so that no destructor
    waits for a thread which is not here, or ends a connection of the parent's."""
    for each in _living:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))


os.register_at_fork(after_in_child=_after_fork_in_child)


def maker(name: str) -> Maker:
    """Raises InvalidUse for a name that there is not, Unavailable where it cannot be had."""
    module = MAKERS.get(name)
    if module is None:
        raise InvalidUse(f"a carrier is one of {', '.join(MAKERS)}, not {name!r:.80}")
    try:
        made: Any = importlib.import_module(module).make
    except ImportError as error:
        raise Unavailable(f"carrier {name} cannot be used: {error}") from None
    make: Maker = made
    return make
