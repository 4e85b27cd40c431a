"""Names and fused tensors made to match, on either side, by describing them otherwise. Pure.

May import layout, state and errors. No transform copies anything: a part of a fused tensor is a
layout in the same local tensor. Patterns are regular expressions that match a whole name; templates
are as `re.Match.expand` takes them (`\\1`, `\\g<name>`).
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any, TypeVar

from transport.errors import LayoutError
from transport.sharding.layout import Layout
from transport.sharding.state import Entry, StateLayout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

Made = TypeVar("Made")


def rename(state: StateLayout, rules: Mapping[str, str | None]) -> StateLayout:
    """Other names by {pattern: template}; the first pattern that matches decides, None drops.

    What no pattern matches keeps its name, and all keep their local tensors. Raises LayoutError
    where two tensors would have one name, and for what is no pattern or template.
    """
    compiled = [(_compiled(pattern), template) for pattern, template in rules.items()]

    def renamed() -> Iterator[tuple[str, Entry]]:
        for name, entry in state.items():
            for pattern, template in compiled:
                match = pattern.fullmatch(name)
                if match:
                    if template is not None:
                        yield _expanded(match, template), entry
                    break
            else:
                yield name, entry

    return _distinct(renamed())


def split(
    state: StateLayout, pattern: str, parts: Mapping[str, int], *, dim: int = 0, groups: int = 1
) -> StateLayout:
    """Fused tensors as their parts: {template: length along `dim` within a group}, in order.

    One group: [q; k; v]. Several: [q0; k0; v0; q1; k1; v1 ...], one group per head (Megatron) or
    per tensor-parallel rank. Raises LayoutError naming the tensor where the lengths do not add up,
    or where nothing matches.
    """

    def made(layout: Layout) -> list[Layout]:
        lengths, extent = list(parts.values()), _extent(layout, dim)
        if sum(lengths) * groups != extent:
            raise LayoutError(f"{groups} x {lengths} is not the {extent} of a {layout}")
        starts = itertools.accumulate(lengths, initial=0)
        return [layout.interleaved(dim, a, n, sum(lengths)) for a, n in zip(starts, lengths)]

    return _replaced(state, pattern, list(parts), made)


def unstack(state: StateLayout, pattern: str, template: str, *, dim: int = 0) -> StateLayout:
    """Tensors of several as one each: a tensor of 64 experts becomes 64 matrices.

    `{index}` in the template is the index along `dim`, which the new tensors lack. Raises
    LayoutError naming the tensor where it has no such dimension, or where nothing matches.
    """

    def made(layout: Layout) -> list[Layout]:
        return [layout.select(dim, index) for index in range(_extent(layout, dim))]

    def names(layout: Layout) -> list[str]:
        return [template.replace("{index}", str(i)) for i in range(_extent(layout, dim))]

    return _replaced(state, pattern, names, made)


def permute(state: StateLayout, pattern: str, axes: Sequence[int]) -> StateLayout:
    """Tensors with their dimensions in another order, as `torch.permute`: [1, 0] transposes.

    Raises LayoutError naming the tensor where the axes do not fit, or where nothing matches.
    """
    return _replaced(state, pattern, [r"\g<0>"], lambda layout: [layout.permuted(axes)])


def join(
    state: StateLayout, pattern: str, members: Sequence[str], into: str, *, dim: int = 0
) -> StateLayout:
    """Tensors whose local tensors are joined: every rank has its part of each, one after the other.

    As serving engines keep qkv and gate_up, whose global order nobody needs. `members` and the new
    local tensor's name `into` are templates over a match of `pattern`, which matches one member.
    The names stay. Raises LayoutError naming the tensors where one is missing or shares its local
    tensor already, where the others' ranks or local shapes differ, or where nothing matches.
    """
    compiled = _compiled(pattern)
    used: dict[str, int] = {}
    for entry in state.values():
        used[entry.tensor] = used.get(entry.tensor, 0) + 1
    entries = dict(state)
    known: dict[tuple[int, ...], tuple[Layout, ...]] = {}
    for match in filter(None, map(compiled.fullmatch, state)):
        names = [_expanded(match, member) for member in members]
        wrong = [n for n in names if n not in state or used[state[n].tensor] > 1]
        if wrong:
            raise LayoutError(f"{wrong} cannot be joined: missing, or part of a joined tensor")
        layouts = [state[name].layout for name in names]
        one = tuple(map(id, layouts))
        if one not in known:
            known[one] = _named(names, Layout.stacked, layouts, dim)
        tensor = _expanded(match, into)
        entries.update((n, Entry(layout, tensor)) for n, layout in zip(names, known[one]))
    _check_any(bool(known), state, pattern)
    return StateLayout(entries)


def merge(states: Iterable[StateLayout]) -> StateLayout:
    """What several processes know of one state, each perhaps of its own mesh only, as one.

    Tensors that some have not (pipeline stages) are of those that have them. Raises LayoutError
    naming the tensor where descriptions contradict each other.
    """
    found: dict[str, dict[Entry, None]] = {}
    for state in dict.fromkeys(states):
        for name, entry in state.items():
            found.setdefault(name, {})[entry] = None
    known: dict[tuple[Layout, ...], Layout] = {}
    made: dict[str, Entry] = {}
    for name, entries in found.items():
        if len({entry.tensor for entry in entries}) > 1:
            held = sorted({entry.tensor for entry in entries})
            raise LayoutError(f"{name} is in different local tensors: {held[:4]}")
        layouts = tuple(entry.layout for entry in entries)
        if layouts not in known:
            known[layouts] = _named([name], Layout.union, layouts)
        made[name] = Entry(known[layouts], next(iter(entries)).tensor)
    return StateLayout(made)


def _replaced(
    state: StateLayout,
    pattern: str,
    templates: Sequence[str] | Callable[[Layout], Sequence[str]],
    make: Callable[[Layout], Sequence[Layout]],
) -> StateLayout:
    """Each tensor that matches as several; a layout is taken apart once."""
    compiled = _compiled(pattern)
    known: dict[int, list[tuple[str, Layout]]] = {}

    def replaced() -> Iterator[tuple[str, Entry]]:
        for name, entry in state.items():
            match = compiled.fullmatch(name)
            if not match:
                yield name, entry
                continue
            parts = known.get(id(entry.layout))
            if parts is None:
                made = _named([name], make, entry.layout)
                names = templates(entry.layout) if callable(templates) else templates
                parts = known[id(entry.layout)] = list(zip(names, made))
            for template, layout in parts:
                yield _expanded(match, template), Entry(layout, entry.tensor)

    result = _distinct(replaced())
    _check_any(bool(known), state, pattern)
    return result


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, TypeError) as error:
        raise LayoutError(f"{pattern!r:.80} is no pattern for names: {error}") from None


def _expanded(match: re.Match[str], template: str) -> str:
    try:
        return match.expand(template)
    except (re.error, IndexError, TypeError, AttributeError) as error:
        words = f"{template!r:.80} makes no name of {match[0]!r} by {match.re.pattern!r}: {error}"
        raise LayoutError(words) from None


def _distinct(entries: Iterable[tuple[str, Entry]]) -> StateLayout:
    made: dict[str, Entry] = {}
    for name, entry in entries:
        if name in made:
            raise LayoutError(f"two tensors would be called {name!r}")
        made[name] = entry
    return StateLayout(made)


def _extent(layout: Layout, dim: int) -> int:
    if not -len(layout.shape) <= dim < len(layout.shape):
        raise LayoutError(f"a {layout} has no dimension {dim}")
    return layout.shape[dim]


def _named(names: Sequence[str], make: Callable[..., Made], *arguments: Any) -> Made:
    """What `make` makes; its LayoutError says of which tensors."""
    try:
        return make(*arguments)
    except LayoutError as error:
        raise LayoutError(f"{', '.join(names)}: {error}") from None


def _check_any(matched: bool, state: StateLayout, pattern: str) -> None:
    if not matched:
        raise LayoutError(f"no name matches {pattern!r}; they are like {list(state)[:3]}")
