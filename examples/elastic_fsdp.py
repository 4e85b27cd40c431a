"""As elastic_training.py, but the state is sharded: FSDP2, two replicas of which each has shards.

    pip install 'tensor-transport[torch]'  # torch 2.8 or later
    python examples/elastic_fsdp.py

A rank that takes over has its shard of parameters and of Adam's state from the rank that has the
same in the other replica. FSDP binds a model to its process groups, so all make both anew then and
copy their shards into them.
"""

from __future__ import annotations

import threading
import time

import elastic_training
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from transport import Layout, Mesh, Replicate, Shard, StateLayout

REPLICAS = 2


class PeerGone(RuntimeError):
    """A rank was lost, so this step ends."""


class Collectives:
    """FSDP's collectives over gloo, which let go of a peer that is lost.

    gloo tells the neighbours of a rank that has died at once, but others only after a timeout: they
    wait for somebody who does not come because of the first. `abandon` ends their waiting.
    """

    def __init__(self, replicas):
        self.failed = False
        self._replicas = replicas  # the process group of those that have the same shard
        self._done = threading.Event()

    def abandon(self):
        self.failed = True
        self._done.set()

    def wait(self, work):
        work.get_future().add_done_callback(lambda _: self._done.set())
        self._done.wait()
        if self.failed:
            raise PeerGone
        self._done.clear()
        try:
            work.wait()
        except RuntimeError as error:
            raise PeerGone from error

    def average(self, gradients):
        """Over the replicas; FSDP has done it over the shards."""
        gradients.div_(REPLICAS)
        self.wait(dist.all_reduce(gradients, group=self._replicas, async_op=True))

    def gather(self, output_tensor, input_tensor, group, async_op=False):
        parts = list(output_tensor.chunk(group.size()))
        self.wait(dist.all_gather(parts, input_tensor, group, async_op=True))

    def scatter(self, output_tensor, input_tensor, group, op, async_op=False):
        """As gloo does it, too; but its own gives no future."""
        self.wait(dist.all_reduce(input_tensor, op, group, async_op=True))
        output_tensor.copy_(input_tensor.chunk(group.size())[group.rank()])


class Comm:
    """A collective in the form in which FSDP takes one."""

    def __init__(self, call):
        self.call = call

    def allocate(self, size, *, dtype, device):
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, *args, **kwargs):
        self.call(*args, **kwargs)


def local(tensor):
    """What this rank has of it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class Trainer(elastic_training.Trainer):
    """One rank: of a replica, a shard."""

    def __init__(self, width):
        super().__init__(width)
        self.shapes = {name: tensor.shape for name, tensor in self.state.items()}
        # There is no process group yet: these are the shards until there is one.
        shards, mine = self.ranks // REPLICAS, self.rank % (self.ranks // REPLICAS)
        self.state = {
            name: tensor.detach().chunk(shards)[mine].clone() if tensor.dim() else tensor
            for name, tensor in self.state.items()
        }

    def layout(self):
        mesh = Mesh((REPLICAS, self.ranks // REPLICAS))
        return StateLayout(
            {
                name: Layout.placed(
                    shape,
                    self.state[name].dtype,
                    mesh,
                    [Replicate(), Shard(0) if shape else Replicate()],
                )
                for name, shape in self.shapes.items()
            }
        )

    def parallelize(self):
        before, version = self.state, self.publication.version
        self.model, self.adam = elastic_training.begin(self.width, self.wrap)
        self.parallel = self.model
        state = elastic_training.state_of(self.model, self.adam)
        self.state = {name: local(tensor.detach()) for name, tensor in state.items()}
        for name, tensor in self.state.items():
            tensor.copy_(before[name])
        self.publication.close()
        self.publish(version)

    def wrap(self, model):
        sizes = REPLICAS, self.ranks // REPLICAS
        mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("replica", "shard"))
        self.reduction = Collectives(mesh.get_group("replica"))
        for module in (*(each for each in model if list(each.parameters())), model):
            fully_shard(module, mesh=mesh["shard"])
            module.set_custom_all_gather(Comm(self.reduction.gather))
            module.set_custom_reduce_scatter(Comm(self.reduction.scatter))
            module.set_all_reduce_hook(self.reduction.average)

    def at_last_gradient(self, action):
        def hook(module, arguments, output):
            output.register_hook(action)

        self.model[1].register_forward_hook(hook)

    def _gradients(self, step, die):
        try:
            return super()._gradients(step, die)
        except PeerGone:
            self.since = time.monotonic()
            return None


class Job(elastic_training.Job):
    trainer = Trainer


if __name__ == "__main__":
    elastic_training.main(Job, ("torch", "torch._dynamo", "torch.distributed.fsdp"))
