"""What ranks with GPUs that are doubles do with one-sided collectives; see nccl_ranks for the
processes. Each compares with a plain computation.

May import the standard library, torch, nccl_cases, nccl_ranks and the package.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nccl_cases
from nccl_ranks import PATIENCE

from transport.collectives.call import Call, Kind
from transport.collectives.reduction import Reduction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nccl_cases import Case
    from nccl_ranks import Rank

NOWHERE = "/nowhere/libnccl.so.2"


def join(
    own: Rank,
    rank: int,
    ranks: int,
    name: str,
    *,
    nccl: bool = False,
    providers: Sequence[str] | None = None,
    rules: Sequence[tuple[str, str]] = (),
) -> None:
    """A Communicator; `rules` are of GPU tensors, (kind, carrier). Without `nccl` there is no such
    library for this rank."""
    from transport import Engine
    from transport.collectives.communicator import Communicator
    from transport.config import Settings

    table = own.folder / f"{name}.table"
    rows = [{"kind": kind, "device": "cuda", "least": 0, "carrier": to} for kind, to in rules]
    if rank == 0:
        table.write_text(json.dumps({"schema": 1, "rules": rows}))
        os.environ["TRANSPORT_COLLECTIVES_TABLE"] = str(table)
    library = own.nccl.settings() if nccl else dict.fromkeys(("nccl_lib", "rccl_lib"), NOWHERE)
    options: dict[str, Any] = {"secret": "a secret of this test run only"}
    if providers is not None:
        options["providers"] = tuple(providers)
    if "verbs" in (providers or ()):  # a double, too, by which processes reach each other's GPUs
        os.environ["FAKEVERBS_FABRIC"] = str(own.folder / "fabric")
        os.environ["FAKEVERBS"] = "dmabuf_errno=0"
        library["verbs_lib"] = str(Path(own.gpu.file).with_name("fakeverbs.so"))
    own.engine = Engine(
        listen=f"unix:{own.folder / name}.{rank}",
        settings=Settings.from_env(**own.gpu.settings(), **library),
        **options,
    )
    at = f"unix:{own.folder / name}.0"
    own.comm = Communicator.join(name, rank, ranks, at, engine=own.engine, deadline=PATIENCE)


def leave(own: Rank) -> dict[str, int]:
    """What is left of it on the GPU, beside the tensors of the test."""
    own.comm.close()
    own.engine.close()
    return {name: own.gpu.get(name) for name in ("ipc_opened", "illegal")}


def carrier_of(own: Rank) -> Any:
    return own.comm._seat.carriers._get("onesided", PATIENCE)


def check(own: Rank, cases: list[Case], coalesced: bool = False) -> list[str]:
    """Carries them out; what came out wrong."""
    carrier, wrong = carrier_of(own), []
    made = [nccl_cases.call_of(own, case, own.comm.rank, own.comm.size) for case in cases]
    refused = [why for call, _ in made if (why := carrier.refusal(call))]
    if refused:
        return refused
    for group in [made] if coalesced else [[each] for each in made]:
        stream = own.gpu.stream()
        work = carrier.begin([call for call, _ in group], stream, PATIENCE)
        assert work.wait(PATIENCE), "it does not end"
        for call, wanted in group:
            found = nccl_cases.differences(own, call, wanted)
            wrong += [f"{call.kind.value}: {text}" for text in found]
        own.gpu.close_stream(stream)
    return wrong


def messages(own: Rank, size: int) -> int:
    """To the next rank by three tags, taken in another order; how many came out wrong."""
    rank, ranks = own.comm.rank, own.comm.size
    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    given = [own.gpu.new((size,)) for _ in range(3)]
    got = [own.gpu.new((size,)) for _ in range(3)]
    for tag, part in enumerate(given if size else ()):
        own.gpu.write(part, bytes([rank * 3 + tag]) * size)
    waiting = [own.comm.recv(got[tag], before, tag=tag) for tag in (2, 0, 1)]
    waiting += [own.comm.send(given[tag], after, tag=tag) for tag in range(3)]
    for each in waiting:
        each.wait(PATIENCE)
        assert each.carrier == "onesided", each.carrier
    right = [bytes([before * 3 + tag]) * size for tag in range(3)]
    return sum(own.gpu.read(part) != want for part, want in zip(got, right) if size)


# ---------------------------------------------------------------------------------------- streams
_Callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_kept: list[Any] = []  # what drivers call


def stall(own: Rank, stream: int) -> threading.Event:
    """Nothing that comes into this stream begins until the event is set; others go on."""
    go = threading.Event()

    @_Callback
    def wait(_: Any) -> None:
        go.wait(PATIENCE)

    _kept.append(wait)
    own.gpu.call("cuLaunchHostFunc", "hipLaunchHostFunc", ctypes.c_void_p(stream), wait, None)
    return go


def _call_of(own: Rank, kind: Kind, part: Any, got: list[Any]) -> Call:
    rank, ranks = own.comm.rank, own.comm.size
    first = rank == 0
    source = {
        Kind.BROADCAST: (part,) if first else (),
        Kind.SCATTER: (part,) * ranks if first else (),
        Kind.ALL_TO_ALL: (part,) * ranks,
        Kind.RECV: (),
    }.get(kind, (part,))
    target = {
        Kind.BROADCAST: () if first else (got[0],),
        Kind.SCATTER: (got[0],),
        Kind.GATHER: got if first else (),
        Kind.SEND: (),
        Kind.RECV: (got[0],),
    }.get(kind, got)
    if kind in (Kind.SEND, Kind.RECV):
        kind = Kind.SEND if first else Kind.RECV
        source, target = ((part,), ()) if first else ((), (got[0],))
    return Call(kind, tuple(source), tuple(target), peer=1 - rank)


def behind_a_kernel(own: Rank, kind: Kind, size: int) -> tuple[bool, float, bool]:
    """Rank 0's tensor is filled late, by a kernel that was put into its stream before the call.
    Whether the call had ended before; how long the call itself took; whether new bytes came."""
    gpu, rank, ranks = own.gpu, own.comm.rank, own.comm.size
    part, got = gpu.new((size,)), [gpu.new((size,)) for _ in range(ranks)]
    gpu.write(part, b"\x01" * size)
    stream = gpu.stream()
    go = threading.Event()
    if rank == 0:
        go = stall(own, stream)
        gpu.fill(part.data_ptr(), 0x22, size, stream)
    call = _call_of(own, kind, part, got)
    begun = time.monotonic()
    work = carrier_of(own).begin([call], stream, PATIENCE)
    took = time.monotonic() - begun
    early = work.wait(0.3)
    go.set()
    assert work.wait(PATIENCE)
    whole = all(gpu.read(each) == b"\x22" * size for each in call.target[:1])  # it is rank 0's
    gpu.close_stream(stream)
    return early, took, whole


def target_in_use(own: Rank, size: int) -> tuple[bool, bool]:
    """Work that was put into the stream before still writes to the target: it must not end up
    there. Whether the call ended before it, and whether the result is right."""
    gpu, rank = own.gpu, own.comm.rank
    part, got = gpu.new((size,)), [gpu.new((size,)) for _ in range(own.comm.size)]
    gpu.write(part, bytes([7 + rank]) * size)
    stream = gpu.stream()
    go = stall(own, stream)
    for each in got:
        gpu.fill(each.data_ptr(), 0x55, size, stream)
    made = own.comm.all_gather(part, out=got, stream=stream)
    time.sleep(0.2)
    early = made.done
    go.set()
    made.wait_on(stream)
    copy = gpu.new((size,))
    gpu.fill(copy.data_ptr(), 1, size, stream)
    right = all(gpu.read(each) == bytes([7 + peer]) * size for peer, each in enumerate(got))
    gpu.sync(stream)
    return early, right and made.carrier == "onesided"


def later_work_is_not_waited_for(own: Rank) -> bool:
    """What comes into the stream after a call may need the call: here it ends after it."""
    gpu = own.gpu
    parts = [gpu.new((5000,)) for _ in range(2)]
    got = [[gpu.new((5000,)) for _ in range(own.comm.size)] for _ in range(2)]
    stream = gpu.stream()
    if own.comm.rank == 1:
        time.sleep(0.3)  # the others' second call waits in the line
    made = [own.comm.all_gather(part, out=into, stream=stream) for part, into in zip(parts, got)]
    later = [stall(own, each) for each in (stream, 0)]
    for each in made:
        each.wait(10.0)
    for go in later:
        go.set()
    gpu.sync(stream)
    gpu.sync(0)
    return True


def by_both(own: Rank) -> tuple[str, str, bool]:
    """An all-gather by one carrier and an all-reduce of its result by the other, without a wait
    between them; and the other way round, in another stream."""
    import torch

    gpu, rank, ranks = own.gpu, own.comm.rank, own.comm.size
    part = gpu.new((1000,), "float32")
    got = [gpu.new((1000,), "float32") for _ in range(ranks)]
    again = [gpu.new((1000,), "float32") for _ in range(ranks)]
    stream = gpu.stream()
    go = stall(own, stream)
    threading.Timer(0.2, go.set).start()
    gpu.write(part, torch.full((1000,), rank + 1.0).numpy().tobytes())
    first = own.comm.all_gather(part, out=got, stream=stream)
    again_go = stall(own, stream)
    second = own.comm.all_reduce(got[1], stream=stream)
    threading.Timer(0.2, again_go.set).start()
    third = own.comm.all_gather(got[1], out=again, stream=gpu.stream())
    third.wait(PATIENCE)
    second.wait(PATIENCE)
    first.wait(PATIENCE)
    wanted = torch.full((1000,), 2.0 * ranks).numpy().tobytes()
    return first.carrier, second.carrier, all(gpu.read(each) == wanted for each in again)


# --------------------------------------------------------------------------------------- failures
def what_carries(own: Rank) -> tuple[str, str, str]:
    """An all-gather, a barrier, and what an all-reduce raises, by the rules that are."""
    gpu = own.gpu
    part, got = gpu.new((999,)), [gpu.new((999,)) for _ in range(own.comm.size)]
    gpu.write(part, bytes([own.comm.rank + 1]) * 999)
    made = own.comm.all_gather(part, out=got)
    made.wait(PATIENCE)
    assert [gpu.read(each)[:1] for each in got] == [bytes([i + 1]) for i in range(own.comm.size)]
    own.comm.barrier().wait(PATIENCE)
    reduced = gpu.new((10,), "float32")
    try:
        ended = own.comm.all_reduce(reduced)
        ended.wait(PATIENCE)
    except Exception as error:
        return made.carrier, type(error).__name__, str(error)
    return made.carrier, ended.carrier, ""


def on_its_own_gpu(own: Rank) -> tuple[str, str, bool]:
    """Rank n's tensors are on GPU n, of which it sees several. What carries an all-gather and an
    all-reduce, and whether they are right."""
    import torch

    gpu, rank, ranks = own.gpu, own.comm.rank, own.comm.size
    gpu.use(rank)
    nbytes = 400
    part, *got = (
        gpu.tensor(gpu.alloc(nbytes), (100,), "float32", device=rank) for _ in range(ranks + 1)
    )
    stream = gpu.stream()
    gpu.write(part, torch.full((100,), rank + 1.0).numpy().tobytes())
    reduced = own.comm.all_reduce(part, out=got[0], stream=stream)
    reduced.wait(PATIENCE)
    right = gpu.read(got[0]) == torch.full((100,), sum(range(ranks + 1))).float().numpy().tobytes()
    gathered = own.comm.all_gather(part, out=got)
    gathered.wait(PATIENCE)
    gpu.use(0)
    wanted = [torch.full((100,), peer + 1.0).numpy().tobytes() for peer in range(ranks)]
    return reduced.carrier, gathered.carrier, right and [gpu.read(each) for each in got] == wanted


def disagree(own: Rank, what: str) -> str:
    """Rank 1 asks for something else."""
    import torch

    gpu, rank = own.gpu, own.comm.rank
    size = 501 if rank == 1 and what == "size" else 500
    dtype = "int32" if rank == 1 and what == "dtype" else "float32"
    part = gpu.new((size,), dtype)
    got: list[Any] = [gpu.new((size,), dtype) for _ in range(own.comm.size)]
    if rank == 1 and what == "device":
        part, got = torch.zeros(500), [torch.zeros(500) for _ in got]
    call = Call(Kind.ALL_GATHER, (part,), tuple(got))
    if rank == 1 and what == "root":
        call = Call(Kind.GATHER, (part,), (), root=0)
    try:
        carrier_of(own).begin([call], 0 if part.device.type != "cpu" else None, PATIENCE).wait(30.0)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def next_call(own: Rank) -> list[str]:
    return check(own, [nccl_cases.Case(Kind.ALL_GATHER, count=333)])


def refusals(own: Rank) -> list[str]:
    part = own.gpu.new((8,), "float32")
    kinds = (Kind.ALL_REDUCE, Kind.REDUCE, Kind.REDUCE_SCATTER)
    carrier = carrier_of(own)
    return [carrier.refusal(Call(kind, (part,), (part,), Reduction.SUM)) for kind in kinds]


def die_in_a_call(
    own: Rank, kind: str, after: float, size: int
) -> tuple[str, tuple[int, ...], float, str]:
    """Rank 1 kills itself while its bytes move, or while they are not ready yet."""
    gpu, rank, ranks = own.gpu, own.comm.rank, own.comm.size
    part, got = gpu.new((size,)), [gpu.new((size,)) for _ in range(ranks)]
    if rank == 1:
        gpu.ctl("hold", int(kind == "held"))
        threading.Timer(after, os.kill, (os.getpid(), signal.SIGKILL)).start()
    gpu.ctl("delay_us", 20_000)
    begun = time.monotonic()
    try:
        for _ in range(1000):
            own.comm.all_gather(part, out=got).wait(PATIENCE)
            begun = time.monotonic()
    except Exception as error:
        took = time.monotonic() - begun
        try:
            own.comm.all_gather(part, out=got).wait(PATIENCE)
        except Exception as later:
            return type(error).__name__, error.ranks, took, type(later).__name__  # type: ignore[attr-defined]
    return "", (), 0.0, ""


def abort_in_a_call(own: Rank) -> tuple[str, bool]:
    """Rank 0's stream stands still when it is aborted. What the call raises, and whether nothing
    changes any more afterwards."""
    from transport.errors import Cancelled

    gpu = own.gpu
    part, got = gpu.new((70_000,)), [gpu.new((70_000,)) for _ in range(own.comm.size)]
    gpu.write(part, b"\x07" * 70_000)
    stream = gpu.stream()
    go = threading.Event()
    if own.comm.rank == 0:
        go = stall(own, stream)
    carrier = carrier_of(own)
    work = carrier.begin([Call(Kind.ALL_GATHER, (part,), tuple(got))], stream, PATIENCE)
    if own.comm.rank == 0:
        threading.Timer(0.2, carrier.abort, (Cancelled("enough"),)).start()
    try:
        work.wait(PATIENCE)
    except Exception as error:
        name = type(error).__name__
    else:
        name = ""
    before = [gpu.read(each) for each in got]
    go.set()
    gpu.sync(stream)
    time.sleep(0.1)
    return name, before == [gpu.read(each) for each in got]


def late(own: Rank) -> str:
    """Rank 1's stream does not get there in time."""
    gpu = own.gpu
    part, got = gpu.new((5000,)), [gpu.new((5000,)) for _ in range(own.comm.size)]
    stream = gpu.stream()
    go = stall(own, stream) if own.comm.rank == 1 else threading.Event()
    try:
        own.comm.all_gather(part, out=got, stream=stream, deadline=0.5).wait(PATIENCE)
    except Exception as error:
        return type(error).__name__
    finally:
        go.set()
    return ""


def shrink(own: Rank) -> tuple[int, int, list[str]]:
    """A communicator of those that are left, and a call by it."""
    own.gpu.ctl("delay_us", 0)
    own.comm = own.comm.shrink(deadline=PATIENCE)
    return own.comm.rank, own.comm.size, next_call(own)
