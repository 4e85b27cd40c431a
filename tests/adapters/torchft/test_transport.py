"""The CheckpointTransport on our engines, driven as torchft drives it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from unittest import TestCase

import pytest
import torch
import torch.distributed as dist
from torchft.checkpointing.transport_test import run_multi_recovery_test
from torchft.process_group import ProcessGroupDummy, ProcessGroupGloo

from transport import DeadlineExceeded, Engine, InvalidUse, PeerLost
from transport.adapters.torchft import PeerTransport

SOON = timedelta(seconds=20)


@pytest.fixture
def replicas():
    """Makes engines with a transport each."""
    with ExitStack() as stack:

        def make(count: int, **options) -> list[PeerTransport]:
            engines = [stack.enter_context(Engine(name=f"replica {i}")) for i in range(count)]
            made = [PeerTransport(engine, **options) for engine in engines]
            for each in made:
                stack.callback(each.shutdown)
            return made

        yield make


def heal(source: PeerTransport, healing: PeerTransport, state, step: int = 1):
    source.send_checkpoint([1], step, state, SOON)
    got = healing.recv_checkpoint(0, source.metadata(), step, SOON)
    source.disallow_checkpoint()
    return got


# ------------------------------------------------------------------------------------ one source
def test_torchfts_own_harness(replicas):
    made = replicas(3)
    run_multi_recovery_test(TestCase(), lambda rank, _: made[rank], torch.device("cpu"))


def test_a_whole_training_state(replicas):
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(3, 8)).sum().backward()
    optimizer.step()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    state = {
        "user": {"default": {"model": model.state_dict(), "optimizer": optimizer.state_dict()}},
        "lr": scheduler.state_dict(),
        "torchft": {"step": 7, "batches_committed": 28},
    }
    got = heal(*replicas(2), state, 7)
    assert got["torchft"] == state["torchft"]
    assert got["lr"] == state["lr"]
    torch.testing.assert_close(got["user"], state["user"], rtol=0, atol=0)
    optimizer.load_state_dict(got["user"]["default"]["optimizer"])


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(24).reshape(4, 6)[:, ::2],
        torch.arange(24.0).reshape(4, 6).T,
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(6, dtype=torch.complex64).conj(),
        torch.tensor(3.5, dtype=torch.bfloat16),
        torch.tensor([True, False]),
        torch.ones(3).expand(4, 3),
        torch.empty(0, 3),
        torch.nn.Parameter(torch.ones(2, 2)),
        torch.ones(5).to(torch.float8_e4m3fn),
    ],
    ids=lambda t: f"{t.dtype}{tuple(t.shape)}",
)
def test_any_tensor(replicas, tensor):
    got = heal(*replicas(2), {"it": tensor})["it"]
    assert (got.shape, got.dtype) == (tensor.shape, tensor.dtype)
    assert torch.equal(got.to(torch.complex128), tensor.to(torch.complex128))


def test_in_place(replicas):
    into = {"a": torch.zeros(1000), "b": torch.zeros(3), "other": torch.zeros(1)}
    source, healing = replicas(2, state_dict=lambda: into)
    got = heal(source, healing, {"a": torch.ones(1000), "b": torch.ones(4)})
    assert got["a"] is into["a"]
    assert got["b"] is not into["b"]  # of another shape
    assert into["a"].sum() == 1000
    assert got["b"].sum() == 4


def test_what_is_read_is_the_tensor_itself(replicas):
    source, healing = replicas(2)
    state = {"a": torch.zeros(1 << 16)}
    source.send_checkpoint([1], 1, state, SOON)
    state["a"] += 1  # torchft lets nobody do that before disallow_checkpoint
    got = healing.recv_checkpoint(0, source.metadata(), 1, SOON)
    assert got["a"].sum() == 1 << 16


# ---------------------------------------------------------------------------------------- errors
def test_a_step_that_nobody_offers(replicas):
    source, healing = replicas(2)
    source.send_checkpoint([1], 1, {"a": torch.ones(3)}, SOON)
    with pytest.raises(DeadlineExceeded, match="replica 0 gave no state of step 2"):
        healing.recv_checkpoint(0, source.metadata(), 2, timedelta(seconds=0.05))


def test_nothing_is_offered_after_disallow(replicas):
    source, healing = replicas(2)
    heal(source, healing, {"a": torch.ones(3)})
    with pytest.raises(TimeoutError):
        healing.recv_checkpoint(0, source.metadata(), 1, timedelta(seconds=0.05))


def test_metadata_of_another_transport(replicas):
    with pytest.raises(InvalidUse, match="same checkpoint_transport"):
        replicas(1)[0].recv_checkpoint(0, "http://host:1/checkpoint/", 1, SOON)


def test_a_source_that_is_gone(replicas):
    source, healing = replicas(2)
    source.send_checkpoint([1], 1, {"a": torch.ones(3)}, SOON)
    metadata = source.metadata()
    source._engine.close()
    with pytest.raises(PeerLost):
        healing.recv_checkpoint(0, metadata, 1, timedelta(seconds=0.1))


# ------------------------------------------------------------------------------- several sources
def configured(replicas, states, steps, groups=ProcessGroupGloo):
    """Transports that share, after their process groups have met over a store."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    made = replicas(len(states))
    shared = [
        each.share(groups(), lambda s=state: s, lambda n=step: n)
        for each, state, step in zip(made, states, steps)
    ]
    address = f"127.0.0.1:{store.port}/torchft/1/0"
    with ThreadPoolExecutor(len(made)) as pool:
        list(
            pool.map(lambda i: shared[i].configure(address, str(i), i, len(made)), range(len(made)))
        )
    return made, shared


def test_every_healthy_replica_gives_a_part(replicas):
    size = 1 << 20
    states = [{"a": torch.full((size,), i)} for i in range(4)]  # to tell whose bytes arrived
    made, groups = configured(replicas, states, [5, 5, 5, 2])
    made[0].send_checkpoint([3], 5, states[0], SOON)
    got = made[3].recv_checkpoint(0, made[0].metadata(), 5, SOON)
    shares = torch.bincount(got["a"], minlength=4).tolist()
    assert shares[3] == 0
    assert all(share > size // 6 for share in shares[:3])
    assert made[3].fetched is not None
    assert made[3].fetched.nbytes == 8 * size
    for group in groups:
        group.shutdown()


def test_replicas_that_hold_another_state_or_step_give_nothing(replicas):
    states = [{"a": torch.full((4096,), i)} for i in range(3)] + [{"a": torch.zeros(7)}]
    made, groups = configured(replicas, states, [5, 0, 4, 5])
    made[0].send_checkpoint([1], 5, states[0], SOON)
    got = made[1].recv_checkpoint(0, made[0].metadata(), 5, SOON)
    assert got["a"].unique().tolist() == [0]
    for group in groups:
        group.shutdown()


def test_a_replica_that_dies_is_done_without(replicas):
    states = [{"a": torch.full((1 << 18,), i)} for i in range(3)]
    made, groups = configured(replicas, states, [5, 5, 1])
    made[0].send_checkpoint([2], 5, states[0], SOON)
    made[1]._engine.close()
    got = made[2].recv_checkpoint(0, made[0].metadata(), 5, SOON)
    assert got["a"].unique().tolist() == [0]
    for group in groups:
        group.shutdown()


def test_the_shared_group_is_the_group(replicas):
    transport = replicas(1)[0]
    inner = ProcessGroupDummy(0, 1)
    shared = transport.share(inner, dict, lambda: 0)
    assert shared.size() == inner.size()


def test_calls_from_two_threads(replicas):
    source, healing = replicas(2)
    done = threading.Event()

    def disallow():
        while not done.is_set():
            source.disallow_checkpoint()

    thread = threading.Thread(target=disallow)
    thread.start()
    try:
        for step in range(1, 20):
            source.send_checkpoint([1], step, {"a": torch.ones(100)}, SOON)
    finally:
        done.set()
        thread.join(20)
    assert heal(source, healing, {"a": torch.ones(3)}, 99)["a"].sum() == 3
