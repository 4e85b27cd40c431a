"""Bringing published state, or a file's, into local tensors.

May import engine, sharding, types and errors.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from transport.errors import InvalidUse, VersionGone
from transport.sharding.execute import Execution
from transport.weights.files import Files
from transport.weights.local import check_shapes, described, layout_for, tensors_of
from transport.weights.subscription import Fetched, Subscription

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from transport.engine.engine import Engine
    from transport.sharding.run import Progress
    from transport.sharding.state import StateLayout
    from transport.weights.subscription import Receive, Version


def subscribe(
    engine: Engine,
    name: str,
    into: Any,
    sources: Iterable[str],
    *,
    layout: StateLayout | None = None,
    rank: int | None = None,
) -> Subscription:
    """A reader for many versions of what the engines at `sources` publish under this name.

    `into` is a state dict (or module) with this rank's local tensors, which are overwritten;
    `layout` says how the group of readers holds the state, and `rank` is this one's number in it
    (default: what DTensors tell, else that rank 0 has all of what is in `into`). Its dtypes may be
    others than the publisher's. Nothing is connected before the first `fetch`.
    """
    receive, rank = _receiver(into, layout, rank)
    return Subscription(engine, name, sources, receive, rank)


def fetch(
    engine: Engine,
    name: str,
    into: Any,
    sources: Iterable[str] | os.PathLike[str],
    *,
    version: Version = "latest",
    layout: StateLayout | None = None,
    rank: int | None = None,
    deadline: float | None = None,
    progress: Any = None,
) -> Fetched:
    """One version, once: see `subscribe` and `Subscription.fetch`. For more than one, subscribe.

    Where `sources` is a path (pathlib.Path), of a .safetensors file, an index.json or a folder, the
    tensors are read from there by the same plan; the version is the one that `save` has noted
    there, -1 if none is. Raises InvalidUse and LayoutError for what is no such file.
    """
    receive, rank = _receiver(into, layout, rank)
    if isinstance(sources, os.PathLike):
        return _from_files(engine, sources, receive, rank, version, deadline, progress)
    if isinstance(sources, str) and sources.endswith(".safetensors"):
        raise InvalidUse(f"{sources!r} is no address; of a file give the path: Path({sources!r})")
    with Subscription(engine, name, sources, receive, rank, ahead=False) as subscription:
        return subscription.fetch(version, deadline=deadline, progress=progress)


def _receiver(into: Any, layout: StateLayout | None, rank: int | None) -> tuple[Receive, int]:
    tensors = tensors_of(into)
    told, number = described(into, rank)
    target = layout_for(layout, told, tensors, number)

    def receive(_: StateLayout) -> tuple[StateLayout, Mapping[str, Any]]:
        return target, tensors

    return receive, number


def _from_files(
    engine: Engine,
    path: os.PathLike[str],
    receive: Receive,
    rank: int,
    version: Version,
    deadline: float | None,
    progress: Progress | None,
) -> Fetched:
    with Files(engine, path) as files:
        found = -1 if files.version is None else files.version
        if not isinstance(version, str) and version != found:
            raise VersionGone(f"{path} has version {found}, not {version}", version=version)
        target, tensors = receive(files.layout)
        shapes = target.local_shapes(rank)
        check_shapes(tensors, shapes, f"rank {rank}")
        local = {name: tensors[name] for name in shapes}
        with Execution(engine, files.layout, target, rank, remote=files, local=local) as execution:
            report = execution.run(deadline, progress)
    return Fetched(found, report.bytes, report.seconds, 1, report.carried)
