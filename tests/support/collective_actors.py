"""Ranks of communicators that tests start: in a module that their processes can import."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import possessions
import torch

import transport
from transport import (
    Actor,
    Communicator,
    DeadlineExceeded,
    InvalidUse,
    RankLost,
    current_rank,
    endpoint,
)
from transport.collectives import hub, table
from transport.collectives.card import Rule

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
WHOLE = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
OTHERS = (torch.bool, torch.complex64, torch.float8_e4m3fn, torch.uint16, torch.uint32)
SIZES = (0, 1, 7, 4099)


def given(rank, count, dtype, salt=0):
    """What a rank has: small whole numbers, so that every order of adding gives the same."""
    values = torch.arange(count, dtype=torch.int64).mul_(rank + 3).add_(rank + salt) % 3
    return values.to(dtype)


def combined(op, parts):
    """A plain computation of what an all-reduce gives, in a type that has room."""
    dtype = parts[0].dtype
    if dtype is torch.bool:
        return torch.stack(parts).any(0) if op in ("sum", "max") else torch.stack(parts).all(0)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    stack = torch.stack([part.to(wide) for part in parts])
    if op in ("min", "max"):
        result = stack.amin(0) if op == "min" else stack.amax(0)
    else:
        result = stack.prod(0) if op == "prod" else stack.sum(0)
    return (result / len(parts) if op == "avg" else result).to(dtype)


def ops_of(dtype):
    if dtype.is_complex:
        return ("sum", "avg")
    if dtype is torch.float8_e4m3fn:
        return ()
    return ("sum", "prod", "min", "max", *(("avg",) if dtype in FLOATS else ()))


def same(got, wanted, what):
    got, wanted = got.reshape(-1), wanted.reshape(-1)
    if got.dtype in FLOATS and got.dtype is not torch.float64:
        torch.testing.assert_close(got, wanted, rtol=1e-2, atol=1e-2, msg=str(what))
    else:
        raw = (got.view(torch.uint8), wanted.contiguous().view(torch.uint8)) if got.numel() else ()
        assert not raw or torch.equal(*raw), what


class Checks:
    """Every kind of call on one communicator, against a plain computation."""

    def __init__(self, comm):
        self.comm, self.rank, self.size = comm, comm.rank, comm.size

    def reductions(self, dtype, count):
        parts = [given(rank, count, dtype) for rank in range(self.size)]
        for op in ops_of(dtype):
            wanted, what = combined(op, parts), (op, dtype, count, self.rank)
            mine = parts[self.rank].clone()
            assert self.comm.all_reduce(mine, op=op).wait() is mine
            same(mine, wanted, ("all_reduce", *what))
            mine, out = parts[self.rank].clone(), torch.zeros(count, dtype=dtype)
            assert self.comm.all_reduce(mine, out=out, op=op).wait() is out
            same(out, wanted, ("all_reduce out", *what))
            same(mine, parts[self.rank], ("all_reduce source", *what))
            root = self.size - 1
            result = self.comm.reduce(mine, root, op=op).wait()
            same(mine, wanted if self.rank == root else parts[self.rank], ("reduce", *what))
            assert (result is None) == (self.rank != root)
            self.reduce_scatter(op, dtype, count)

    def reduce_scatter(self, op, dtype, count):
        each = [
            torch.stack([given(rank, count, dtype, salt) for salt in range(self.size)])
            for rank in range(self.size)
        ]
        wanted = combined(op, [part[self.rank] for part in each])
        got = self.comm.reduce_scatter(each[self.rank].reshape(-1), op=op).wait()
        same(got, wanted, ("reduce_scatter", op, dtype, count))
        rows = list(each[self.rank].clone())
        got = self.comm.reduce_scatter(rows, out=rows[self.rank], op=op).wait()
        assert got is rows[self.rank]
        same(got, wanted, ("reduce_scatter in place", op, dtype, count))

    def moves(self, dtype, count):
        parts = [given(rank, count, dtype) for rank in range(self.size)]
        everything, mine = torch.cat(parts), parts[self.rank]
        root, what = self.size // 2, (dtype, count, self.rank)
        got = mine.clone()
        self.comm.broadcast(got, root).wait()
        same(got, parts[root], ("broadcast", *what))
        rows = self.comm.all_gather(mine).wait()
        assert rows.shape == (self.size, count)
        same(rows, everything, ("all_gather", *what))
        flat = torch.zeros(self.size * count, dtype=torch.int64).to(dtype)
        own = flat[self.rank * count : (self.rank + 1) * count]
        own.copy_(mine)
        self.comm.all_gather(own, out=flat).wait()
        same(flat, everything, ("all_gather in place", *what))
        rows = self.comm.gather(mine, root).wait()
        assert (rows is None) == (self.rank != root)
        if rows is not None:
            same(rows, everything, ("gather", *what))
        out = torch.empty_like(mine)
        whole = everything.clone() if self.rank == root else None
        self.comm.scatter(whole, root, out=out).wait()
        same(out, mine, ("scatter", *what))
        self.exchanges(dtype, count)

    def exchanges(self, dtype, count):
        """What rank a gives rank b has salt a * size + b, and a + b more elements."""

        def piece(a, b):
            return given(a, count + a + b, dtype, a * self.size + b)

        sources = [piece(self.rank, b) for b in range(self.size)]
        targets = [torch.empty_like(piece(a, self.rank)) for a in range(self.size)]
        self.comm.all_to_all(sources, out=targets).wait()
        for a, got in enumerate(targets):
            same(got, piece(a, self.rank), ("all_to_all", dtype, count, a))
        rows = torch.stack([given(self.rank, count, dtype, b) for b in range(self.size)])
        got = self.comm.all_to_all(rows).wait()
        wanted = torch.stack([given(a, count, dtype, self.rank) for a in range(self.size)])
        same(got, wanted, ("all_to_all equally", dtype, count))
        if self.size > 1:
            after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
            got = torch.empty_like(given(before, count, dtype))
            coming = self.comm.recv(got, before, tag=count)
            going = self.comm.send(given(self.rank, count, dtype), after, tag=count)
            going.wait()
            assert coming.wait() is got
            same(got, given(before, count, dtype), ("recv", dtype, count))


class Ranker(Actor):
    """One process that can be a rank of any number of communicators, one at a time."""

    def __init__(self):
        torch.set_num_threads(1)
        self.comm = None

    @endpoint
    def pid(self):
        return os.getpid()

    @endpoint
    def join(self, name, at, size=None, deadline=60, operation_deadline=60, carrier=""):
        point = current_rank()
        if size is not None and point.rank >= size:
            return None
        with carried_by(carrier):
            self.comm = Communicator.join(
                name,
                point.rank,
                size or point.sizes["rank"],
                at,
                deadline=deadline,
                operation_deadline=operation_deadline,
            )
        return self.comm.rank, self.comm.size

    @endpoint
    def make(self, dimensions, name=""):
        """By the mesh."""
        self.comm = transport.communicator(*dimensions, name=name)
        total = self.comm.all_gather(torch.tensor([current_rank().rank])).wait()
        return self.comm.rank, total.flatten().tolist()

    @endpoint
    def close(self):
        comm, self.comm = self.comm, None
        if comm is not None:
            comm.close()

    @endpoint
    def reductions(self, dtypes, sizes):
        if self.comm is not None:
            checks = Checks(self.comm)
            for dtype in dtypes:
                for count in sizes:
                    checks.reductions(dtype, count)

    @endpoint
    def moves(self, dtypes, sizes):
        if self.comm is not None:
            checks = Checks(self.comm)
            for dtype in dtypes:
                for count in sizes:
                    checks.moves(dtype, count)

    @endpoint
    def run(self, what, *arguments):
        """A function of this module by name, with the communicator."""
        return globals()[what](self.comm, *arguments)

    @endpoint
    def shrink_after(self, what, *arguments):
        """The same, then what is left of the group."""
        told = globals()[what](self.comm, *arguments)
        begun = time.monotonic()
        self.comm = self.comm.shrink()
        total = self.comm.all_reduce(torch.ones(1)).wait().item()
        state = self.comm.rank, self.comm.size, self.comm.generation, total
        return told, state, time.monotonic() - begun

    @endpoint
    def grow(self, newcomers):
        self.comm = self.comm.grow(newcomers)
        return self.comm.rank, self.comm.size, self.comm.all_reduce(torch.ones(1)).wait().item()

    @endpoint
    def enter(self, name, at):
        self.comm = Communicator.enter(name, at)
        return self.comm.rank, self.comm.size, self.comm.all_reduce(torch.ones(1)).wait().item()

    @endpoint
    def address(self):
        return self.comm.address

    @endpoint
    def held(self):
        """This process, and its descriptors, threads and bytes of the pool by kind."""
        pool = hub.here().engine._core.pool
        pool.drain()
        return os.getpid(), possessions.held() + Counter({"bytes of the pool": pool.used_bytes})


class Uncollected(Ranker):
    """In a process whose garbage collector is off: what goes goes by itself."""

    def __init__(self):
        super().__init__()
        gc.disable()


@contextlib.contextmanager
def carried_by(carrier):
    """A group that is made meanwhile has its CPU tensors carried by this one, if it is named."""
    with tempfile.NamedTemporaryFile() as file:
        if carrier:
            table.write(Path(file.name), [Rule("*", "cpu", 0, carrier)])
            os.environ["TRANSPORT_COLLECTIVES_TABLE"] = file.name
        try:
            yield
        finally:
            os.environ.pop("TRANSPORT_COLLECTIVES_TABLE", None)


# ------------------------------------------------------------------------------------- what they do
def until_lost(comm, victim, after, count):
    """All-reduces until somebody is lost; the victim kills itself meanwhile."""
    if comm.rank == victim:
        kill = threading.Timer(after, os.kill, (os.getpid(), signal.SIGKILL))
        kill.start()
    begun, rounds = time.monotonic(), 0
    try:
        while time.monotonic() < begun + 60:
            comm.all_reduce(torch.full((count,), 1.0)).wait()
            rounds += 1
            begun = time.monotonic()
    except RankLost as error:
        later = type(_raised(comm.barrier))
        return time.monotonic() - begun, error.ranks, rounds, later.__name__
    return None


def _raised(call):
    try:
        call()
    except Exception as error:
        return error
    return None


def tolerant(comm, steps, victims):
    """Averages of what every rank has alike: any of them is right whoever took part."""
    me, seen = comm.rank, []
    for step in range(steps):
        if victims.get(step) == me:
            threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGKILL)).start()
            time.sleep(0.019)
        mine = torch.full((20000,), float(step))
        operation = comm.all_reduce(mine, op="avg", tolerate_failures=True)
        assert operation.wait() is mine
        assert (mine == step).all(), (step, mine)
        seen.append(operation.ranks)
    votes = comm.should_commit(True), comm.should_commit(comm.rank != 0)
    return seen, votes, comm.size


def in_order(comm):
    """Begun together, ended in the order of their calls, also without a waiter."""
    ended = []
    value = torch.ones(5, dtype=torch.float64)
    operations = [comm.all_reduce(value) for _ in range(20)]
    for number, operation in enumerate(operations):
        operation.add_done_callback(lambda it, number=number: ended.append(number))
    end = time.monotonic() + 30
    while len(ended) < 20 and time.monotonic() < end:
        time.sleep(0.002)
    assert all(operation.done and operation.exception() is None for operation in operations)
    return ended, value.tolist(), float(comm.size) ** 20


def awaited(comm):
    async def both():
        first, second = comm.all_gather(torch.tensor([comm.rank])), comm.barrier()
        return (await first).flatten().tolist(), await second

    return asyncio.run(both())


def together(comm):
    with comm.coalesced() as operation:
        assert comm.all_reduce(torch.ones(3)) is operation
        comm.broadcast(torch.tensor([comm.rank]), 0)
    return [each.tolist() for each in operation.wait()]


def of_numpy(comm):
    array = np.full((2, 3), comm.rank, dtype=np.int32)
    assert comm.all_reduce(array).wait() is array
    ranks = comm.all_gather(np.full((1,), comm.rank)).wait()
    assert isinstance(ranks, np.ndarray)
    assert ranks.tolist() == [[rank] for rank in range(comm.size)]
    return array.tolist()


def late(comm, absent):
    """One rank does not call."""
    if comm.rank == absent:
        time.sleep(2.5)
        return None
    error = _raised(lambda: comm.all_reduce(torch.ones(4), deadline=1.0).wait())
    assert isinstance(error, DeadlineExceeded), error
    return str(error)


def differ(comm, other):
    """One rank makes another call; rank 0 is the first to give up."""
    call = comm.all_gather if comm.rank == other else comm.all_reduce
    error = _raised(lambda: call(torch.ones(4), deadline=20.0 if comm.rank else 1.0).wait())
    return type(error).__name__, str(error)


def untouched(comm, victim):
    """After the error no byte of a tensor changes any more, and the error stays."""
    if comm.rank == victim:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    mine = torch.full((1 << 20,), 1.0)
    error = _raised(lambda: comm.all_reduce(mine).wait())
    copy = mine.clone()
    time.sleep(1.0)
    return type(error).__name__, torch.equal(mine, copy)


def receive_until_lost(comm, victim):
    """Large messages from the victim, which dies in the middle of one."""
    here = torch.zeros(1 << 20)
    if comm.rank == victim:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGKILL)).start()
        while True:
            for rank in set(range(comm.size)) - {victim}:
                comm.send(here, rank).wait()
    begun = time.monotonic()
    try:
        while True:
            comm.recv(here, victim, deadline=30).wait()
            begun = time.monotonic()
    except RankLost as error:
        took, copy = time.monotonic() - begun, here.clone()
        time.sleep(0.5)
        return error.ranks, torch.equal(here, copy), took


def shrink_at_once(comm):
    """Two threads do; then it is closed."""
    told, begin = [], threading.Barrier(2)

    def shrink():
        begin.wait()
        try:
            told.append(comm.shrink())
        except InvalidUse as error:
            told.append(error)

    threads = [threading.Thread(target=shrink) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refused, made = sorted(told, key=lambda each: isinstance(each, Communicator))
    total = made.all_reduce(torch.ones(1)).wait().item()
    begun = time.monotonic()
    later = [type(_raised(call)).__name__ for call in (comm.shrink, comm.grow)]
    took = time.monotonic() - begun
    made.close()
    return type(refused).__name__, total, later, took


def long_deadlines(comm):
    """Longer than C can count."""
    for deadline in (3e6, 1e300):
        value = comm.all_reduce(torch.ones(1), deadline=deadline).wait().item()
    return value


def leave(comm, leaver):
    """A rank that has closed is found out by the next call."""
    comm.barrier().wait()
    if comm.rank == leaver:
        comm.close()
        return None
    error = _raised(lambda: comm.barrier().wait())
    return type(error).__name__, str(error)


def listening(comm):
    """Where the engine for communicators of this process is found."""
    return hub.here().engine.addresses[0]
