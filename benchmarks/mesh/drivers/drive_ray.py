"""One Ray actor, in a cluster of this machine."""

import os

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
import turns


@ray.remote(num_cpus=0)
class Actor:
    def increment(self, number):
        return number + 1


if __name__ == "__main__":
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=80 << 20)
    actor = Actor.remote()
    turns.run(lambda number: ray.get(actor.increment.remote(number)), ray.__version__)
    ray.shutdown()
