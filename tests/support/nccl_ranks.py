"""Ranks in processes of their own, each with a GPU that is a double and a carrier over the double
of NCCL (native/fakes/fakenccl); and what they are told to do.

May import the standard library, torch, gpu_double and the package.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transport.collectives.nccl import NcclCarrier

PATIENCE = 60.0
PLATFORM = os.environ.get("TN_GPU_DOUBLE", "cuda")
VISIBLE = "CUDA_VISIBLE_DEVICES" if PLATFORM == "cuda" else "HIP_VISIBLE_DEVICES"
_DEVICES = 8  # that a double can have


class Nccl:
    """The double's knobs, in this process."""

    def __init__(self) -> None:
        self.file = str(Path(os.environ["TN_FAKES"]) / "fakenccl.so")
        self.library = ctypes.CDLL(self.file)
        for name in ("fakenccl_ctl", "fakenccl_get"):
            getattr(self.library, name).restype = ctypes.c_long
        self.library.fakenccl_ctl.argtypes = [ctypes.c_char_p, ctypes.c_long]

    def put(self, **knobs: int) -> None:
        for name, value in knobs.items():
            self.library.fakenccl_ctl(name.encode(), value)

    def get(self, name: str) -> int:
        return int(self.library.fakenccl_get(name.encode()))

    def text(self, name: str, value: str) -> None:
        self.library.fakenccl_set(name.encode(), value.encode())

    def settings(self) -> dict[str, str]:
        return {("nccl_lib" if PLATFORM == "cuda" else "rccl_lib"): self.file}


class Rank:
    """What one process has; the functions that tests name get it first."""

    def __init__(self, folder: str) -> None:
        from gpu_double import GpuDouble

        from transport.config import Settings

        self.gpu = GpuDouble(PLATFORM)
        self.gpu.begin()
        self.nccl = Nccl()
        self.settings = Settings.from_env(**self.gpu.settings(), **self.nccl.settings())
        self.folder = Path(folder)
        self.carrier: NcclCarrier
        self.works: list[Any] = []
        self.engine: Any = None
        self.comm: Any = None

    def exchange(self, name: str) -> Callable[[bytes | None], bytes]:
        """By a file that rank 0 writes."""
        path = self.folder / name

        def exchange(data: bytes | None) -> bytes:
            if data is not None:
                path.with_suffix(".new").write_bytes(data)
                path.with_suffix(".new").rename(path)
                return data
            end = time.monotonic() + PATIENCE
            while not path.exists():
                assert time.monotonic() < end, "rank 0 has not said anything"
                time.sleep(1e-3)
            return path.read_bytes()

        return exchange


def _serve(pipe: Any, folder: str, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    own = Rank(folder)
    pipe.send((True, None))
    while (order := pipe.recv()) is not None:
        function, arguments, options = order
        try:
            pipe.send((True, function(own, *arguments, **options)))
        except BaseException as error:
            error.__cause__ = None
            try:
                pipe.send((False, error))
            except Exception:
                pipe.send((False, AssertionError(traceback.format_exc())))


class Ranks:
    """So many processes, each with a GPU of its own while there are some. A test tells all, or
    some, what to do."""

    _names = itertools.count()

    def __init__(self, count: int, **environment: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="nccl-ranks-")
        # Forked from a process that has torch and nothing of a GPU: importing it takes seconds.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch"])
        common = {**os.environ, "FAKENCCL": "", "FAKEGPU": f"devices={_DEVICES}"}
        self.pipes, self.processes = [], []
        for rank in range(count):
            ours, theirs = context.Pipe()
            own = {**common, VISIBLE: str(rank % _DEVICES), **environment}
            process = context.Process(target=_serve, args=(theirs, self._folder.name, own))
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)
        for pipe in self.pipes:
            _answer(pipe)

    def __len__(self) -> int:
        return len(self.pipes)

    def start(
        self, rank: int, function: Callable[..., Any], *arguments: Any, **options: Any
    ) -> None:
        self.pipes[rank].send((function, arguments, options))

    def answer(self, rank: int) -> Any:
        """What it gave; raises what it raised."""
        return _answer(self.pipes[rank])

    def outcome(self, rank: int) -> Any:
        """The same, with what it raised as a value."""
        try:
            return self.answer(rank)
        except Exception as error:
            return error

    def all(
        self, function: Callable[..., Any], *arguments: Any, among: Sequence[int] | None = None
    ) -> list[Any]:
        """By all, or by those; the answers in their order. The first error is raised."""
        chosen = range(len(self)) if among is None else among
        for rank in chosen:
            self.start(rank, function, *arguments)
        answers = [self.outcome(rank) for rank in chosen]
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers

    def open(self, ranks: int, timeout: float = PATIENCE, **options: Any) -> None:
        """A carrier of the first so many."""
        name = f"id-{next(self._names)}"
        for rank in range(ranks):
            self.start(rank, begin, rank, ranks, name, timeout, **options)
        for rank in range(ranks):
            self.answer(rank)

    def close(self) -> None:
        for pipe, process in zip(self.pipes, self.processes):
            if process.is_alive():
                with contextlib.suppress(BrokenPipeError):  # it is about to be dead
                    pipe.send(None)
        for process in self.processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join(10)
        self._folder.cleanup()


def _answer(pipe: Any) -> Any:
    if not pipe.poll(PATIENCE):
        raise TimeoutError("the rank does not answer")
    good, value = pipe.recv()
    if good:
        return value
    raise value


# ----------------------------------------------------------------------------------------- orders
def begin(own: Rank, rank: int, ranks: int, name: str, timeout: float) -> str:
    from transport.collectives.nccl import NcclCarrier

    own.carrier = NcclCarrier(
        rank, ranks, 0, own.exchange(name), timeout=timeout, settings=own.settings
    )
    return own.carrier.library.version_text


def end(own: Rank) -> dict[str, int]:
    own.carrier.close()
    counters = ("comms", "scales", "registered", "running")
    return {name: own.nccl.get(name) for name in counters}


def knobs(own: Rank, **values: int) -> None:
    own.nccl.put(**values)


def knob(own: Rank, name: str) -> int:
    return own.nccl.get(name)


def reset(own: Rank) -> None:
    own.nccl.library.fakenccl_reset()
    own.gpu.begin()


def start_reduce(own: Rank, deadline: float = PATIENCE, count: int = 1000) -> None:
    """An all-reduce that nobody waits for."""
    import torch

    from transport.collectives.call import Call, Kind

    part = own.gpu.new((count,), "float32")
    own.gpu.put(part.data_ptr(), torch.ones(count).numpy().tobytes())
    own.works.append(own.carrier.begin([Call(Kind.ALL_REDUCE, (part,), (part,))], 0, deadline))


def wait(own: Rank, timeout: float = PATIENCE) -> float:
    """Until the last that was started has ended; how many seconds that took."""
    begun = time.monotonic()
    assert own.works.pop().wait(timeout), "it has not ended"
    return time.monotonic() - begun


def wait_failed(own: Rank) -> tuple[Exception, float]:
    """What the last one raises, and after how many seconds."""
    begun = time.monotonic()
    try:
        own.works.pop().wait(PATIENCE)
    except Exception as error:
        return error, time.monotonic() - begun
    raise AssertionError("it did not fail")


def abort(own: Rank, error: Any) -> float:
    """How many seconds the call itself took."""
    begun = time.monotonic()
    own.carrier.abort(error)
    return time.monotonic() - begun


def shrink(own: Rank, lost: list[int], timeout: float = PATIENCE) -> tuple[int, int]:
    old, own.carrier = own.carrier, own.carrier.shrink(lost, timeout)
    old.close()
    return own.carrier.rank, own.carrier.ranks


def split(own: Rank, color: int, key: int, ranks: int, rank: int) -> None:
    own.works.append(own.carrier.split(color, key, ranks, rank, PATIENCE))


def swap(own: Rank) -> None:
    """The carrier, with what `split` made."""
    own.works[-1], own.carrier = own.carrier, own.works[-1]


def vanish(own: Rank) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail_function(own: Rank, name: str) -> None:
    """From now on all calls of it do."""
    own.nccl.text("fail", name)


def refuse_host(own: Rank) -> str:
    import torch

    from transport.collectives.call import Call, Kind

    part = torch.ones(3)
    return own.carrier.refusal(Call(Kind.ALL_REDUCE, (part,), (part,)))


def behind_a_kernel(own: Rank) -> None:
    from transport.collectives.call import Call, Kind

    gpu, nbytes = own.gpu, 4096
    first, second, copy = gpu.stream(), gpu.stream(), gpu.alloc(nbytes)
    part = gpu.new((nbytes,))
    gpu.put(part.data_ptr(), bytes(nbytes))
    gpu.ctl("hold", 1)
    gpu.fill(part.data_ptr(), 3, nbytes, first)
    work = own.carrier.begin([Call(Kind.ALL_REDUCE, (part,), (part,))], first, PATIENCE)
    work.wait_on(second)
    gpu.fill(copy, 9, nbytes, second)
    time.sleep(0.1)
    assert not work.done()
    assert not work.wait(0.01)
    assert gpu.bytes_at(copy, nbytes) == bytes(nbytes), "it did not wait"
    gpu.ctl("hold", 0)
    gpu.sync(second)
    assert gpu.read(part) == b"\x06" * nbytes
    assert gpu.bytes_at(copy, nbytes) == b"\x09" * nbytes
    assert work.wait(PATIENCE)


def end_at_once(own: Rank) -> int:
    """Closes when the GPU has done a call and nobody has looked yet; how often it aborted."""
    from transport.collectives.call import Call, Kind

    stream, part = own.gpu.stream(), own.gpu.new((4096,))
    aborts = own.nccl.get("aborts")
    own.gpu.ctl("hold", 1)
    work = own.carrier.begin([Call(Kind.ALL_REDUCE, (part,), (part,))], stream, PATIENCE)
    time.sleep(0.1)  # looks have become rare by then
    own.gpu.ctl("hold", 0)
    own.gpu.sync(stream)
    own.carrier.close()
    assert work.wait(PATIENCE), "what was done before the end is done"
    return own.nccl.get("aborts") - aborts


def pooled(own: Rank) -> int:
    """How many registrations there are after several calls with memory of an engine's pool."""
    import torch

    from transport import Engine
    from transport.collectives.call import Call, Kind

    torch.cuda._lazy_init = lambda: None  # type: ignore[attr-defined]
    options = {"listen": "127.0.0.1:0", "secret": "a secret of this test run only"}
    with Engine(providers=("tcp",), settings=own.settings, **options) as engine:
        parts = [engine.empty((64,), torch.float32, device=own.gpu.kind) for _ in range(3)]
        for part in parts:
            own.gpu.put(part.data_ptr(), torch.ones(64).numpy().tobytes())
            work = own.carrier.begin([Call(Kind.ALL_REDUCE, (part,), (part,))], 0, PATIENCE)
            assert work.wait(PATIENCE)
            assert own.gpu.read(part) == torch.full((64,), 2.0).numpy().tobytes()
        count = own.nccl.get("registered")
        own.works.clear()
        del parts, part, work
    return count


def join(own: Rank, rank: int, ranks: int, name: str) -> None:
    """A Communicator of a group, on an engine of this process's own."""
    from transport import Engine
    from transport.collectives.communicator import Communicator

    own.engine = Engine(
        providers=("tcp",),
        listen=f"unix:{own.folder / name}.{rank}",
        secret="a secret of this test run only",
        settings=own.settings,
    )
    at = f"unix:{own.folder / name}.0"
    own.comm = Communicator.join(name, rank, ranks, at, engine=own.engine, deadline=PATIENCE)


def reduce_behind_a_kernel(own: Rank) -> tuple[int, str]:
    """Two calls while the GPU stands still: how many began, and what carries them."""
    import torch

    parts = [own.gpu.new((100,), "float32") for _ in range(2)]
    for index, part in enumerate(parts):
        own.gpu.put(part.data_ptr(), torch.full((100,), index + 1.0).numpy().tobytes())
    own.gpu.ctl("hold", 1)
    made = [own.comm.all_reduce(part) for part in parts]
    began = own.nccl.get("launches")
    assert not any(each.done for each in made)
    own.gpu.ctl("hold", 0)
    for index, (each, part) in enumerate(zip(made, parts)):
        assert each.wait(PATIENCE) is part
        assert (
            own.gpu.read(part)
            == torch.full((100,), (index + 1.0) * own.comm.size).numpy().tobytes()
        )
    return began, made[0].carrier


def lose(own: Rank) -> tuple[str, float]:
    """What a call raises that needs a rank which is lost, and after how many seconds."""
    part = own.gpu.new((100,), "float32")
    begun = time.monotonic()
    try:
        own.comm.all_reduce(part).wait(PATIENCE)
    except Exception as error:
        return type(error).__name__, time.monotonic() - begun
    return "", 0.0


def leave(own: Rank) -> None:
    own.comm.close()
    own.engine.close()
