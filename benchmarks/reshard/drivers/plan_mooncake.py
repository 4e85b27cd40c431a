"""Plans by mooncake.reshard of the same placements; run by the interpreter that has it.

Reads a JSON object from stdin: {"source": SIDE, "target": SIDE, "tensors": {name: [shape, itemsize,
split dimension or null, layer]}}, where SIDE is {"sizes": {axis: size}, "ranks": [{axis: place}],
"boxes": [[tensor, rank, offset, shape]]}. Writes {"seconds", "regions", "copies"}: copies are
[source rank, target rank, bytes] of each region of its plan. Imports nothing of this library.
"""

from __future__ import annotations

import json
import math
import sys
import time

from mooncake.reshard.weight import (
    OwnershipAxis,
    ParallelRank,
    ParallelTopology,
    PlacementFragment,
    ReplicatedAxis,
    SplitAxis,
    TensorDescriptor,
    TopologyParticipant,
    WeightPlacementManifest,
    plan_placement_transfer,
)


def main() -> None:
    case = json.load(sys.stdin)
    tensors = {name: descriptor(name, *facts) for name, facts in case["tensors"].items()}
    source, target = (manifest(case[side], tensors, side) for side in ("source", "target"))
    begun = time.perf_counter()
    plan = plan_placement_transfer(source, target)
    seconds = time.perf_counter() - begun
    number = [
        {ParallelRank(**rank): i for i, rank in enumerate(case[side]["ranks"])}
        for side in ("source", "target")
    ]
    copies = [
        (
            number[0][it.source.rank],
            number[1][it.target.rank],
            math.prod(it.overlap_shape) * tensors[it.tensor_id].itemsize,
        )
        for it in plan.operations
    ]
    json.dump({"seconds": seconds, "regions": len(copies), "copies": copies}, sys.stdout)


def descriptor(name, shape, itemsize, split, layer) -> TensorDescriptor:
    tensor_parallel = ReplicatedAxis("tp") if split is None else SplitAxis("tp", split)
    return TensorDescriptor(
        tensor_id=name,
        global_shape=tuple(shape),
        dtype="bfloat16",
        itemsize=itemsize,
        shard_dims=() if split is None else (split,),
        layout_fingerprint="plain",
        layer_id=layer,
        parallel_axes=(ReplicatedAxis("dp"), OwnershipAxis("pp"), tensor_parallel),
    )


def manifest(side, tensors, name) -> WeightPlacementManifest:
    ranks = [ParallelRank(**rank) for rank in side["ranks"]]
    sizes = {f"{axis}_size": size for axis, size in side["sizes"].items()}
    members = [TopologyParticipant(f"{name}-{i}", rank) for i, rank in enumerate(ranks)]
    fragments = [
        PlacementFragment(
            tensor_id=tensor,
            global_offset=tuple(offset),
            local_shape=tuple(shape),
            nbytes=math.prod(shape) * tensors[tensor].itemsize,
            rank=ranks[rank],
        )
        for tensor, rank, offset, shape in side["boxes"]
    ]
    return WeightPlacementManifest.from_fragments(
        resource_id="model",
        revision="1",
        weight_generation=1,
        placement_set_id=name,
        topology=ParallelTopology(ep_size=1, participants=tuple(members), **sizes),
        tensors=list(tensors.values()),
        fragments=fragments,
    )


if __name__ == "__main__":
    main()
