"""Values with tensors, encoded and decoded in one process: equal, and shared as they were."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import time
import weakref
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from possessions import uncollected

from transport import InvalidUse
from transport.errors import DeadlineExceeded, PeerRefused, StaleRegion
from transport.mesh import sending, tensors
from transport.mesh.payload import Context, Payload, decode, encode

INLINE = 256  # bytes, so that small tests have both kinds

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]


@pytest.fixture(autouse=True, scope="module")
def _small():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sending, "inline_bytes", lambda: INLINE)
        yield
    tensors.close()


def round_trip(value, **how):
    payload = encode(value, Context(**how))
    try:
        return decode(payload, Context())
    finally:
        if payload.release is not None:
            payload.release()


# ---------------------------------------------------------------------------------- what is passed
@st.composite
def strided(draw, storages):
    """A view of one of the storages: any offset, shape and strides that lie within."""
    flat = draw(st.sampled_from(storages))
    shape, strides, last = [], [], 0
    for _ in range(draw(st.integers(0, 3))):
        size, step = draw(st.integers(1, 4)), draw(st.integers(0, 7))
        if last + (size - 1) * step >= flat.numel():
            break
        last += (size - 1) * step
        shape.append(size)
        strides.append(step)
    offset = draw(st.integers(0, flat.numel() - 1 - last))
    return flat.as_strided(shape, strides, offset)


@st.composite
def values(draw):
    storages = [
        torch.arange(draw(st.integers(1, 400))).to(draw(st.sampled_from(DTYPES)))
        for _ in range(draw(st.integers(1, 3)))
    ]
    arrays = st.integers(0, 300).map(lambda n: np.arange(n, dtype=np.int32)[:: 1 + n % 2])
    leaves = strided(storages) | arrays | st.integers() | st.text(max_size=4) | st.none()
    keys = st.text(max_size=3)
    return draw(
        st.recursive(
            leaves,
            lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
            max_leaves=12,
        )
    )


def leaves_of(value):
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves_of(item)]
    if isinstance(value, list):
        return [leaf for item in value for leaf in leaves_of(item)]
    return [value]


def assert_same(one, other):
    """Equal leaf by leaf. Strides are kept but where a lone view was mostly gaps."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        one, other = list(one.values()), list(other.values())
    if isinstance(one, list):
        assert len(one) == len(other)
        for pair in zip(one, other):
            assert_same(*pair)
    elif isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert torch.equal(one, other)
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)
    else:
        assert one == other


def sharing_of(value):
    """For each pair of tensors: not shared, or by how many bytes the second begins later."""
    found = [leaf for leaf in leaves_of(value) if isinstance(leaf, torch.Tensor) and leaf.numel()]
    places = [(leaf.untyped_storage().data_ptr(), leaf.data_ptr()) for leaf in found]
    return [
        at - there if storage == other else None
        for i, (storage, at) in enumerate(places)
        for other, there in places[:i]
    ]


@settings(max_examples=60, deadline=None)
@given(values(), st.booleans())
def test_a_value_comes_out_equal_and_what_it_shares_is_shared(value, copy):
    made = round_trip(value, copy=copy)
    assert_same(value, made)
    assert sharing_of(value) == sharing_of(made)


@dataclass
class Batch:
    tokens: torch.Tensor
    mask: np.ndarray


def test_tensors_are_found_wherever_pickle_goes():
    batch = Batch(torch.arange(1000), np.ones((30, 30), bool))
    made = round_trip(OrderedDict(batch=(batch, {"same": batch.tokens})))
    assert torch.equal(made["batch"][0].tokens, batch.tokens)
    assert np.array_equal(made["batch"][0].mask, batch.mask)
    assert made["batch"][1]["same"] is made["batch"][0].tokens


def test_a_module_comes_as_torch_would_pickle_it():
    model = torch.nn.Sequential(torch.nn.Linear(40, 40), torch.nn.BatchNorm1d(40))
    model.tied = model[0].weight
    made = round_trip(model)
    assert made.tied is made[0].weight
    assert isinstance(made.tied, torch.nn.Parameter)
    for name, tensor in model.state_dict().items():
        assert torch.equal(made.state_dict()[name], tensor)


@pytest.mark.parametrize("grad", [False, True])
def test_requires_grad_is_kept(grad):
    assert round_trip(torch.ones(5, requires_grad=grad)).requires_grad is grad
    assert round_trip(torch.ones(5000, requires_grad=grad)[::3]).requires_grad is grad


def test_strides_are_kept():
    whole = torch.arange(6000).view(20, 300)
    for tensor in (whole.t(), whole[:, 10:290], whole.expand(2, 20, 300)):
        assert round_trip(tensor).stride() == tensor.stride()


def test_a_lone_view_that_is_mostly_gaps_is_sent_without_them():
    column = torch.arange(1 << 16).view(1 << 8, 1 << 8)[:, 3]
    made = round_trip(column)
    assert torch.equal(made, column)
    assert made.untyped_storage().nbytes() == made.nbytes


def test_a_part_does_not_bring_the_rest_along():
    part = torch.zeros(1 << 20)[77:100]
    assert len(encode(part, Context()).data) < 1 << 10
    assert round_trip(part).untyped_storage().nbytes() < 1 << 8


@pytest.mark.parametrize(
    "tensor",
    [
        torch.eye(20).to_sparse(),
        torch.randn(100, dtype=torch.complex64).conj(),
        torch.empty(0),
        torch.empty(3, 0, 2),
        torch.tensor(3.0),
    ],
    ids=["sparse", "conj", "empty", "no rows", "scalar"],
)
def test_other_tensors(tensor):
    made = round_trip(tensor)
    assert (made.layout, made.shape) == (tensor.layout, tensor.shape)
    assert torch.equal(made.to_dense(), tensor.to_dense())


def test_attributes_and_subclasses_of_tensors():
    tensor = torch.ones(300)
    tensor.note = "kept"
    assert round_trip(tensor).note == "kept"
    assert type(round_trip(Marked(torch.ones(300)))) is Marked


class Marked(torch.Tensor):
    pass


def test_arrays():
    base = np.arange(4000.0).reshape(40, 100)
    for array in (base, base.T, base[::2, ::3], base[:0], np.array("text"), base.astype("S8")):
        made = round_trip(array)
        assert np.array_equal(made, array)
        assert made.flags.writeable
    base.flags.writeable = False
    assert not round_trip(base).flags.writeable
    assert round_trip(np.array([print, None]))[0] is print


def test_a_value_is_what_it_was_when_it_was_encoded():
    source = torch.ones(1000)
    payload = encode(source, Context(copy=True))
    source.zero_()
    assert decode(payload, Context()).sum() == 1000
    payload.release()


def test_nothing_is_left_once_it_is_released():
    here = tensors.here()
    before = len(here.engine.regions)
    payload = encode([torch.ones(1000), np.ones(1000)], Context())
    assert payload.held
    decode(payload, Context())
    payload.release()
    payload.release()
    assert len(here.engine.regions) == before
    with pytest.raises(StaleRegion):
        decode(payload, Context())


class Thing:
    """Can be watched as it goes."""


def test_nothing_that_has_travelled_waits_for_the_garbage_collector():
    """Arguments and results are large: they go when the last one lets go of them."""
    with uncollected():
        sent = [Thing(), np.arange(50), torch.arange(5000)]
        got = round_trip(sent)
        gone = [weakref.ref(each) for each in (*sent, *got)]
        del sent, got
        assert all(each() is None for each in gone)


def test_a_deadline_that_has_passed():
    payload = encode(torch.ones(1000), Context())
    with pytest.raises(DeadlineExceeded):
        decode(payload, Context(deadline=time.monotonic() - 1))
    payload.release()


# ----------------------------------------------------------------------------------- remote tensors
def leases_come_to(count):
    """The notices of holders are heard of now and then."""
    end = time.monotonic() + 20
    while len(tensors.here().leases) != count and time.monotonic() < end:
        gc.collect()
        tensors.here()._wake.set()
    return len(tensors.here().leases) == count


def test_kept_tensors_stay_until_the_last_holder_lets_go():
    source = {"a": torch.arange(5000), "b": [np.arange(50)]}
    kept = round_trip(source, keep="remote")
    assert kept["a"].shape == (5000,)
    assert (kept["a"].dtype, kept["b"][0].dtype, kept["a"].device) == ("int64", "int64", "cpu")
    assert torch.equal(kept["a"].fetch(), source["a"])
    assert np.array_equal(kept["b"][0].fetch(), source["b"][0])
    into = torch.zeros(10, dtype=torch.int64)
    assert kept["a"][20:30].fetch(into=into, timeout=10) is into
    assert torch.equal(into, source["a"][20:30])
    with pytest.raises(InvalidUse):
        kept["a"].fetch(into=torch.zeros(3))
    assert leases_come_to(2)
    part = kept["a"][:7]
    del kept
    assert leases_come_to(1)
    assert torch.equal(part.fetch(), source["a"][:7])
    del part
    assert leases_come_to(0)


def test_it_may_be_passed_on_and_pickled():
    kept = round_trip(torch.arange(3), keep="remote")
    passed = round_trip([kept])[0]
    again = pickle.loads(pickle.dumps(passed))
    del kept, passed
    assert again.fetch().tolist() == [0, 1, 2]
    del again
    assert leases_come_to(0)


def test_what_cannot_be_kept():
    with pytest.raises(InvalidUse, match="meta"):
        encode(torch.empty(3, device="meta"), Context(keep="remote"))
    with pytest.raises(InvalidUse, match="keep"):
        encode(1, Context(keep="here"))
    rows = [torch.ones(2), torch.ones(3)]
    jagged = torch.nested.nested_tensor(rows, layout=torch.jagged)
    for value in (np.zeros(3, "M8[s]"), np.zeros(3, [("a", "i4")]), jagged):
        with pytest.raises(InvalidUse, match='keep="remote"'):
            encode(value, Context(keep="remote"))
    assert leases_come_to(0)


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype")
def test_a_strided_nested_tensor_is_refused():
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    for keep in ("", "remote"):
        with pytest.raises(InvalidUse, match="jagged"):
            encode(nested, Context(keep=keep))


@pytest.mark.parametrize("use", [np.asarray, np.array, list])
def test_a_remote_tensor_says_that_it_must_be_fetched(use):
    kept = round_trip(torch.ones(3, 2, dtype=torch.bfloat16), keep="remote")
    assert getattr(torch, kept.dtype) is torch.bfloat16
    with pytest.raises(TypeError, match=r"\.fetch\(\)"):
        use(kept)


def test_an_expired_lease_is_named(monkeypatch):
    monkeypatch.setattr(tensors.here().leases, "_lifetime", 0.0)
    payload = encode(torch.ones(3), Context(keep="remote"))
    assert leases_come_to(0)
    late = decode(payload, Context())
    with pytest.raises(StaleRegion, match="TRANSPORT_MESH_LEASE"):
        late.fetch()


# --------------------------------------------------------------------------------- hostile payloads
@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60).filter(lambda data: data[:1] != b"\x80"))
def test_bytes_that_are_no_value(data):
    with pytest.raises(PeerRefused):
        decode(Payload(data), Context("them"))


def test_a_handle_that_is_none():
    payload = encode(torch.ones(1000), Context())
    handle = payload.data.index(tensors.here().engine.incarnation)
    damaged = bytearray(payload.data)
    damaged[handle - 3 : handle] = b"\xff\xff\xff"
    with pytest.raises((InvalidUse, PeerRefused)):
        decode(Payload(bytes(damaged)), Context())
    payload.release()


def test_plain_values_import_neither_torch_nor_numpy_nor_make_an_engine():
    code = """
import sys
from transport.mesh.payload import Context, decode, encode
value = ((1, "two", [3.0]), {"four": {5}})
assert decode(encode(value, Context()), Context()) == value
print(*[m for m in ("torch", "numpy", "transport.engine.engine") if m in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == []
