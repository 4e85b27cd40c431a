"""The same program on one machine (`python train.py`) and on many (what `transport launch` prints).

transport launch --on slurm --nodes 2 --procs-per-node 4 train.py --steps 3
"""

from __future__ import annotations

import argparse
import os
import platform

import transport


class Trainer(transport.Actor):
    def __init__(self, seed: int) -> None:
        self.weight = float(seed)

    @transport.endpoint
    def step(self, number: int) -> float:
        self.weight += 1 / number
        return self.weight

    @transport.endpoint
    def where(self) -> str:
        return (
            f"rank {transport.current_rank()['rank']}: process {os.getpid()} on {platform.node()}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3)
    steps = parser.parse_args().steps
    # On this machine, or wherever TRANSPORT_MESH_ON says; in a job's other processes it serves.
    with transport.processes() as mesh:
        trainers = mesh.spawn("trainer", Trainer, 1)
        for text in trainers.where.call().get().values():
            print(text)
        for number in range(1, steps + 1):
            print("step", number, trainers.step.call(number).get().values())


if __name__ == "__main__":
    main()
