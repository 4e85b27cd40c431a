"""A largest flow from classes to bins, where each class may only use some bins. Pure Python.

May import nothing of this package. Source: E. A. Dinic, "Algorithm for solution of a problem of
maximum flow in networks with power estimation", 1970; levels by breadth, then paths by depth.
"""

from __future__ import annotations


class Flow:
    """How much of each class is in which bin: `carried[c][b]`, exact integers.

    usable    for each class the bins that it may use
    """

    def __init__(self, usable: list[list[int]], bins: int) -> None:
        self.usable = usable
        self.carried: list[dict[int, int]] = [dict.fromkeys(to, 0) for to in usable]
        self.users: list[list[int]] = [[] for _ in range(bins)]
        for c, to in enumerate(usable):
            for b in to:
                self.users[b].append(c)
        self._next: list[int] = []

    def add(self, c: int, b: int, amount: int) -> None:
        self.carried[c][b] += amount

    def raise_to(self, excess: list[int], room: list[int]) -> tuple[set[int], set[int]]:
        """Puts as much as can be of each class's excess into the bins' room; changes both lists.

        Where excess is left: the classes and bins among which more cannot be placed. All that these
        bins carry is of these classes, and these classes can use no other bin.
        """
        while True:
            classes, bins = self._levels(excess, room)
            if not any(room[b] for b in bins):
                return set(classes), set(bins)
            self._next = [0] * len(self.usable)
            self._back = [0] * len(room)
            for c in [c for c, left in enumerate(excess) if left]:
                while excess[c] and self._path(c, classes, bins, excess, room):
                    pass

    def _levels(self, excess: list[int], room: list[int]) -> tuple[dict[int, int], dict[int, int]]:
        """Steps from a class with excess; looks no further than the first bins with room."""
        front = [c for c, left in enumerate(excess) if left]
        classes, bins = dict.fromkeys(front, 0), dict[int, int]()
        level = 0
        while front:
            level += 1
            found = {b for c in front for b in self.usable[c] if b not in bins}
            bins.update(dict.fromkeys(found, level))
            if any(room[b] for b in found):
                break
            ahead = {c for b in found for c in self.users[b] if self.carried[c][b]}
            front = sorted(ahead - classes.keys())
            level += 1
            classes.update(dict.fromkeys(front, level))
        return classes, bins

    def _path(
        self,
        start: int,
        classes: dict[int, int],
        bins: dict[int, int],
        excess: list[int],
        room: list[int],
    ) -> bool:
        """Moves what one path from a class to a bin with room lets through."""
        path = [start]  # class, bin, class, bin ...
        while path:
            if len(path) % 2 == 0 and room[path[-1]]:
                self._move(path, excess, room)
                return True
            step = self._step(path, classes, bins)
            if step is None:
                path.pop()
                if path:  # that was a dead end: do not try it again
                    count = self._next if len(path) % 2 else self._back
                    count[path[-1]] += 1
            else:
                path.append(step)
        return False

    def _step(self, path: list[int], classes: dict[int, int], bins: dict[int, int]) -> int | None:
        """The next level's class or bin to go to."""
        at = path[-1]
        if len(path) % 2:
            to, count, levels, level = self.usable[at], self._next, bins, classes[at]
        else:
            to, count, levels, level = self.users[at], self._back, classes, bins[at]
        while count[at] < len(to):
            node = to[count[at]]
            open_ = len(path) % 2 or self.carried[node][at]
            if open_ and levels.get(node) == level + 1:
                return node
            count[at] += 1
        return None

    def _move(self, path: list[int], excess: list[int], room: list[int]) -> None:
        backward = [(path[i], path[i + 1]) for i in range(1, len(path) - 1, 2)]
        amount = min(excess[path[0]], room[path[-1]], *(self.carried[c][b] for b, c in backward))
        for i in range(0, len(path), 2):
            self.carried[path[i]][path[i + 1]] += amount
        for b, c in backward:
            self.carried[c][b] -= amount
        excess[path[0]] -= amount
        room[path[-1]] -= amount
