"""What every way to carry collectives out looks like. May import call, errors and types.

A carrier is made by `make(group: Group, deadline: float, gpu: int | None) -> Carrier` of its
module: by all ranks of the group at the same time, within so many seconds. `gpu` is that of the
call which needs it first, by its number in this process; None: one of CPU tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from transport.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transport.collectives.call import Call
    from transport.errors import TransportError


class Absent(Unavailable):
    """What `make` raises on all ranks alike: the next carrier is asked then."""


class Work(Protocol):
    """Calls that a carrier has begun."""

    def done(self) -> bool:
        """Whether they have ended, well or not. Never blocks."""
        ...

    def wait(self, timeout: float) -> bool:
        """Blocks until they have; False after `timeout` seconds. Raises what went wrong:
        PeerLost for a rank that is lost, NcclError, or what `abort` was given."""
        ...

    def wait_on(self, stream: Any) -> None:
        """Lets a GPU's stream wait for them. For CPU tensors it blocks."""


class Carrier(Protocol):
    """One way, for one group of ranks. It is made by all ranks at the same time.

    `begin` is called by one thread at a time, in the same order on all ranks; `abort` and `close`
    by any thread. One whose works GPUs' streams order has a true `streamed`, too: each begins
    within its call, though those before it have not ended, and it keeps its callers apart itself.
    One that carries GPU tensors in another way has `moment(calls, stream, before, deadline)`: it is
    called in the caller's thread, and what it returns is `begin`'s `stream`. It stands for what is
    in the caller's stream (None: the current one) by then, and the works `before` in others.
    """

    @property
    def name(self) -> str:
        """For tables and `Operation.carrier`: "nccl", "gloo", "onesided"."""
        ...

    @property
    def driven(self) -> bool:
        """Whether works go on while nobody waits for them. Where they do not, a thread of the
        communicator waits soon after `begin`, unless the caller does so first."""
        ...

    def refusal(self, call: Call) -> str:
        """Why it cannot carry a call; "" when it can. Depends only on what all ranks have alike:
        kind, dtype, device, reduction."""
        ...

    def begin(self, calls: Sequence[Call], stream: Any, deadline: float) -> Work:
        """Begins calls that belong together (one, or a group that is coalesced). After `deadline`
        seconds they end with DeadlineExceeded. Tensors are kept alive until they have ended."""
        ...

    def abort(self, error: TransportError) -> None:
        """Ends all that is under way, and all that comes, with this error; returns soon, always.
        After it no byte of any tensor changes any more once the works have ended. Idempotent."""

    def close(self) -> None:
        """Gives back what it holds. Idempotent; never blocks on peers."""
