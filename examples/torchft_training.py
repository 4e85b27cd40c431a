"""Four replicas train with torchft; one is killed, and heals from the others through the transport.

    pip install 'tensor-transport[torchft]'  # in a checkout: make setup && . .venv/bin/activate
    python examples/torchft_training.py

torchft decides who takes part in a step: its lighthouse and its Manager are used as they are. What
this library does is the state: parameters and optimizer of the replica that comes back are read out
of the memory of the three others, a part from each. With as many replicas as the job has asked for
in every step, and the same data for the same step, the losses are those of a run without a death.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import timedelta

import torch

REPLICAS, STEPS, KILLED, AT = 4, 10, 2, 4
WIDTH = int(os.environ.get("WIDTH", "256"))


def begin():
    """All begin the same, so that nobody heals at the first step."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Tanh(), torch.nn.Linear(2 * WIDTH, WIDTH)
    )
    return model, torch.optim.Adam(model.parameters(), lr=1e-3)


def loss_of(model, step, replica):
    """On the batch of a step and a replica, which is the same whenever it is asked for."""
    made = torch.Generator().manual_seed(step * REPLICAS + replica)
    x = torch.randn(32, WIDTH, generator=made)
    return torch.nn.functional.mse_loss(model(x), x.roll(1, 1).tanh())


def train(replica):
    from torchft import Manager, ProcessGroupGloo
    from torchft.optim import OptimizerWrapper

    from transport import Engine
    from transport.adapters.torchft import PeerTransport

    torch.set_num_threads(1)
    model, adam = begin()

    def state_dict():
        return {"model": model.state_dict(), "optimizer": adam.state_dict()}

    def load_state_dict(state):
        model.load_state_dict(state["model"])
        adam.load_state_dict(state["optimizer"])

    with Engine(name=f"replica {replica}") as engine:
        transport = PeerTransport(engine)
        group = transport.share(
            ProcessGroupGloo(timeout=timedelta(seconds=5)), state_dict, lambda: step(manager)
        )
        store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        manager = Manager(
            pg=group,
            load_state_dict=load_state_dict,
            state_dict=state_dict,
            min_replica_size=REPLICAS,
            use_async_quorum=False,  # who heals does so before its forward pass
            init_sync=False,
            replica_id=f"replica_{replica}",
            rank=0,
            world_size=1,
            store_addr="127.0.0.1",
            store_port=store.port,
            hostname="127.0.0.1",
            checkpoint_transport=transport,
        )
        optimizer = OptimizerWrapper(manager, adam)
        while step(manager) < STEPS:
            optimizer.zero_grad()  # asks for the quorum, and heals
            now = step(manager)
            loss = loss_of(model, now, replica)
            say(replica=replica, begun=now)
            loss.backward()
            reduce(manager, model)
            optimizer.step()  # if all have the gradients
            if step(manager) > now:
                moved = str(transport.fetched) if transport.fetched else ""
                say(replica=replica, step=now, loss=loss.item(), healed=moved)
        manager.shutdown()


def reduce(manager, model):
    """Averages the gradients over the replicas. An error is the manager's: nobody will commit."""
    gradients = [parameter.grad for parameter in model.parameters()]
    flat = torch.cat([it.flatten() for it in gradients])
    manager.allreduce(flat).wait()
    for gradient, part in zip(gradients, flat.split([it.numel() for it in gradients])):
        gradient.copy_(part.view_as(gradient))


def step(manager):
    return manager.current_step()


def say(**what):
    print(json.dumps(what), flush=True)


# ---------------------------------------------------------------------------------- the supervisor
class Job:
    """Starts the replicas, and starts a new one for one that has died."""

    def __init__(self, lighthouse, kill):
        self.environment = {**os.environ, "TORCHFT_LIGHTHOUSE": lighthouse}
        self.kill = kill
        self.running = {}
        self.losses = {}
        self.healed = ""
        self.starts = 0

    def start(self, replica):
        self.starts += 1
        command = [sys.executable, __file__, "--replica", str(replica)]
        self.running[replica] = subprocess.Popen(
            command, env=self.environment, stdout=subprocess.PIPE, text=True
        )

    def follow(self, replica):
        """Reads what a replica says until it ends; starts it again if that was too early."""
        while True:
            process = self.running[replica]
            for line in process.stdout:
                self.hear(replica, json.loads(line))
            if process.wait() == 0:
                return
            print(f"replica {replica} ended with {process.returncode}; a new one begins")
            self.start(replica)

    def hear(self, replica, said):
        if said.get("begun") == AT and replica == self.kill:
            self.kill = None
            self.running[replica].send_signal(signal.SIGKILL)
        if "loss" in said:
            self.losses[said["step"], replica] = said["loss"]
            self.healed = said["healed"] or self.healed


def run(kill=None):
    """Trains; the job has the losses by step and replica, and what healing has moved."""
    from concurrent.futures import ThreadPoolExecutor

    from torchft.coordination import LighthouseServer

    os.environ.setdefault("RUST_LOG", "error")  # of torchft
    lighthouse = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=REPLICAS, join_timeout_ms=500, heartbeat_timeout_ms=1000
    )
    job = Job(lighthouse.address(), kill)
    try:
        for replica in range(REPLICAS):
            job.start(replica)
        with ThreadPoolExecutor(REPLICAS) as pool:
            list(pool.map(job.follow, range(REPLICAS)))
    finally:
        for process in job.running.values():
            process.kill()
            process.wait()
            process.stdout.close()
        lighthouse.shutdown()
    return job


def main():
    disturbed = run(kill=KILLED)
    print(f"replica {KILLED} was killed at step {AT} and healed: {disturbed.healed}")
    undisturbed = run()
    for at in range(STEPS):
        ours, theirs = (
            sum(it.losses[at, r] for r in range(REPLICAS)) for it in (disturbed, undisturbed)
        )
        print(f"step {at}: loss {ours / REPLICAS:.6f}, undisturbed {theirs / REPLICAS:.6f}")
    return disturbed, undisturbed


if __name__ == "__main__":
    if "--replica" in sys.argv:
        train(int(sys.argv[-1]))
    else:
        main()
