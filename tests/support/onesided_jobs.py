"""What ranks do in test_collectives_onesided; each compares with a plain computation."""

from __future__ import annotations

import os
import signal
import time

import torch

from transport.collectives.call import Call, Kind
from transport.collectives.onesided.message import Message, What, encode
from transport.collectives.reduction import Premultiplied, Reduction
from transport.errors import InvalidUse, RankLost, TransportError

SIZES = (0, 1, 7, 3000, 70_001, 1_300_003)


def carrier_of(group):
    return group._seat.carriers._get("onesided", 30.0)


def run(carrier, *calls):
    assert carrier.begin(calls, None, 30.0).wait(60.0)


def values(rank, count, dtype):
    """Small whole numbers, so that every order of a sum gives the same bits."""
    made = (torch.arange(count) * 7 + rank * 3) % 5
    return made.to(dtype) if dtype.is_floating_point else (made % 2 + rank % 2).to(dtype)


def moves(group):
    """Every kind that moves, all dtypes and sizes, every root."""
    carrier, rank, size = carrier_of(group), group.rank, group.size
    for dtype in (torch.float32, torch.uint8, torch.bool, torch.complex64, torch.float8_e5m2):
        for count in SIZES if dtype is torch.float32 else (5, 3000):
            given = [
                torch.randint(0, 2, (count * dtype.itemsize,), dtype=torch.uint8,
                              generator=torch.Generator().manual_seed(count + each)).view(dtype)
                for each in range(size)
            ]  # fmt: skip
            own = given[rank]
            for root in range(size):
                at_root = rank == root
                got = torch.empty_like(own)
                into = [torch.empty_like(own) for _ in given]
                run(
                    carrier,
                    Call(Kind.BROADCAST, (own,) if at_root else (), () if at_root else (got,),
                         root=root),
                    Call(Kind.GATHER, (own,), into if at_root else (), root=root),
                )  # fmt: skip
                assert at_root or same(got, given[root])
                assert not at_root or all(map(same, into, given))
                run(carrier, Call(Kind.SCATTER, given if at_root else (), (got,), root=root))
                assert same(got, own)
            into = [torch.empty_like(own) for _ in given]
            into[rank] = own  # in place
            run(carrier, Call(Kind.ALL_GATHER, (own,), into))
            assert all(map(same, into, given))
            sent = [given[(rank + other) % size] for other in range(size)]
            into = [torch.empty_like(own) for _ in given]
            run(carrier, Call(Kind.ALL_TO_ALL, sent, into))
            assert all(same(into[i], given[(i + rank) % size]) for i in range(size))
            run(carrier, Call(Kind.BARRIER))
    return True


def boards(group):
    """Whether all talk by their boards after a few calls, and go on where one has too much to read:
    the rest comes by the mailbox."""
    carrier = carrier_of(group)
    for _ in range(40):
        run(carrier, Call(Kind.BARRIER))
        time.sleep(0.01)
    boarded = carrier._post.boarded
    begun, full, right = [], True, [torch.full((100,), float(each)) for each in range(60)]
    got = [torch.empty(100) for _ in right]
    if group.rank == 0:
        calls = [Call(Kind.BROADCAST, (sent,), (), root=0) for sent in right]
        for peer in (1, 2):
            sends = [Call(Kind.SEND, (sent,), (), peer=peer, tag=n) for n, sent in enumerate(right)]
            calls += sends
        begun = [carrier.begin([call], None, 30.0) for call in calls]
        told = encode(Message(What.TOLD, carrier._post.done))
        full = carrier._post.board.post([1], told) == [1]
    else:
        time.sleep(1.0)  # and nobody listens
        for into in got:
            run(carrier, Call(Kind.BROADCAST, (), (into,), root=0))
        assert all(map(same, got, right))
        for each, into in enumerate(got):
            run(carrier, Call(Kind.RECV, (), (into.zero_(),), peer=0, tag=each))
        assert all(map(same, got, right))
    assert all(work.wait(30.0) for work in begun)
    run(carrier, Call(Kind.BARRIER))
    return boarded, full


def scribble(group):
    """Rank 1 writes nonsense over its sheet; what the others are told."""
    carrier = carrier_of(group)
    for _ in range(40):
        run(carrier, Call(Kind.BARRIER))
        time.sleep(0.01)
    if group.rank == 1:
        carrier._post._arena._memory[:4096] = 0xA5
        time.sleep(1.0)
        return "", ""
    try:
        run(carrier, Call(Kind.BARRIER))
    except TransportError as error:
        return type(error).__name__, str(error)
    return "", "nothing"


def same(one, other):
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


REDUCTIONS = (Reduction.SUM, Reduction.PRODUCT, Reduction.MINIMUM, Reduction.MAXIMUM,
              Reduction.AVERAGE, Premultiplied(2.0))  # fmt: skip
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64,
          torch.uint8, torch.bool, torch.complex64)  # fmt: skip


def expected(reduction, given):
    dtype, total = given[0].dtype, torch.stack([each.to(torch.complex128) for each in given])
    if isinstance(reduction, Premultiplied):
        return (total.sum(0) * reduction.factor).to(dtype)
    if reduction is Reduction.PRODUCT:
        return total.prod(0).to(dtype)
    if reduction is Reduction.MINIMUM:
        return total.real.amin(0).to(dtype)
    if reduction is Reduction.MAXIMUM:
        return total.real.amax(0).to(dtype)
    total = total.sum(0)
    return (total / len(given) if reduction is Reduction.AVERAGE else total).to(dtype)


def reduces(group):
    """Every reduction and dtype that is not refused, all sizes, in place and out of place."""
    carrier, done = carrier_of(group), 0
    for dtype in DTYPES:
        for reduction in REDUCTIONS:
            whole = dtype is torch.float32 and reduction is Reduction.SUM
            for count in SIZES if whole else (7, 20_001):
                call = Call(Kind.ALL_REDUCE, (torch.ones(1, dtype=dtype),), (), reduction)
                if carrier.refusal(call):
                    continue
                reduce_one(carrier, group.rank, group.size, dtype, reduction, count)
                done += 1
    return done


def reduce_one(carrier, rank, size, dtype, reduction, count):
    given = [values(each, count, dtype) for each in range(size)]
    right, root = expected(reduction, given), count % size
    own, out, kept = given[rank].clone(), torch.empty_like(right), given[rank].clone()
    run(carrier, Call(Kind.ALL_REDUCE, (kept,), (out,), reduction))
    assert same(out, right), (dtype, reduction, count)
    assert same(kept, given[rank]), (dtype, reduction, count)
    run(carrier, Call(Kind.ALL_REDUCE, (own,), (own,), reduction))
    assert same(own, right), (dtype, reduction, count)
    own = given[rank].clone()
    target = (own,) if rank == root else ()
    run(carrier, Call(Kind.REDUCE, (own,), target, reduction, root=root))
    assert same(own, right if rank == root else given[rank])
    parts = [given[(rank + other) % size].clone() for other in range(size)]
    run(carrier, Call(Kind.REDUCE_SCATTER, parts, (parts[rank],), reduction))
    mine = [given[(other + rank) % size] for other in range(size)]
    assert same(parts[rank], expected(reduction, mine)), (dtype, reduction, count)


def bits(group):
    """Sums that no order rounds alike: all ranks must have the same bits."""
    carrier, found = carrier_of(group), []
    for dtype in (torch.float32, torch.bfloat16):
        for count in (100, 50_000, 1_000_000):
            seed = torch.Generator().manual_seed(group.rank)
            own = torch.randn(count, generator=seed).to(dtype)
            run(carrier, Call(Kind.ALL_REDUCE, (own,), (own,)))
            found.append(hash(own.view(torch.uint8).numpy().tobytes()))
    return found


def messages(group):
    """Receives before sends, tags out of order, beside collectives; many sends unreceived."""
    carrier, rank, size = carrier_of(group), group.rank, group.size
    after, before = (rank + 1) % size, (rank - 1) % size
    for count in (3, 100_000):
        got = [torch.empty(count) for _ in range(3)]
        taking = [
            carrier.begin([Call(Kind.RECV, (), (each,), peer=before, tag=tag)], None, 30.0)
            for tag, each in enumerate(got)
        ]
        run(carrier, Call(Kind.BARRIER))
        sending = [
            carrier.begin(
                [Call(Kind.SEND, (torch.full((count,), rank * 10.0 + tag),), peer=after, tag=tag)],
                None, 30.0,
            )
            for tag in (2, 0, 1)
        ]  # fmt: skip
        assert all(work.wait(30.0) for work in (*sending, *taking))
        assert [each[-1].item() for each in got] == [before * 10.0 + tag for tag in range(3)]
    many = [
        carrier.begin([Call(Kind.SEND, (torch.tensor([i]),), peer=after, tag=9)], None, 30.0)
        for i in range(200)
    ]
    run(carrier, Call(Kind.BARRIER))
    ended = sum(work.done() for work in many)
    run(carrier, Call(Kind.BARRIER))  # before it nobody receives
    got = [torch.empty(1, dtype=torch.int64) for _ in many]
    run(carrier, *(Call(Kind.RECV, (), (each,), peer=before, tag=9) for each in got))
    assert [int(each) for each in got] == list(range(200))
    assert all(work.wait(30.0) for work in many)
    return ended


def disagree(group, what):
    """One rank asks for something else. How each found out, and that the next call works."""
    carrier, rank, size = carrier_of(group), group.rank, group.size
    odd, count = rank == 1, 100_000
    mine = torch.ones(count + 64 if what == "size" and odd else count)
    if what == "dtype" and odd:
        mine = mine.double()
    call = Call(Kind.ALL_REDUCE, (mine,), (mine,))
    if what == "kind" and odd:
        call = Call(Kind.ALL_GATHER, (mine,), [torch.empty(count) for _ in range(size)])
    if what == "root":
        call = Call(Kind.REDUCE, (mine,), (mine,) if rank == odd else (), root=int(odd))
    try:
        carrier.begin([call], None, 30.0).wait(60.0)
    except InvalidUse as error:
        found = str(error)
    else:
        found = ""
    own = torch.ones(count)
    run(carrier, Call(Kind.ALL_REDUCE, (own,), (own,)))
    assert own.eq(size).all()
    return found


def all_roots(group, count):
    """Each rank takes itself for the root of a broadcast. What they hear, then or soon after."""
    carrier, mine = carrier_of(group), torch.ones(count)
    calls = [Call(Kind.BROADCAST, (mine,), (), root=group.rank)]
    end = time.monotonic() + 30
    try:
        while time.monotonic() < end:
            carrier.begin(calls, None, 30.0).wait(60.0)
            calls = [Call(Kind.BARRIER)]
    except InvalidUse as error:
        return str(error)
    return ""


def resizable(group):
    """Small tensors are sent within messages; their storages stay as they were."""
    carrier, mine, rows = carrier_of(group), torch.ones(10), list(torch.zeros(group.size, 10))
    run(carrier, Call(Kind.ALL_REDUCE, (mine,), (mine,)), Call(Kind.ALL_GATHER, (mine,), rows))
    mine.resize_(1000)
    mine.untyped_storage().resize_(0)
    return mine.untyped_storage().nbytes()


def die(group, kind, after):
    """Rank 1 kills itself in a loop of calls: the others get RankLost soon, and nothing moves."""
    carrier, rank, size = carrier_of(group), group.rank, group.size
    count = 2_000_000
    own, into = torch.ones(count), [torch.ones(count) for _ in range(size)]
    if rank == 1:
        run(carrier, Call(Kind.BARRIER))
        kill_later(after)
    else:
        run(carrier, Call(Kind.BARRIER))
    begun = time.monotonic()
    try:
        while time.monotonic() < begun + 30:
            last = time.monotonic()
            if kind == "all_reduce":
                run(carrier, Call(Kind.ALL_REDUCE, (own,), (own,)))
            else:
                run(carrier, Call(Kind.ALL_GATHER, (own,), into))
    except TransportError as error:
        took, kept = time.monotonic() - last, [own.clone(), *(each.clone() for each in into)]
        time.sleep(0.1)
        still = all(map(same, kept, (own, *into)))
        return type(error).__name__, getattr(error, "ranks", ()), took, still
    return None


def kill_later(after):
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    signal.setitimer(signal.ITIMER_REAL, after)


def abort(group):
    """Rank 0 aborts a call that cannot end; the others, which wait for it, hear of it."""
    carrier, own = carrier_of(group), torch.ones(500_000)
    run(carrier, Call(Kind.BARRIER))
    if group.rank == 0:
        work = carrier.begin([Call(Kind.RECV, (), (own,), peer=1, tag=5)], None, 30.0)
        assert not work.wait(0.05)
        carrier.abort(RankLost("by the test", ranks=(9,)))
        return outcome(lambda: work.wait(10.0)), outcome(lambda: run(carrier, Call(Kind.BARRIER)))
    return outcome(lambda: run(carrier, Call(Kind.ALL_REDUCE, (own,), (own,))))


def late(group):
    """Rank 1 never comes: the deadline ends the call at rank 0, which tells the others."""
    carrier, own = carrier_of(group), torch.ones(10)
    run(carrier, Call(Kind.BARRIER))
    if group.rank == 1:
        time.sleep(1.5)
        return "late"
    seconds = 0.5 if group.rank == 0 else 20.0
    work = carrier.begin([Call(Kind.ALL_REDUCE, (own,), (own,))], None, seconds)
    begun = time.monotonic()
    name = outcome(lambda: work.wait(30.0))
    assert time.monotonic() - begun < 10.0
    return name


def alone(group):
    """Nobody waits: calls go on all the same."""
    carrier, own = carrier_of(group), torch.ones(300_000)
    works = [carrier.begin([Call(Kind.ALL_REDUCE, (own,), (own,))], None, 30.0) for _ in range(1)]
    until = time.monotonic() + 20
    while not all(work.done() for work in works) and time.monotonic() < until:
        time.sleep(0.005)
    return bool(own.eq(group.size).all())


def leave(group):
    """Rank 0 leaves after its last call; the others look at what it said only then."""
    carrier, own = carrier_of(group), torch.full((100,), float(group.rank))
    run(carrier, Call(Kind.BARRIER))
    if group.rank == 0:
        run(carrier, Call(Kind.BROADCAST, (own,), ()))
        return True
    with carrier._state:  # nobody may look
        time.sleep(0.3)
    run(carrier, Call(Kind.BROADCAST, (), (own,)))
    return bool(own.eq(0).all())


def outcome(call):
    try:
        call()
    except TransportError as error:
        return type(error).__name__
    return ""
