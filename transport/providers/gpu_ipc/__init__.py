"""GPU memory of peers on this host, mapped here and copied by GPUs; and from GPUs to pool memory.

May import ffi, types and errors. The work is in native/providers/gpu_ipc; here is what two engines
tell each other over their unix socket before they can map anything: one descriptor each.
"""

from __future__ import annotations

from transport.providers.gpu_ipc.provider import PROVIDER

__all__ = ["PROVIDER"]
