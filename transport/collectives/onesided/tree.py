"""Who pulls a broadcast from whom. Pure.

On one host a few ranks all pull from the root; more make a tree, so that no memory is read by too
many at once. Between hosts each gets one copy, which its other ranks pull from whom has it there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

FLAT = 8  # ranks of a host, up to which all pull from one
_WITHIN = 4  # children of a rank within a host
_BETWEEN = 2  # children of a host


class Node(NamedTuple):
    parent: int  # -1: the root
    children: tuple[int, ...]


def nodes(hosts: Sequence[str], root: int) -> list[Node]:
    """Of each rank; `hosts` tells by rank where it is."""
    parents = [-1] * len(hosts)
    groups: dict[str, list[int]] = {hosts[root]: [root]}
    for rank, host in enumerate(hosts):
        if rank != root:
            groups.setdefault(host, []).append(rank)
    _link([ranks[0] for ranks in groups.values()], _BETWEEN, parents)
    for ranks in groups.values():
        _link(ranks, len(ranks) if len(ranks) <= FLAT else _WITHIN, parents)
    children: list[list[int]] = [[] for _ in hosts]
    for rank, parent in enumerate(parents):
        if parent >= 0:
            children[parent].append(rank)
    return [Node(parent, tuple(found)) for parent, found in zip(parents, children)]


def depth(tree: Sequence[Node], root: int) -> int:
    """The longest way from the root, in copies."""
    deepest, level = 0, [root]
    while level := [child for rank in level for child in tree[rank].children]:
        deepest += 1
    return deepest


def _link(ranks: Sequence[int], arity: int, parents: list[int]) -> None:
    """The first is above all others; its own parent is another's business."""
    for place in range(1, len(ranks)):
        parents[ranks[place]] = ranks[(place - 1) // arity]
