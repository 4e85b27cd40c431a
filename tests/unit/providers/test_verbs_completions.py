"""What completions do to transfers, over the double of libibverbs: full queues, refusals, flushes.

Both engines are in this process. They have no other way to move bytes, so that nothing is hidden.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from fakeverbs import LIBRARY, Double

from transport import Engine
from transport.config import Settings
from transport.engine.batch import Write
from transport.errors import TransportError
from transport.testing.processes import run_program
from transport.testing.servant import pattern

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transport.engine.transfer import Transfer
    from transport.memory.remote import RemoteRegion

WAIT = 60.0
DEPTH = 64
_RETRY_EXCEEDED, _RNR_EXCEEDED, _REMOTE_OPERATION = 12, 13, 11


def engine(**settings: Any) -> Engine:
    return Engine(
        providers=("verbs",),
        listen="127.0.0.1:0",
        secret="a secret of this test run only",
        settings=Settings.from_env(verbs_lib=LIBRARY, verbs_depth=DEPTH, **settings),
    )


class Pair:
    """Two engines; `near` writes into 1 MiB of `far`'s."""

    def __init__(self, near: Engine, far: Engine) -> None:
        self.near, self.far = near, far
        self.memory = np.zeros(1 << 20, np.uint8)
        self.region = far.register(self.memory)
        self.remote: RemoteRegion = self.region.remote()
        self.source = pattern(1, 1 << 20)
        self.own = near.register(self.source)
        near.write(self.source[:8], self.remote[:8]).wait(WAIT)  # connected
        self.memory[:8] = 0

    def rows(self, count: int, size: int = 24) -> Transfer:
        """One batch of rows that touch on neither side."""
        step = (1 << 20) // max(count, 1)
        assert step > size
        writes = [
            Write(self.source[i * step : i * step + size], self.remote[i * step : i * step + size])
            for i in range(count)
        ]
        return self.near.submit(writes)

    def came(self, count: int, size: int = 24) -> bool:
        step = (1 << 20) // count
        both = (
            array[: count * step].reshape(count, step)[:, :size]
            for array in (self.memory, self.source)
        )
        return bool(np.array_equal(*both))

    def one(self, at: int, **options: Any) -> Transfer:
        return self.near.write(self.source[at : at + 8], self.remote[at : at + 8], **options)


@contextlib.contextmanager
def pair(**settings: Any) -> Iterator[Pair]:
    with engine(**settings) as near, engine(**settings) as far:
        both = Pair(near, far)
        yield both
        both.own.close()
        both.region.close()


def endings(transfers: list[Transfer]) -> list[BaseException | None]:
    """How each ended; all have, and are quiet."""
    found = []
    for transfer in transfers:
        assert transfer.wait_quiet(WAIT)
        found.append(transfer.exception())
    return found


@pytest.mark.parametrize("count", [1, DEPTH - 1, DEPTH, DEPTH + 1, 10 * DEPTH])
def test_any_number_of_requests(double: Double, count: int) -> None:
    """D12: more than the send queue holds in one call."""
    with pair() as both:
        transfer = both.rows(count).wait(WAIT)
        assert transfer.provider == "verbs"
        assert both.came(count)


@pytest.mark.parametrize("style", [0, 1, 2], ids=["ENOMEM", "-1", "-ENOMEM"])
def test_a_full_send_queue_is_back_pressure(double: Double, style: int) -> None:
    """D4: however the library says that it is full."""
    with pair() as both:
        double.set(full_style=style, send_limit=17)
        both.rows(500).wait(WAIT)
        assert both.came(500)


@pytest.mark.parametrize("style", [0, 1, 2], ids=["EPERM", "-1", "-EPERM"])
def test_the_returned_code_is_in_the_text(double: Double, style: int) -> None:
    """D8: not "Success", which is what errno says where the code was returned."""
    with pair(verbs_recovery=0.5) as both:
        double.set(full_style=style, post_errno=1, post_fail_count=-1, post_fail_after=0)
        with pytest.raises(TransportError, match=os.strerror(1)):
            both.one(0).wait(WAIT)


def test_a_receiver_that_is_never_ready(double: Double) -> None:
    """D3: tried a bounded number of times, then told."""
    double.set(hide_receives=1, rnr_us=100)
    with pair(verbs_recovery=0.5) as both:
        transfer = both.one(0, notify=b"nobody will see it", deadline=WAIT)
        with pytest.raises(TransportError, match="receiver not ready"):
            transfer.wait(WAIT)


def many_queue_pairs(peers: int) -> int:
    """Keeps all of them busy at once; the number of completion queues that it took."""
    double = Double()
    double.set(max_cqe=512)
    with engine() as near, contextlib.ExitStack() as stack:
        fars = [stack.enter_context(engine()) for _ in range(peers)]
        memory = [np.zeros(1 << 16, np.uint8) for _ in fars]
        source = np.full(1 << 16, 7, np.uint8)
        regions = [far.register(array) for far, array in zip(fars, memory)]
        remotes = [stack.enter_context(region).remote() for region in regions]
        stack.enter_context(near.register(source))
        for _ in range(3):
            steps = range(0, 1 << 16, 64)
            batches = [[Write(source[i : i + 16], r[i : i + 16]) for i in steps] for r in remotes]
            for transfer in [near.submit(batch) for batch in batches]:
                transfer.wait(WAIT)
        assert all((array.reshape(-1, 64)[:, :16] == 7).all() for array in memory)
        return double.get("cqs")


def test_completion_queues_cannot_overflow(double: Double) -> None:
    """D7: the double ends the process when one does. Small queues, many queue pairs, all busy."""
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_verbs_completions import many_queue_pairs
print(many_queue_pairs(12))
"""
    status, out, errors = run_program(code, timeout=120)
    assert status == 0, errors
    assert int(out) > 13  # near's would not fit into one


def test_events_that_come_twice(double: Double) -> None:
    """D7: a wake-up that finds nothing, and one that finds what another left."""
    double.set(duplicate_events=1)
    with pair() as both:
        for at in range(0, 4000, 8):
            both.one(at).wait(WAIT)
        both.rows(300).wait(WAIT)
        assert both.came(300)


def test_each_request_ends_once_when_the_queue_pair_stops(double: Double) -> None:
    """D9: what is flushed fails once or is done again, and nothing is left behind."""
    kinds = ("qps", "mrs", "cqs", "pds", "contexts")
    before = {kind: double.get(kind) for kind in kinds}  # of engines that others left open
    with pair() as both:
        double.set(hold=1)
        transfers = [both.one(at) for at in range(0, 80, 8)]
        transfers.append(both.rows(3 * DEPTH))
        double.set(flush=1)
        double.set(hold=0)
        for ending in endings(transfers):
            assert ending is None or isinstance(ending, TransportError)
    assert {kind: double.get(kind) for kind in kinds} == before


def test_an_engine_that_closes_under_transfers_leaves_no_registration(double: Double) -> None:
    """M#4207, B24: also of memory that a transfer held until the engine's end."""
    before = double.get("mrs"), double.get("pds")
    with engine() as far:
        near, memory = engine(), np.zeros(4096, np.uint8)
        with far.register(memory) as region:
            near.write(bytes(8), region.remote()[:8]).wait(WAIT)
            double.set(hold=1)
            transfer = near.read(region.remote(), bytearray(4096))
            near.close()
            double.set(hold=0)
            with pytest.raises(TransportError):
                transfer.wait(WAIT)
    assert (double.get("mrs"), double.get("pds")) == before


def test_the_first_error_is_told_and_not_the_flush(double: Double) -> None:
    """D10: one request fails by itself; the others are innocent."""
    with pair() as both:
        double.set(hold=1)
        transfers = [both.one(at) for at in range(0, 40 * 8, 8)]
        double.set(fail_status=_REMOTE_OPERATION, fail_after=10)
        double.set(hold=0)
        found = endings(transfers)
        failed = [str(error) for error in found if error is not None]
        own = [text for text in failed if "remote operation error" in text.partition("before:")[0]]
        assert len(own) == 1
        assert all("remote operation error" in text for text in failed)
        assert all(error is None for error in found[:10])


def test_messages_end_at_the_ports_limit(double: Double) -> None:
    """D14: neighbours become one message as long as the port allows it."""
    double.set(max_msg_sz=1 << 18)
    with pair() as both:
        part = 3 << 16
        writes = [
            Write(both.source[at : at + part], both.remote[at : at + part])
            for at in range(0, 5 * part, part)
        ]
        before = double.get("posts")
        both.near.submit(writes).wait(WAIT)
        assert np.array_equal(both.memory[: 5 * part], both.source[: 5 * part])
        assert double.get("posts") - before == -(-5 * part // (1 << 18))
