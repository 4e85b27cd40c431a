"""torchft: a replica that heals reads its peers' memory, each byte from one of them, one-sided.

May import weights and everything below it, torch and torchft, of which only the public interface is
used.
"""

from transport.adapters.torchft.peers import PeerTransport

__all__ = ["PeerTransport"]
