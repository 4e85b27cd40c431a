"""The exception tree: shapes, pickling, and the way from C statuses."""

from __future__ import annotations

import errno
import inspect
import pickle

import pytest

from transport import errors as e
from transport.ffi import lib

ALL = [
    kind
    for _, kind in inspect.getmembers(e, inspect.isclass)
    if issubclass(kind, e.TransportError) and kind.__module__ == e.__name__
]


@pytest.mark.parametrize(
    ("kind", "parents"),
    [
        (e.Unavailable, ()),
        (e.InvalidUse, (ValueError,)),
        (e.PeerLost, (e.PeerError, e.TransferError)),
        (e.PeerRefused, (e.PeerError,)),
        (e.VersionMismatch, (e.PeerError,)),
        (e.RemoteAccessError, (e.TransferError,)),
        (e.DeadlineExceeded, (e.TransferError, TimeoutError)),
        (e.Cancelled, (e.TransferError,)),
        (e.StaleRegion, (e.TransferError,)),
        (e.NativeError, (OSError,)),
        (e.VerbsError, (e.NativeError,)),
        (e.NcclError, (e.NativeError,)),
        (e.ActorCrashed, (e.ActorError,)),
    ],
)
def test_the_tree(kind, parents):
    assert issubclass(kind, (e.TransportError, *parents))
    assert all(issubclass(kind, parent) for parent in parents)


@pytest.mark.parametrize("kind", ALL)
def test_every_error_survives_pickling(kind):
    error = kind("what happened")
    error.note = "kept"
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == str(error) == "what happened"
    assert copy.args == error.args
    assert vars(copy) == vars(error)


@pytest.mark.parametrize("kind", ALL)
def test_one_that_is_kept_holds_no_frames_when_it_is_raised(kind):
    kept = kind("what happened")
    kept.__cause__ = KeyError("why")
    for _ in range(2):
        with pytest.raises(kind, match="what happened") as raised:
            raise kept.again()
        assert vars(raised.value) == vars(kept)
        assert raised.value.__cause__ is kept.__cause__
    assert kept.__traceback__ is None


def test_attributes_survive_pickling_and_live_objects_become_their_names():
    error = e.PeerLost("gone", peer="trainer-3", transfer=object(), op="read")
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.peer, copy.op, copy.status) == ("trainer-3", "read", e.Status.PEER_LOST)
    assert copy.transfer.startswith("<object object")
    verbs = pickle.loads(pickle.dumps(e.VerbsError("no memory", operation="reg_mr", errno=12)))
    assert (verbs.errno, verbs.operation, str(verbs)) == (12, "reg_mr", "reg_mr: no memory")
    absent = pickle.loads(pickle.dumps(e.Unavailable("no libibverbs", "install it")))
    assert (absent.reason, absent.remedy) == ("no libibverbs", "install it")
    assert str(absent) == "no libibverbs; install it"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("INVALID", e.InvalidUse),
        ("UNAVAILABLE", e.Unavailable),
        ("NOMEM", e.NativeError),
        ("SYSTEM", e.NativeError),
        ("PEER_LOST", e.PeerLost),
        ("PEER_REFUSED", e.PeerRefused),
        ("VERSION", e.VersionMismatch),
        ("REMOTE_ACCESS", e.RemoteAccessError),
        ("STALE", e.StaleRegion),
        ("DEADLINE", e.DeadlineExceeded),
        ("CANCELLED", e.Cancelled),
        ("PROTOCOL", e.PeerLost),
        ("CLOSED", e.TransferError),
        ("VERBS", e.VerbsError),
        ("CUDA", e.CudaError),
        ("HIP", e.HipError),
        ("NO_PATH", e.Unavailable),
        ("FLUSHED", e.TransferError),
        ("AGAIN", e.TransferError),
    ],
)
def test_from_status(name, kind):
    error = e.from_status(e.Status[name], "why", peer="p", op="write", error=errno.EIO)
    assert type(error) is kind
    assert str(error) == "why"
    if isinstance(error, e.TransferError):
        assert (error.op, error.status) == ("write", e.Status[name])
    if isinstance(error, e.PeerError):
        assert error.peer == "p"
    if isinstance(error, e.NativeError):
        assert error.errno == errno.EIO


def test_a_driver_error_has_the_drivers_number_and_name():
    text = "cuMemMap: CUDA_ERROR_ALREADY_MAPPED (208): resource already mapped"
    error = e.from_status(e.Status.CUDA, text, error=208)
    assert (error.number, error.name, str(error)) == (208, "CUDA_ERROR_ALREADY_MAPPED", text)
    assert e.from_status(e.Status.HIP, "no words", error=1).name == ""


def test_from_status_without_words_uses_the_status_name():
    assert str(e.from_status(e.Status.STALE, "")) == "STALE"
    assert str(e.from_status(-99, "")) == "-99"
    assert e.from_status(e.Status.NOMEM, "").errno == errno.ENOMEM


def test_retryable():
    assert e.PeerLost("gone").retryable
    assert e.DeadlineExceeded("late").retryable
    assert e.from_status(e.Status.AGAIN, "full").retryable
    assert not e.StaleRegion("closed").retryable
    assert not e.InvalidUse("no").retryable


def test_statuses_are_those_of_c():
    for status in e.Status:
        assert getattr(lib, f"TN_{status.name}") == status
