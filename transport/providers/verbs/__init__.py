"""RDMA through libibverbs: InfiniBand and RoCE, one reliable queue pair per peer.

May import ffi, types, errors and the standard library. The work is in native/providers/verbs; here
devices and GIDs are chosen, and what two engines tell each other is encoded.
"""

from __future__ import annotations

from transport.providers.verbs.provider import PROVIDER

__all__ = ["PROVIDER"]
