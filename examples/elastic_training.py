"""Four processes train data parallel; one is killed in mid-step; the losses go on as if not.

    pip install 'tensor-transport[torch]'  # in a checkout: make setup && . .venv/bin/activate
    python examples/elastic_training.py

There is no checkpoint. This program drives the ranks, which are actors: each has the model, Adam
and a part of the data, and all average their gradients by DDP over gloo. When one is gone, the
others let go of the step; a new process takes its place, reads parameters and Adam's state out of
the memory of the others, a part from each, and the step is done again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import transport
from transport import ActorCrashed, Layout, Mesh, Replicate, StateLayout, weights


# ---------------------------------------------------------------------------------- model and data
def begin(width, wrap=lambda model: None):
    """All begin the same. Adam makes its state at its first step; here it has it before."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(width, 2 * width), torch.nn.Tanh(), torch.nn.Linear(2 * width, width)
    )
    wrap(model)
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    for parameter in model.parameters():
        adam.state[parameter] = {
            "step": torch.zeros(()),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return model, adam


def batch(width, step, rank, ranks):
    """Of a step and a rank: the same whenever it is asked for."""
    x = torch.randn(16, width, generator=torch.Generator().manual_seed(step * ranks + rank))
    return x, x.roll(1, 1).tanh()


def state_of(model, adam):
    """Every tensor that a rank which takes over needs."""
    state = {}
    for name, parameter in model.named_parameters():
        state[name] = parameter
        state |= {f"{name}.{key}": value for key, value in adam.state[parameter].items()}
    return state


# -------------------------------------------------------------------------------------- the actors
class Reduction:
    """Averages DDP's gradients over a process group, and can let go of a peer that is lost.

    gloo tells the neighbours of a rank that has died at once, but others only after a timeout. So
    DDP waits for futures of ours, which `abandon` ends.
    """

    def __init__(self):
        self.failed = False
        self._pending = []

    def hook(self, _, bucket):
        flat, done = bucket.buffer().div_(dist.get_world_size()), torch.futures.Future()
        self._pending.append((done, flat))
        try:
            work = dist.all_reduce(flat, async_op=True)
            work.get_future().add_done_callback(lambda it: self._settle(done, flat, it))
        except RuntimeError:
            self._end(done, flat, failed=True)
        return done

    def abandon(self):
        for done, flat in self._pending:
            if not done.done():
                self._end(done, flat, failed=True)

    def _settle(self, done, flat, reduced):
        try:
            reduced.value()
        except RuntimeError:  # a peer is lost
            self._end(done, flat, failed=True)
        else:
            self._end(done, flat, failed=False)

    def _end(self, done, flat, failed):
        self.failed = self.failed or failed
        with contextlib.suppress(RuntimeError):  # it was abandoned a moment before
            done.set_result(flat)


class Trainer(transport.Actor):
    """One rank. A step is two calls: `gradients`, and when all have these, `commit`."""

    def __init__(self, width):
        torch.set_num_threads(1)
        point = transport.current_rank()
        self.rank, self.ranks = point.rank, point.sizes["rank"]
        self.width = width
        self.model, self.adam = begin(width)
        self.state = state_of(self.model, self.adam)
        self.engine = transport.Engine(name=f"rank {self.rank}")
        self.publication = None
        self.reduction = self.parallel = None
        self.left = []  # process groups that still wait for a rank that is lost
        self.since = None  # when this rank last had to let go of a step

    @transport.endpoint
    def publish(self, version=0):
        """Lets others read the state, out of this rank's own memory."""
        layout, rank = self.layout(), self.rank
        self.publication = weights.publish(
            self.engine, "state", self.state, version, layout=layout, rank=rank, mode="live"
        )
        return self.engine.addresses

    def layout(self):
        """What of the state each rank has: all of it."""
        mesh = Mesh((self.ranks,))
        return StateLayout(
            {
                name: Layout.placed(tensor.shape, tensor.dtype, mesh, [Replicate()])
                for name, tensor in self.state.items()
            }
        )

    @transport.endpoint
    def recover(self, addresses):
        """The state of the others, each byte from one of them.

        Returns its version, what was moved, and where others find this rank.
        """
        fetched = weights.recover(self.engine, "state", self.state, addresses, rank=self.rank)
        return fetched.version, str(fetched), self.publish(fetched.version)

    @transport.endpoint
    def meet(self, generation, port):
        """Makes the process group of the ranks that there are now."""
        if dist.is_initialized():
            self.left.append(dist.group.WORLD)
            self.parallel = None
            dist.destroy_process_group()
        self.store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore(str(generation), self.store),
            rank=self.rank,
            world_size=self.ranks,
            timeout=timedelta(seconds=10),
        )
        self.parallelize()

    def parallelize(self):
        self.reduction = Reduction()
        self.parallel = DistributedDataParallel(self.model, init_sync=False, bucket_cap_mb=8)
        self.parallel.register_comm_hook(None, self.reduction.hook)

    @transport.endpoint
    async def gradients(self, step, die=None):
        """Rank, loss, and how long it was idle before, once its gradients are the average of all.

        None if a rank was lost. `die` is a rank that is to kill itself meanwhile.
        """
        return await asyncio.to_thread(self._gradients, step, die)

    def _gradients(self, step, die):
        idle = 0.0 if self.since is None else time.monotonic() - self.since
        self.since = None
        self.adam.zero_grad()
        if die == self.rank:  # when some gradients are being averaged already
            self.at_last_gradient(self._die)
        x, y = batch(self.width, step, self.rank, self.ranks)
        loss = torch.nn.functional.mse_loss(self.parallel(x), y)
        loss.backward()
        if self.reduction.failed:
            self.since = time.monotonic()
            return None
        return self.rank, loss.item(), idle

    def at_last_gradient(self, action):
        next(self.model.parameters()).register_hook(action)

    def _die(self, *_):
        self.store.set("killed", str(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)

    @transport.endpoint
    def abandon(self):
        """Ends the step, in which a rank was lost."""
        self.reduction.abandon()

    @transport.endpoint
    def commit(self, step):
        """All have the gradients: the step is done."""
        with self.publication.writing(step + 1):
            self.adam.step()

    @transport.endpoint
    def pid(self):
        return os.getpid()

    def __cleanup__(self, error):
        self.engine.close()


# ---------------------------------------------------------------------------------- the controller
@dataclass
class Recovery:
    """What became of one loss; times in seconds, of time.monotonic."""

    rank: int
    moved: str
    detect: float  # from the kill until this program knew
    respawn: float  # until there was an actor again
    restore: float  # until it had its state
    meet: float  # until all had a process group again
    idle: list = field(default_factory=list)  # of each healthy rank, between its steps

    @property
    def total(self):
        return self.detect + self.respawn + self.restore + self.meet


class Job:
    """Trains step by step, whoever is lost meanwhile."""

    trainer = Trainer

    def __init__(self, mesh, width):
        self.mesh = mesh.supervise(on_failure=lambda crash: True)  # train() sees to it
        self.losses = {}  # by step: of each rank
        self.recoveries = []
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.generation = 0
        self.trainers = mesh.spawn("trainer", self.trainer, width)
        self.addresses = self.trainers.publish.call().get().values()
        self.meet()

    def train(self, steps, die=None):
        """`die` is (step, rank): this rank kills itself in the middle of that step."""
        step = 0
        while step < steps:
            try:
                step = self.step(step, die[1] if die and die[0] == step else None)
            except ActorCrashed as crash:
                die, lost = None, crash.rank
                while lost is not None:
                    try:
                        step, lost = self.replace(lost), None
                    except ActorCrashed as another:  # meanwhile
                        self.known, lost = time.monotonic(), another.rank

    def step(self, step, die=None):
        """Returns the step to go on with. Raises ActorCrashed after all have let go of this one."""
        answers = iter(self.trainers.gradients.stream(step, die))
        try:
            found = [answer.get() for answer in answers]
            if None in found:  # a connection was lost, and no rank
                self.meet()
                return step
            self.note(step, sorted(found))
            self.trainers.commit.call(step).get()
        except ActorCrashed as crash:
            self.known = time.monotonic()
            for other in self.others(crash.rank):
                other.abandon.call_one().get()
            for answer in answers:  # until nobody is in the step any more
                answer.get()
            raise
        return step + 1

    def note(self, step, answers):
        self.losses[step] = [loss for _, loss, _ in answers]
        idle = [seconds for _, _, seconds in answers if seconds]
        if idle:
            self.recoveries[-1].idle = idle

    def replace(self, lost):
        """A new rank in place of a lost one. Returns the step to go on with."""
        told = self.store.check(["killed"])  # by the rank itself
        times = [float(self.store.get("killed")) if told else self.known, self.known]
        self.store.delete_key("killed")
        self.mesh.replace(lost)
        times.append(time.monotonic())
        trainer = self.trainers.slice(rank=lost)
        living = [at for rank, each in enumerate(self.addresses) if rank != lost for at in each]
        version, moved, self.addresses[lost] = trainer.recover.call_one(living).get()
        times.append(time.monotonic())
        self.meet()
        times.append(time.monotonic())
        self.recoveries.append(Recovery(lost, moved, *map(float.__sub__, times[1:], times)))
        return version

    def meet(self):
        """All ranks form a process group, with a part of the store for itself."""
        for crash in self.mesh.crashed.values():  # who waited for it would wait long
            raise crash
        self.generation += 1
        self.trainers.meet.call(self.generation, self.store.port).get()

    def others(self, lost):
        return [self.trainers.slice(rank=rank) for rank in range(len(self.mesh)) if rank != lost]


def run(ranks=4, steps=10, width=256, die=None, kind=Job, **host):
    """Trains; `host` are arguments of local processes (LocalHost). Returns the job."""
    with transport.local(ranks, host=host) as mesh:
        job = kind(mesh, width)
        job.train(steps, die)
    return job


def main(kind=Job, preload=("torch", "torch._dynamo")):
    job = run(die=(4, 2), kind=kind, preload=preload, spares=1)
    undisturbed = run(kind=kind, preload=preload)
    for each in job.recoveries:
        print(
            f"rank {each.rank} was killed: known after {each.detect:.3f} s, a new process after"
            f" {each.respawn:.3f} s more, its state {each.restore:.3f} s, a process group"
            f" {each.meet:.3f} s; {each.total:.3f} s in all. The others were idle for"
            f" {max(each.idle):.3f} s.\n{each.moved}"
        )
    for step, losses in job.losses.items():
        ours, theirs = (sum(each) / len(each) for each in (losses, undisturbed.losses[step]))
        print(f"step {step}: loss {ours:.6f}, undisturbed {theirs:.6f}")


if __name__ == "__main__":
    main()
