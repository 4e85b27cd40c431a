"""Collectives that are built on one-sided transfers: of CPU tensors all, of GPUs' what moves bytes.

Each rank offers memory and the others pull from it, straight into its final place. `carrier` is the
Carrier; `task` is one call under way; `moves` and `reduces` are what calls do, step by step;
`message` is what ranks say to each other; `arena` is memory that peers of this host look into;
`stretch` is memory of a GPU;
`tree` says who pulls a broadcast from whom.
May import call, carrier, group, hub, reduction, engine and below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transport.collectives.group import Group
    from transport.collectives.onesided.carrier import OneSided


def make(group: Group, deadline: float, gpu: int | None = None) -> OneSided:
    """The carrier; it waits for nobody, so `deadline` (seconds) is never reached. It is for CPU
    tensors and those of every GPU that this process sees."""
    from transport.collectives.onesided.carrier import OneSided

    return OneSided(group)
