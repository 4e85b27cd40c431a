"""Processes on the nodes of a Ray cluster. Imports Ray late; may import charge and fleet.

One Ray actor a bundle of a placement group holds the resources and runs an agent; the processes are
the agent's. So a process of the mesh that dies is no death of a Ray actor, and a new one takes
milliseconds. Ray restarts an agent whose node came back; the driver's end ends all of them.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from transport.errors import InvalidUse, Unavailable
from transport.mesh.hosts.charge import open_fleet
from transport.mesh.hosts.printer import sink_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Literal

    from transport.mesh.hosts.charge import Charge
    from transport.mesh.hosts.printer import Sink
    from transport.mesh.process import Process, Start

_LEAVE_TIMEOUT = 10.0


class RayHost:
    """`agents` bundles of `resources` each, with `per_agent` processes in each.

    `resources` are Ray's names ({"CPU": 8, "GPU": 8}), by default a CPU for each process;
    `strategy` is a placement group's (PACK, SPREAD, STRICT_PACK, STRICT_SPREAD). `logs` and
    `options` are those of a local host; each agent has one. Raises InvalidUse before `ray.init()`,
    Unavailable when the cluster does not have the resources within `timeout` seconds.
    """

    name = "ray"

    def __init__(
        self,
        agents: int = 1,
        *,
        per_agent: int = 1,
        resources: Mapping[str, float] | None = None,
        strategy: str = "PACK",
        logs: Sink | Literal["forward", "discard"] = "forward",
        timeout: float = 120.0,
        **options: Any,
    ) -> None:
        ray = _ray()
        self.size = agents * per_agent
        self._started = False
        self._group = _reserve(
            ray, [dict(resources or {"CPU": per_agent})] * agents, strategy, timeout
        )
        try:
            address = ray.util.get_node_ip_address()
            self._fleet, charge = open_fleet(
                "ray", address, agents, per_agent, sink_of(logs), timeout, options
            )
            self._agents = [_place(ray, self._group, index) for index in range(agents)]
            self._serving = [
                agent.serve.remote(charge, index) for index, agent in enumerate(self._agents)
            ]
        except BaseException:
            ray.util.remove_placement_group(self._group)
            raise

    def start(self, ranks: Sequence[Start]) -> Sequence[Process]:
        processes = self._fleet.start(ranks)
        self._started = True
        return processes

    def close(self) -> None:
        if self._group is None:
            return
        self._fleet.close()
        ray = _ray()
        if self._started:  # else some agents look for the fleet still, and would go on
            ray.wait(self._serving, num_returns=len(self._serving), timeout=_LEAVE_TIMEOUT)
        for agent in self._agents:
            with contextlib.suppress(ValueError):  # Ray's for one that it has forgotten
                ray.kill(agent)
        ray.util.remove_placement_group(self._group)
        self._group = None


class RayAgent:
    """The Ray actor. Its one task lasts as long as the fleet."""

    def serve(self, charge: Charge, index: int) -> int:
        return charge.serve(index)


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise Unavailable("Ray is not installed", "pip install 'tensor-transport[ray]'") from None
    if not ray.is_initialized():
        raise InvalidUse("a mesh on Ray needs a cluster: call ray.init() first")
    return ray


def _reserve(ray: Any, bundles: list[dict[str, float]], strategy: str, timeout: float) -> Any:
    group = ray.util.placement_group(bundles, strategy=strategy)
    if not group.wait(timeout):
        ray.util.remove_placement_group(group)
        reason = f"Ray did not give {len(bundles)} times {bundles[0]} within {timeout:g} s"
        raise Unavailable(reason, "ask for less, or look at `ray status`")
    return group


def _place(ray: Any, group: Any, index: int) -> Any:
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    bundle = dict(group.bundle_specs[index])
    return (
        ray.remote(RayAgent)
        .options(
            num_cpus=bundle.pop("CPU", 0),
            num_gpus=bundle.pop("GPU", 0),
            resources=bundle,
            max_restarts=-1,
            max_task_retries=-1,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=index
            ),
        )
        .remote()
    )
