"""NCCL and RCCL: one binding for both, by which collectives of GPU tensors are carried.

`library` opens one of them, `comm` is a communicator of it, `translate` says what each kind of call
is in its terms, `work` is what has been begun, and `carrier` keeps all of that together.
May import call, reduction, engine and below.
"""

from transport.collectives.nccl.carrier import NcclCarrier, make
from transport.collectives.nccl.library import Library, library

__all__ = ["Library", "NcclCarrier", "library", "make"]
