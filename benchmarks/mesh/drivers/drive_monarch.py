"""One Monarch actor in a process of its own."""

import importlib.metadata

import turns
from monarch.actor import Actor, endpoint, this_host


class Incrementer(Actor):
    @endpoint
    def increment(self, number: int) -> int:
        return number + 1


if __name__ == "__main__":
    actor = this_host().spawn_procs(per_host={"gpus": 1}).spawn("actor", Incrementer)
    turns.run(
        lambda number: actor.increment.call_one(number).get(),
        importlib.metadata.version("torchmonarch"),
    )
