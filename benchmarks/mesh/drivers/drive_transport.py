"""One actor of ours in a process of its own. `sync` or `async` endpoint."""

import sys

import turns

import transport


class Sync(transport.Actor):
    @transport.endpoint
    def increment(self, number):
        return number + 1


class Async(transport.Actor):
    @transport.endpoint
    async def increment(self, number):
        return number + 1


if __name__ == "__main__":
    kind = Async if sys.argv[1] == "async" else Sync
    with transport.local(1) as mesh:
        actor = mesh.spawn("actor", kind)
        turns.run(lambda number: actor.increment.call_one(number).get(), transport.__version__)
