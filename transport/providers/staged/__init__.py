"""GPU memory by way of pinned host memory, over whichever other provider reaches the peer.

May import ffi, types and errors. The work is in native/providers/staged; both sides of a link have
it, also one without a GPU, whose host memory the other's GPU reads and writes.
"""

from __future__ import annotations

from transport.providers.staged.provider import PROVIDER

__all__ = ["PROVIDER"]
