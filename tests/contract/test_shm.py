"""shm keeps the contract on each of its paths."""

from __future__ import annotations

from transport.testing.contract import Contract, Way


class TestMapped(Contract):
    way = Way("shm", "mapped", pool=True)


class TestProcessVm(Contract):
    way = Way("shm", "process_vm")


# The far side tells a wrong token, as if it were not the process that the kernel names (another
# PID namespace): then neither its memory nor ours is reached by process_vm.
_LIE = """
import msgspec
from transport.providers.shm.provider import ShmConnection
from transport.types import Offer

def offer(self, truth=ShmConnection.offer):
    told = truth(self)
    address, token, size = msgspec.msgpack.decode(told.data)
    return Offer(msgspec.msgpack.encode([address, bytes(len(token)), size]), told.fds)

ShmConnection.offer = offer
"""


class TestStream(Contract):
    way = Way("shm", "stream", prepare=_LIE)
