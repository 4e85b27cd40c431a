"""A tensor that stayed where it was made: what a call with keep="remote" gives.

May import tensors, memory, errors and types; torch and numpy only to make what `fetch` gives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from transport.errors import InvalidUse, StaleRegion
from transport.types import check_timeout, format_bytes

if TYPE_CHECKING:
    from transport.memory.remote import Index, RemoteRegion
    from transport.mesh.tensors import Hold, Ticket


class RemoteTensor:
    """A tensor or array in another process, which keeps it for as long as this exists anywhere.

    It may be passed on in calls, or pickled: whoever gets it fetches from the owner itself. Nothing
    was copied: what the owner writes to its tensor later is what a later `fetch` gives. Once the
    owner has ended `fetch` raises PeerLost.
    """

    __slots__ = ("__weakref__", "_device", "_handle", "_hold", "_kind")

    def __init__(self, handle: RemoteRegion, hold: Hold, kind: str, device: str) -> None:
        self._handle = handle
        self._hold = hold
        self._kind = kind  # "torch", "numpy" or "gpu" (GpuArray): what fetch makes
        self._device = device

    # --------------------------------------------------------------------------------------- facts
    @property
    def shape(self) -> tuple[int, ...]:
        return self._handle.shape

    @property
    def dtype(self) -> str:
        """ "float32", "bfloat16" and so on: a name as in layouts and handles, since the process may
        have no torch; torch's own is `getattr(torch, remote.dtype)`."""
        return self._handle.dtype or "uint8"

    @property
    def nbytes(self) -> int:
        """Of the elements, without gaps."""
        return self._handle.nbytes

    @property
    def device(self) -> str:
        """Where the owner has it, as text: "cpu", "cuda:0"; `torch.device(remote.device)`."""
        return self._device

    @property
    def owner(self) -> bytes:
        """The incarnation of the owner's engine: 16 random bytes that name one life of it."""
        return self._handle.incarnation

    @property
    def handle(self) -> RemoteRegion:
        """For transfers of your own. It is valid while this RemoteTensor is."""
        return self._handle

    def __getattr__(self, name: str) -> NoReturn:
        words = "it is elsewhere, and only its description is here: use .fetch()"
        raise AttributeError(f"a RemoteTensor has no {name!r}: {words}")

    def __len__(self) -> int:
        return len(self._handle)

    def __getitem__(self, index: Index) -> RemoteTensor:
        """A part, by the rules of basic indexing; a bound outside raises OutOfRange."""
        return RemoteTensor(self._handle[index], self._hold, self._kind, self._device)

    def __iter__(self) -> NoReturn:
        """Raises TypeError: each element would be a transfer of its own."""
        raise TypeError("a RemoteTensor is elsewhere: use .fetch(), or .fetch() of a part of it")

    def __array__(self, dtype: Any = None, copy: Any = None) -> NoReturn:
        """Raises TypeError: numpy would make an array of its elements."""
        self.__iter__()

    # --------------------------------------------------------------------------------------- bytes
    def fetch(self, into: Any = None, timeout: float | None = None) -> Any:
        """A copy of it: a new tensor (or array), or `into`, which must have its shape and dtype.

        A new one is on the device that the owner has it on. Raises PeerLost when the owner is
        gone, DeadlineExceeded after `timeout` seconds (default: the setting deadline), StaleRegion
        when the lease has expired on the way here, InvalidUse for an `into` that does not fit.
        """
        from transport.mesh.tensors import here

        limit, tensors = check_timeout(timeout), here()
        target = self._new(tensors.engine) if into is None else into
        try:
            tensors.engine.read(self._handle, target, deadline=limit).wait()
        except StaleRegion as error:
            raise _stale(error) from error
        return target

    def _new(self, engine: Any) -> Any:
        shape, name = self.shape, self.dtype
        if self._kind == "numpy":
            return engine.empty(shape, name, access="read")
        if self._kind == "gpu":
            return engine.empty(shape, name, device=self._device)
        import torch

        dtype = getattr(torch, name)
        if self._device == "cpu":
            return engine.empty(shape, dtype, access="read")
        return torch.empty(shape, dtype=dtype, device=self._device)

    # -------------------------------------------------------------------------------------- travels
    def parts(self) -> tuple[RemoteRegion, Ticket, str, str]:
        """What `arrive` makes it of in another process, which the owner must be told of first."""
        return self._handle, self._hold.ticket, self._kind, self._device

    def __reduce__(self) -> tuple[Any, ...]:
        from transport.mesh.tensors import here

        here().pass_on([self._hold.ticket], 1)
        return arrive, self.parts()

    def __repr__(self) -> str:
        what = f"{self.dtype}{list(self.shape)}"
        return f"<RemoteTensor {what} {format_bytes(self.nbytes)} on {self._device}>"


def _stale(error: StaleRegion) -> StaleRegion:
    return StaleRegion(
        f"{error} (the owner has taken this RemoteTensor back: it was on its way for longer than "
        "the owner's TRANSPORT_MESH_LEASE)",
        transfer=error.transfer,
        op=error.op,
        status=error.status,
    )


def arrive(handle: RemoteRegion, ticket: Ticket, kind: str, device: str) -> RemoteTensor:
    """What was passed on, in the process that got it. Raises InvalidUse."""
    from transport.mesh.tensors import here

    if ticket.door.incarnation != handle.incarnation:
        raise InvalidUse("this is no remote tensor: its memory and its lease have two owners")
    return RemoteTensor(handle, here().take([ticket])[0], kind, device)
