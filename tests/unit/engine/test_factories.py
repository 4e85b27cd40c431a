"""`with engine.pool()`: what torch's factory functions give under it, and what they leave alone."""

from __future__ import annotations

import gc
import threading

import pytest
import torch

import transport
from transport import Access, Engine, InvalidUse
from transport.testing.processes import run_program


@pytest.fixture
def engine():
    with Engine() as engine:
        yield engine


def home(engine, tensor):
    """The access of the pool memory that a tensor lies in; None for other memory."""
    return engine._core.pool.access_at(tensor.data_ptr())


MODEL = torch.arange(6, dtype=torch.float64).reshape(2, 3).t()

FACTORIES = {
    "zeros": lambda: torch.zeros(2, 3),
    "ones": lambda: torch.ones((2, 3), dtype=torch.bfloat16),
    "full": lambda: torch.full((4,), 7),
    "full_bool": lambda: torch.full((4,), True),
    "rand": lambda: torch.rand(3, 4, dtype=torch.float64),
    "rand_generator": lambda: torch.rand(9, generator=torch.Generator().manual_seed(3)),
    "randn": lambda: torch.randn(5),
    "randint": lambda: torch.randint(3, 90, (7,)),
    "randperm": lambda: torch.randperm(33),
    "arange": lambda: torch.arange(0, 1, 0.25),
    "arange_int": lambda: torch.arange(7),
    "linspace": lambda: torch.linspace(0, 1, 5),
    "logspace": lambda: torch.logspace(0, 1, 5),
    "eye": lambda: torch.eye(3, dtype=torch.complex64),
    "tensor": lambda: torch.tensor([[1, 2], [3, 4]], dtype=torch.int16),
    "scalar": lambda: torch.tensor(3.5),
    "normal": lambda: torch.normal(0.0, 1.0, (3,)),
    "window": lambda: torch.hann_window(8),
    "tril": lambda: torch.tril_indices(3, 3),
    "zeros_like": lambda: torch.zeros_like(MODEL),
    "ones_like": lambda: torch.ones_like(MODEL, dtype=torch.int32),
    "full_like": lambda: torch.full_like(MODEL, fill_value=2),
    "rand_like": lambda: torch.rand_like(MODEL),
    "randn_like": lambda: torch.randn_like(MODEL),
    "randint_like": lambda: torch.randint_like(MODEL, 2, 10),
    "new_zeros": lambda: MODEL.new_zeros(2, 2),
    "new_ones": lambda: MODEL.new_ones((2, 2), dtype=torch.int8),
    "new_full": lambda: MODEL.new_full((2, 2), 9.0),
    "new_tensor": lambda: MODEL.new_tensor([1.0, 2.0]),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_the_same_tensor_in_the_pool(engine, name):
    torch.manual_seed(11)
    expected = FACTORIES[name]()
    torch.manual_seed(11)
    with engine.pool():
        made = FACTORIES[name]()
    assert home(engine, made) is Access.READ_WRITE
    assert type(made) is torch.Tensor
    assert (made.dtype, made.stride()) == (expected.dtype, expected.stride())
    assert torch.equal(made, expected)
    assert made.is_leaf
    assert made._base is None


EMPTIES = {
    "empty": lambda: torch.empty(2, 3, 4, 5, memory_format=torch.channels_last),
    "empty_like": lambda: torch.empty_like(MODEL),
    "empty_strided": lambda: torch.empty_strided((2, 3), (4, 1)),
    "empty_permuted": lambda: torch.empty_permuted((2, 3), (1, 0)),
    "new_empty": lambda: MODEL.new_empty(3),
    "new_empty_strided": lambda: MODEL.new_empty_strided((2, 2), (1, 2)),
}


@pytest.mark.parametrize("name", EMPTIES)
def test_uninitialised_ones(engine, name):
    expected = EMPTIES[name]()
    with engine.pool():
        made = EMPTIES[name]()
    assert home(engine, made) is Access.READ_WRITE
    assert (made.shape, made.stride(), made.dtype) == (
        expected.shape,
        expected.stride(),
        expected.dtype,
    )


def test_memory_that_was_used_before_reads_as_zeros(engine):
    engine.empty(1 << 16, torch.uint8).fill_(255)
    gc.collect()
    with engine.pool():
        assert not torch.zeros(1 << 16, dtype=torch.uint8).any()


@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0)], ids=str)
def test_no_elements(engine, shape):
    """E4"""
    with engine.pool():
        made = torch.empty(shape)
    assert tuple(made.shape) == shape
    assert home(engine, made) is None


def test_what_is_no_ordinary_cpu_tensor_is_left_alone(engine):
    out = torch.empty(3)
    with engine.pool():
        assert torch.empty(3, device="meta").is_meta
        assert torch.empty_like(torch.empty(3, device="meta")).is_meta
        assert torch.zeros(3, out=out) is out
        assert torch.zeros(3, layout=torch.sparse_coo).is_sparse
        assert torch.zeros_like(torch.eye(2).to_sparse()).is_sparse
        with torch.device("meta"):
            assert torch.empty(3).is_meta
        assert home(engine, torch.empty(3)) is Access.READ_WRITE
    with torch.device("meta"), engine.pool():
        assert torch.empty(3).is_meta
        assert home(engine, torch.empty(3, device="cpu")) is Access.READ_WRITE
    assert home(engine, out) is None
    assert home(engine, torch.empty(3)) is None


def test_a_wrong_call_fails_as_it_does_without(engine):
    with engine.pool():
        for wrong in (lambda: torch.empty(-1), lambda: torch.zeros("x"), lambda: torch.rand()):
            with pytest.raises((RuntimeError, TypeError)):
                wrong()
        with pytest.raises(RuntimeError):
            torch.ones(3, dtype=torch.int64, requires_grad=True)


def test_a_module_is_built_trained_and_served(engine):
    with engine.pool():
        model = torch.nn.Sequential(
            torch.nn.Embedding(10, 8), torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)
        )
    tensors = [*model.parameters(), *model.buffers()]
    assert all(home(engine, tensor) is Access.READ_WRITE for tensor in tensors)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(torch.arange(10)).square().sum().backward()
    optimizer.step()
    with Engine() as peer:
        weight = model[1].weight
        into = torch.empty_like(weight)
        with engine.register(weight, access="read-write") as region:
            transfer = peer.read(region.remote(), into=into)
            transfer.wait(60)
        assert transfer.path == "mapped"
        assert torch.equal(into, weight)


def test_gradients(engine):
    with engine.pool():
        x = torch.ones(3, requires_grad=True)
        with torch.no_grad():
            y = torch.tensor([2.0, 3.0, 4.0], requires_grad=True)
    (x * y).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, y.detach())
    assert torch.equal(y.grad, x.detach())


def test_nested_the_innermost_counts(engine):
    with Engine() as other:
        with engine.pool(), other.pool(access="read"):
            inner = torch.rand(4)
            with engine.pool():
                innermost = torch.tensor([1.0])
        assert home(other, inner) is Access.READ
        assert home(engine, inner) is None
        assert home(engine, innermost) is Access.READ_WRITE
        del inner


def test_it_holds_for_its_thread_only(engine):
    found = []
    with engine.pool():
        thread = threading.Thread(target=lambda: found.append(torch.zeros(3)))
        thread.start()
        thread.join()
        assert home(engine, torch.zeros(3)) is Access.READ_WRITE
    assert home(engine, found[0]) is None


def test_threads_at_once(engine):
    def build(kept):
        with engine.pool():
            kept += [torch.full((n % 100 + 1,), n) for n in range(300)]

    lists: list[list[torch.Tensor]] = [[] for _ in range(4)]
    threads = [threading.Thread(target=build, args=(kept,)) for kept in lists]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for kept in lists:
        assert len(kept) == 300
        assert all(bool((tensor == n).all()) for n, tensor in enumerate(kept))
    assert len({tensor.data_ptr() for kept in lists for tensor in kept}) == 1200


def test_the_memory_comes_back(engine):
    pool = engine._core.pool
    with engine.pool():
        module = torch.nn.Linear(100, 100)
        assert pool.used_bytes >= 40_000
    del module
    gc.collect()
    pool.drain()
    assert pool.used_bytes == 0


def test_more_than_there_is_is_an_error_at_the_factory(engine):
    with engine.pool():
        with pytest.raises(transport.NativeError, match=r"memory"):
            torch.empty(1 << 50, dtype=torch.uint8)
        assert home(engine, torch.empty(10)) is Access.READ_WRITE


def test_tensors_outlive_the_engine_but_none_is_made_after_it():
    engine = Engine()
    with engine.pool():
        kept = torch.ones(1000)
        engine.close()
        with pytest.raises(InvalidUse, match="closed"):
            torch.ones(3)
    assert kept.sum() == 1000


def test_inference_mode(engine):
    with torch.inference_mode(), engine.pool():
        made = torch.ones(3)
    assert made.is_inference()
    assert home(engine, made) is Access.READ_WRITE


def test_torch_is_imported_only_when_it_is_asked_for():
    code = (
        "import sys, transport\n"
        "with transport.Engine() as engine:\n"
        "    engine.empty(3, 'float32')\n"
        "    assert 'torch' not in sys.modules\n"
        "    engine.pool()\n"
        "    assert 'torch' in sys.modules\n"
    )
    status, _, errors = run_program(code)
    assert status == 0, errors
