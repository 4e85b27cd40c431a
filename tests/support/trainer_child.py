"""What a process does that publishes weights, or fetches them, for tests/processes/test_weights.py.

The value of an element tells its version and where it is, so that a mixture is seen.
"""

from __future__ import annotations

import threading

import torch
from states import grid, local

from transport import TransportError, weights

ELEMENTS = 1 << 18  # per tensor: 2 MiB, which takes long enough to be written into


def full(version: int, elements: int = ELEMENTS):
    """Two tensors whose elements tell where they are and which version they are of."""
    base = torch.arange(elements, dtype=torch.int64).view(-1, 64) * 1_000_000
    return {"first": base + version, "second": base.flip(0) + version}


def blank(elements: int = ELEMENTS):
    return {name: torch.full_like(tensor, -1) for name, tensor in full(0, elements).items()}


def versions_in(tensors, layout=None, rank=0) -> set[int]:
    """The least and the greatest version of the elements; one, where nothing is mixed."""
    any_tensor = next(iter(tensors.values()))
    elements = any_tensor.numel() if layout is None else next(iter(layout.values())).layout.numel
    expected = full(0, elements)
    if layout is not None:
        expected = local(layout, rank, expected)
    found: set[int] = set()
    for name, tensor in tensors.items():
        apart = tensor - expected[name]
        found |= {int(apart.min()), int(apart.max())}
    return found


class Publisher:
    """A rank that publishes, and steps when it is told to or all the time."""

    def __init__(self, engine, mesh="dp=1,tp=1", rank=0, version=0, **options):
        self.layout = grid(mesh, full(0))
        self.rank = rank
        self.state = local(self.layout, rank, full(version))
        self.publication = weights.publish(
            engine, "w", self.state, version, layout=self.layout, rank=rank, **options
        )
        self.going = False
        self.thread = None

    def step(self, version):
        with self.publication.writing(version):
            new = local(self.layout, self.rank, full(version))
            for name, tensor in self.state.items():
                tensor.copy_(new[name])

    def go_on(self):
        """Versions without end, as fast as it can."""
        self.going = True
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def stop(self):
        self.going = False
        self.thread.join()
        self.publication.close()

    def _run(self):
        version = 0
        while self.going:
            version += 1
            sum(tensor.sum() for tensor in self.state.values())  # as a step that only reads them
            with self.publication.writing(version):
                for tensor in self.state.values():
                    tensor.add_(1)


def read_often(engine, addresses, times, checked=True):
    """Fetches while versions come: how often it got one, how often not, and all mixtures."""
    if not checked:  # as a reader would that looks at no word after the data
        from transport.weights.sync import Sync

        Sync._make_steps = lambda self: setattr(self, "_steps", None)
        Sync._check = lambda *_: None
    into, mixed, got, moved = blank(), [], 0, 0
    with weights.subscribe(engine, "w", into, addresses) as subscription:
        subscription.fetch()
        while got + moved < times:
            try:
                done = subscription.fetch(deadline=0.02 if checked else None)
            except TransportError:  # it moved, or nothing was stable just then
                moved += 1
                continue
            got += 1
            found = versions_in(into)
            if found != {done.version}:
                mixed.append((done.version, sorted(found)))
    return got, moved, mixed
