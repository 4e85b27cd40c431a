"""Trainers that publish what they have."""

from __future__ import annotations

from states import grid, local

from transport import Engine, weights


class Trainers:
    """Four ranks of a 2x2 mesh, each an engine that publishes its shards."""

    def __init__(self, **options):
        self.layout = grid()
        self.engines = [Engine(name=f"trainer{rank}") for rank in range(4)]
        self.states = [local(self.layout, rank) for rank in range(4)]
        self.publications = [self.publish(rank, 1, **options) for rank in range(4)]

    def publish(self, rank, version, **options):
        return weights.publish(
            self.engines[rank],
            "policy",
            self.states[rank],
            version,
            layout=self.layout,
            rank=rank,
            **options,
        )

    def step(self, version, ranks=range(4)):
        for rank in ranks:
            with self.publications[rank].writing(version):
                for tensor in self.states[rank].values():
                    tensor.fill_(version)

    @property
    def addresses(self):
        return [engine.addresses[0] for engine in self.engines]

    def close(self):
        for publication in self.publications:
            publication.close()
        for engine in self.engines:
            engine.close()
