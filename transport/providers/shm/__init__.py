"""Same host: mapped pool memory, process_vm for private memory, the unix stream as the last resort.

May import ffi, types and errors. The work is in native/providers/shm; here is what two engines tell
each other over their unix socket before they can share memory.
"""

from __future__ import annotations

from transport.providers.shm.provider import PROVIDER

__all__ = ["PROVIDER"]
