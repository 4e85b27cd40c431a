"""Processes wherever they shall be: the same program with one argument changed.

May import every host, late: each brings what it needs.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from transport.config import Settings
from transport.errors import InvalidUse
from transport.mesh.process_mesh import ProcessMesh

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal

    from transport.mesh.process import Host

HOSTS = ("local", "ranks", "ray", "monarch")
LAUNCHERS = ("torchrun", "slurm", "kubernetes", "skypilot")  # of `transport launch --on`


def processes(
    count: int | None = None,
    /,
    *,
    on: Literal["local", "ranks", "ray", "monarch"] | Host | None = None,
    name: str = "mesh",
    settings: Settings | None = None,
    host: Mapping[str, Any] | None = None,
    **sizes: int,
) -> ProcessMesh:
    """`processes(8, on="ray")` (of dimension "rank"), `processes(replica=2, shard=4)`.

    `on`: None asks TRANSPORT_MESH_ON. This machine, where no number means that of
    TRANSPORT_MESH_PROCESSES; the processes of a job that torchrun, srun, Kubernetes or SkyPilot
    started, where it returns in the first alone and may leave the number out; the nodes of a Ray
    cluster; the hosts of a Monarch host mesh; or a host of your own (transport.mesh.process.Host).
    `host`: what the host's class takes beside the number (docs/howto/launch.md). Raises InvalidUse,
    Unavailable, or ActorCrashed for a process that ended instead of serving.
    """
    if count is not None and sizes:
        raise InvalidUse("say how many: processes(8), or by dimension: processes(replica=2)")
    given = settings or Settings.from_env()
    where = on if on is not None else given.mesh_on
    wanted = {"rank": count} if count is not None else dict(sizes)
    if not wanted and where == "local":
        wanted = {"rank": given.mesh_processes}
    if not wanted and where != "ranks":
        raise InvalidUse("say how many: processes(8), or by dimension: processes(replica=2)")
    chosen = _open(where, math.prod(wanted.values()), dict(host or {}), given)
    if not wanted:
        wanted = {"rank": chosen.size}  # type: ignore[attr-defined]
    try:
        return ProcessMesh.start(chosen, wanted, name=name, settings=settings)
    except BaseException:
        chosen.close()
        raise


def _open(on: str | Host, count: int, options: dict[str, Any], settings: Settings) -> Host:
    if on == "local":
        from transport.mesh.hosts.local import LocalHost

        return LocalHost(**options)
    if on == "ranks":
        from transport.mesh.hosts.ranks import ranks_host

        return ranks_host(**options)
    if on == "ray":
        from transport.mesh.hosts.ray import RayHost

        each = options.setdefault("per_agent", min(settings.mesh_processes, count))
        return RayHost(-(-count // each), **options)
    if on == "monarch":
        from transport.mesh.hosts.monarch import MonarchHost

        return MonarchHost(processes=count, **options)
    if isinstance(on, str):
        hint = f': in a job that {on} started it is "ranks"' if on in LAUNCHERS else ""
        raise InvalidUse(f"on= is one of {', '.join(HOSTS)}, or a host, not {on!r}{hint}")
    return on
