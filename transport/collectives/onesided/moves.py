"""Calls that move bytes and change none: who offers what to whom, and who takes it.

May import task, tree, message, call and types. Sources are offered where they are; a call ends when
all have taken what it offered, so that its memory may be changed again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transport.collectives.call import Kind
from transport.collectives.onesided import tree
from transport.collectives.onesided.task import Wanted, flat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transport.collectives.onesided.task import Steps, Task

_CHUNK = 4 << 20  # bytes of a broadcast that go down a tree at a time


def others(rank: int, size: int) -> Iterator[int]:
    """All but this rank, beginning with the next: so not all begin with the same."""
    return ((rank + step) % size for step in range(1, size))


def all_gather(task: Task) -> Steps:
    port, call = task.port, task.call
    source, target = flat(call.source[0]), [flat(part) for part in call.target]
    task.give(source, others(port.rank, port.size))
    task.place(target[port.rank], source)
    yield from task.take([Wanted(rank, target[rank]) for rank in others(port.rank, port.size)])
    yield from task.settle()


def gather(task: Task) -> Steps:
    port, call = task.port, task.call
    source = flat(call.source[0])
    if port.rank != call.root:
        task.give(source, [call.root])
    else:
        target = [flat(part) for part in call.target]
        task.place(target[port.rank], source)
        yield from task.take([Wanted(rank, target[rank]) for rank in others(port.rank, port.size)])
    yield from task.settle()


def scatter(task: Task) -> Steps:
    port, call = task.port, task.call
    target = flat(call.target[0])
    if port.rank == call.root:
        source = [flat(part) for part in call.source]
        for rank in others(port.rank, port.size):
            task.give(source[rank], [rank])
        task.place(target, source[port.rank])
    else:
        yield from task.take([Wanted(call.root, target)])
    yield from task.settle()


def all_to_all(task: Task) -> Steps:
    port, call = task.port, task.call
    source, target = [flat(part) for part in call.source], [flat(part) for part in call.target]
    for rank in others(port.rank, port.size):
        task.give(source[rank], [rank])
    task.place(target[port.rank], source[port.rank])
    yield from task.take([Wanted(rank, target[rank]) for rank in others(port.rank, port.size)])
    yield from task.settle()


def send(task: Task) -> Steps:
    task.give(flat(task.call.source[0]), [task.call.peer])
    yield from task.settle()


def recv(task: Task) -> Steps:
    yield from task.take([Wanted(task.call.peer, flat(task.call.target[0]))])


def barrier(task: Task) -> Steps:
    """Dissemination (Hensgen, Finkel, Manber 1988): in round k to the rank 2^k further on."""
    import torch

    port, nothing = task.port, torch.empty(0, dtype=torch.uint8)
    phase, step = 0, 1
    while step < port.size:
        task.give(nothing, [(port.rank + step) % port.size], phase)
        yield from task.take([Wanted((port.rank - step) % port.size, nothing)], phase)
        phase, step = phase + 1, step * 2


def broadcast(task: Task) -> Steps:
    """Each pulls from its parent, chunk by chunk where it has children of its own."""
    port, call = task.port, task.call
    root = port.rank == call.root
    if root and call.target:
        task.place(flat(call.target[0]), flat(call.source[0]))
    memory = flat(call.source[0] if root else call.target[0])
    plan = tree.nodes(port.hosts, call.root)
    node, chunk = plan[port.rank], memory.numel()
    if tree.depth(plan, call.root) > 1:
        chunk = _CHUNK
    for phase, start in enumerate(range(0, max(memory.numel(), 1), max(chunk, 1))):
        part = memory[start : start + chunk]
        if not root:
            yield from task.take([Wanted(node.parent, part)], phase)
        if node.children:
            task.give(part, node.children, phase)
    yield from task.settle()


ALL: dict[Kind, Callable[[Task], Steps]] = {
    Kind.ALL_GATHER: all_gather,
    Kind.GATHER: gather,
    Kind.SCATTER: scatter,
    Kind.ALL_TO_ALL: all_to_all,
    Kind.SEND: send,
    Kind.RECV: recv,
    Kind.BARRIER: barrier,
    Kind.BROADCAST: broadcast,
}
