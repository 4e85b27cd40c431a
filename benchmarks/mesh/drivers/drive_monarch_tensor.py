"""One Monarch actor in a process of its own that takes a tensor: its size in bytes is the argument.

Prints "ready" once every element has come right; then, for each line that it reads, the seconds of
one call.
"""

import sys
import time

import torch
from monarch.actor import Actor, endpoint, this_host


class Taker(Actor):
    def __init__(self) -> None:
        torch.set_num_threads(1)

    @endpoint
    def take(self, value: torch.Tensor) -> float:
        return float(value[0] + value[-1])

    @endpoint
    def same(self, value: torch.Tensor, expected: float) -> bool:
        return bool((value == expected).all())


if __name__ == "__main__":
    source = torch.full((int(sys.argv[1]) // 4,), 1.5)
    actor = this_host().spawn_procs(per_host={"gpus": 1}).spawn("taker", Taker)
    assert actor.same.call_one(source, 1.5).get()
    print("ready", flush=True)
    for _ in sys.stdin:
        begun = time.perf_counter()
        actor.take.call_one(source).get()
        print(time.perf_counter() - begun, flush=True)
