"""`engine.adopt`: tensors that exist already move into the pool, and nobody notices."""

from __future__ import annotations

import copy

import pytest
import torch

from transport import Access, Engine, InvalidUse
from transport.engine.adopt import Adopted


@pytest.fixture
def engine():
    with Engine() as engine:
        yield engine


def is_home(engine, *tensors):
    return all(engine._core.pool.access_at(t.data_ptr()) is Access.READ_WRITE for t in tensors)


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(20, 8)
        self.head = torch.nn.Linear(8, 20, bias=False)
        self.head.weight = self.embedding.weight
        self.norm = torch.nn.BatchNorm1d(8)

    def forward(self, x):
        return self.head(self.norm(self.embedding(x)))


def train(model, optimizer, steps):
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.arange(step, step + 10)).square().mean().backward()
        optimizer.step()


def test_a_model_trains_on_as_if_nothing_had_happened(engine):
    torch.manual_seed(5)
    model = Tied()
    twin = copy.deepcopy(model)
    optimizer, other = (torch.optim.Adam(m.parameters(), 0.1) for m in (model, twin))
    train(model, optimizer, 3)
    train(twin, other, 3)
    before = list(model.parameters())
    moved = engine.adopt(model)
    tensors = [*model.parameters(), *model.buffers()]
    assert moved == Adopted(len(tensors), sum(tensor.nbytes for tensor in tensors))
    assert is_home(engine, *tensors)
    assert model.head.weight is model.embedding.weight
    assert all(a is b for a, b in zip(before, model.parameters()))
    train(model, optimizer, 3)
    train(twin, other, 3)
    for ours, theirs in zip(model.parameters(), twin.parameters()):
        assert torch.equal(ours, theirs)
    assert is_home(engine, *tensors)


def test_twice_moves_nothing(engine):
    model = Tied()
    engine.adopt(model)
    places = [tensor.data_ptr() for tensor in model.parameters()]
    assert engine.adopt(model) == Adopted(0, 0)
    assert places == [tensor.data_ptr() for tensor in model.parameters()]


def test_a_shared_storage_moves_once(engine):
    flat = torch.arange(100.0)
    parts = {"a": flat[10:20], "b": flat[15:40].view(5, 5).t(), "c": flat[::3]}
    expected = {name: part.clone() for name, part in parts.items()}
    offsets = {name: (part.storage_offset(), part.stride()) for name, part in parts.items()}
    moved = engine.adopt([flat, parts])
    assert moved == Adopted(4, 400)
    for name, part in parts.items():
        assert torch.equal(part, expected[name])
        assert (part.storage_offset(), part.stride()) == offsets[name]
        assert part.untyped_storage().data_ptr() == flat.data_ptr()
    parts["a"].fill_(-1)
    assert bool((flat[10:20] == -1).all())
    assert parts["b"][0, 0] == -1


def test_a_view_brings_its_base(engine):
    """autograd keeps the base alive, which nobody else may have any more."""
    part = torch.arange(100.0)[10:20]
    assert engine.adopt(part).bytes == 400
    assert is_home(engine, part)
    assert torch.equal(part, torch.arange(10.0, 20.0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.bool, torch.complex64, torch.int8])
def test_dtypes(engine, dtype):
    tensor = torch.tensor([[1, 0], [1, 1]]).to(dtype).t()
    expected = tensor.clone()
    engine.adopt(tensor)
    assert torch.equal(tensor, expected)
    assert tensor.stride() == (1, 2)
    assert is_home(engine, tensor)


@pytest.mark.parametrize("shape", [(), (0,), (0, 5), (5, 0)], ids=str)
def test_scalars_and_nothing(engine, shape):
    """E4"""
    tensor = torch.ones(shape)
    assert engine.adopt(tensor).bytes == tensor.nbytes
    assert torch.equal(tensor, torch.ones(shape))


def test_no_tensors(engine):
    """E5"""
    for nothing in ([], {}, torch.nn.Identity()):
        assert engine.adopt(nothing) == Adopted(0, 0)


def test_the_result_is_mapped_by_peers(engine):
    model = torch.nn.Linear(30, 40)
    engine.adopt(model)
    into = torch.empty(40, 30)
    with Engine() as peer, engine.register(model.weight, access="read-write") as region:
        transfer = peer.read(region.remote(), into=into)
        transfer.wait(60)
        assert transfer.path == "mapped"
    assert torch.equal(into, model.weight)


def test_a_state_dict_of_its_own(engine):
    state = {"w": torch.ones(5), "step": 7, "nested": {"b": torch.zeros(2)}, "none": None}
    assert engine.adopt(state) == Adopted(2, 28)
    assert is_home(engine, state["w"], state["nested"]["b"])


class Special(torch.Tensor):
    pass


REFUSED = {
    "meta": (lambda: torch.empty(3, device="meta"), "meta"),
    "sparse": (lambda: torch.eye(3).to_sparse(), "layout"),
    "subclass": (lambda: torch.ones(3).as_subclass(Special), "Special"),
    "lazy": (lambda: torch.nn.LazyLinear(3).weight, "Uninitialized"),
    "conjugate": (lambda: torch.ones(3, dtype=torch.complex64).conj(), "conjugate"),
    "shared": (lambda: torch.ones(3).share_memory_(), "other processes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_anything_moves(engine, name):
    """E6: a failure leaves the state as it was."""
    make, words = REFUSED[name]
    good = torch.ones(4)
    place = good.data_ptr()
    with pytest.raises(InvalidUse, match=words):
        engine.adopt({"good": good, "bad": make()})
    assert good.data_ptr() == place
    assert engine._core.pool.used_bytes == 0


def test_what_is_no_tensor_is_refused(engine):
    for wrong in (7, "weights", None, object()):
        with pytest.raises(InvalidUse, match="no module"):
            engine.adopt(wrong)


def test_tensors_that_would_be_left_behind_are_refused(engine):
    model = torch.nn.Linear(3, 4)
    place = model.weight.data_ptr()
    state = model.state_dict()
    for part in (state, model):
        with pytest.raises(InvalidUse, match="1 more tensors share the storage of weight"):
            engine.adopt(part)
    assert model.weight.data_ptr() == place
    assert engine.adopt([model, state]).count == 4
    assert state["weight"].data_ptr() == model.weight.data_ptr()
    assert is_home(engine, model.weight, model.bias)


def test_registered_tensors_are_refused(engine):
    model = torch.nn.Linear(3, 4)
    with engine.register(model.weight), pytest.raises(InvalidUse, match="weight is registered"):
        engine.adopt(model)
    assert engine.adopt(model).count == 2


def test_tensors_in_use_by_a_transfer_are_refused(engine):
    local = torch.ones(8)
    with Engine() as peer, peer.register(torch.zeros(8)) as region:
        with engine.prepare([_write(local, region.remote())]) as prepared:
            with pytest.raises(InvalidUse, match="prepared"):
                engine.adopt(local)
            prepared.run()
        prepared.wait_quiet()
        assert engine.adopt(local).count == 1


def _write(source, to):
    from transport import Write

    return Write(source, to)


def test_the_old_memory_goes(engine):
    """One storage is held twice at a time, not the whole model."""
    import weakref

    tensors = [torch.ones(1000) for _ in range(3)]
    old = [weakref.ref(tensor.untyped_storage()) for tensor in tensors]
    engine.adopt(tensors)
    assert [reference() for reference in old] == [None, None, None]


def test_torch_still_tells_who_shares_a_storage():
    """The refusal above rests on it."""
    tensor = torch.ones(3)
    view = tensor.view(3)
    storage = tensor.untyped_storage()
    assert torch._C._storage_Use_Count(storage._cdata) == 3
    del view
    assert torch._C._storage_Use_Count(storage._cdata) == 2
