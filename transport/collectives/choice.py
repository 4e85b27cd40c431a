"""Which carrier a call goes to: alike on all ranks, for rank 0's rules travel when they join.

May import call, card.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from transport.collectives.call import Call
    from transport.collectives.card import Rule
    from transport.collectives.group import Group


class Choice:
    """Rules, looked up by what all ranks have alike. Of several that fit a call, that with the most
    bytes counts, then the later one."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)
        self._known: dict[tuple[str, str], list[Rule]] = {}

    def carriers(self, call: Call) -> Sequence[str]:
        """Names, the first choice first: each of them may refuse."""
        part = next(iter((*call.source, *call.target)), None)
        device = "cpu" if part is None else part.device.type
        device = "cuda" if device == "hip" else device  # what torch calls both
        key = call.kind.value, device
        fitting = self._known.get(key)
        if fitting is None:
            fitting = self._known[key] = _fitting(self.rules, *key)
        unit = call.unit
        return list(dict.fromkeys(rule.carrier for rule in fitting if rule.least <= unit))

    def all_of(self, device: str) -> list[str]:
        """Those that calls on this type of device may go to."""
        return list(dict.fromkeys(rule.carrier for rule in self.rules if rule.device == device))

    def of(self, group: Group) -> Choice:
        """Those that are for a group of so many ranks, there."""
        return Choice(
            rule
            for rule in self.rules
            if (not rule.ranks or group.size <= rule.ranks) and (group.one_machine or not rule.near)
        )


def _fitting(rules: Sequence[Rule], kind: str, device: str) -> list[Rule]:
    found = [rule for rule in reversed(rules) if rule.kind in (kind, "*") and rule.device == device]
    return sorted(found, key=lambda rule: -rule.least)
