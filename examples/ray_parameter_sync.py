"""A trainer and two generators, actors of Ray; the generators hold shards of it, in bfloat16.

    pip install 'tensor-transport[ray,torch]'  # in a checkout: make setup && . .venv/bin/activate
    python examples/ray_parameter_sync.py

After each step of training the generators fetch the new weights: each reads just its shards, out of
the trainer's memory, converted on the way. Ray carries only the addresses.
"""

from __future__ import annotations

import ray
import torch

import transport.adapters.ray as tr
from transport import Layout, Mesh, Shard, StateLayout, weights

tr.register()

HIDDEN, INNER, GENERATORS = 256, 1024, 2


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(HIDDEN, INNER, bias=False)
        self.down = torch.nn.Linear(INNER, HIDDEN, bias=False)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def generators_layout():
    """Tensor parallel: `up` by its outputs, `down` by its inputs."""
    mesh = Mesh((GENERATORS,))
    return StateLayout(
        {
            "up.weight": Layout.placed((INNER, HIDDEN), "bfloat16", mesh, [Shard(0)]),
            "down.weight": Layout.placed((HIDDEN, INNER), "bfloat16", mesh, [Shard(1)]),
        }
    )


@ray.remote(num_cpus=0, enable_tensor_transport=True)
class Trainer:
    def __init__(self):
        torch.set_num_threads(1)
        self.model = Model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.publication = weights.publish(tr.engine(), "policy", self.model, 0)

    def addresses(self):
        return tr.engine().addresses

    def step(self, version):
        x = torch.randn(8, HIDDEN)
        loss = (self.model(x) - x).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.publication.update(version)  # from here on it can be fetched
        return loss.item()

    @ray.method(tensor_transport="TRANSPORT")
    def weights(self):
        """All of it, as a value: for a checkpoint, or for an actor that wants it whole."""
        return {name: tensor.clone() for name, tensor in self.model.state_dict().items()}


@ray.remote(num_cpus=0, enable_tensor_transport=True)
class Generator:
    def __init__(self, rank, addresses):
        torch.set_num_threads(1)
        layout = generators_layout()
        self.shards = {
            name: torch.empty(shape, dtype=torch.bfloat16)
            for name, (shape, _) in layout.local_shapes(rank).items()
        }
        self.subscription = weights.subscribe(
            tr.engine(), "policy", self.shards, addresses, layout=layout, rank=rank
        )

    def sync(self, version):
        fetched = self.subscription.fetch(version, deadline=30)
        return fetched.nbytes

    def differences(self, rank, whole):
        """Which shards are not the parts of the whole tensors that they should be."""
        parts = {
            "up.weight": whole["up.weight"].chunk(GENERATORS, 0)[rank],
            "down.weight": whole["down.weight"].chunk(GENERATORS, 1)[rank],
        }
        return [n for n, part in parts.items() if not torch.equal(part.bfloat16(), self.shards[n])]


def main(steps=3):
    trainer = Trainer.remote()
    addresses = ray.get(trainer.addresses.remote())
    generators = [Generator.remote(rank, addresses) for rank in range(GENERATORS)]
    for version in range(1, steps + 1):
        loss = ray.get(trainer.step.remote(version))
        moved = ray.get([generator.sync.remote(version) for generator in generators])
        print(f"version {version}: loss {loss:.3f}, {sum(moved)} bytes to {len(moved)} generators")
    whole = trainer.weights.remote()
    wrong = ray.get([g.differences.remote(rank, whole) for rank, g in enumerate(generators)])
    if any(wrong):
        raise SystemExit(f"wrong shards: {wrong}")
    return moved


if __name__ == "__main__":
    ray.init(include_dashboard=False, runtime_env={"worker_process_setup_hook": tr.register})
    main()
    ray.shutdown()
