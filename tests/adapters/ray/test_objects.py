"""Values of Ray objects with tensors in them: of every kind, to actors and the driver."""

from __future__ import annotations

import pytest
import ray
import torch
from ray.experimental import set_target_for_ref
from ray_actors import ARRAYS, BIG, VALUES, differences, numbers

import transport.adapters.ray as adapter

pytestmark = [pytest.mark.usefixtures("cluster"), pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("name", VALUES)
def test_a_value_comes_to_an_actor_and_to_the_driver_as_it_was(members, name):
    source, target, _ = members
    ref = source.make.remote(name)
    assert ray.get(target.compare.remote(ref, name)) == []
    assert differences(ray.get(ref), VALUES[name]()) == []


@pytest.mark.parametrize("name", ARRAYS)
def test_so_does_one_of_numpy(members, name):
    source, target, _ = members
    ref = source.make_array.remote(name)
    assert ray.get(target.compare.remote(ref, name, True)) == []
    assert differences(ray.get(ref), ARRAYS[name]()) == []


@pytest.mark.parametrize("name", ["nested", "many", "transposed", "state dict"])
def test_what_an_actor_puts(members, name):
    source, target, _ = members
    [ref] = ray.get(source.put.remote("nested"))
    assert ray.get(target.compare.remote(ref, "nested")) == []
    assert differences(ray.get(ref), VALUES["nested"]()) == []


@pytest.mark.parametrize("name", ["nested", "overlapping", "many"])
def test_what_the_driver_puts(members, name):
    ref = ray.put(VALUES[name](), _tensor_transport="TRANSPORT")
    assert ray.get([member.compare.remote(ref, name) for member in members]) == [[], [], []]


def test_dense_tensors_keep_their_order_of_dimensions(members):
    found = ray.get(members[0].make.remote("channels last"))
    assert found.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", ["transposed", "columns", "many", "overlapping", "empty"])
def test_into_buffers_of_the_receiver(members, name):
    ref = members[0].make.remote(name)
    wanted = VALUES[name]()
    shapes = wanted if isinstance(wanted, list) else [wanted]
    buffers = [torch.empty(part.shape, dtype=part.dtype) for part in shapes]
    set_target_for_ref(ref, buffers)
    found = ray.get(ref)
    found = found if isinstance(found, list) else [found]
    assert [a.data_ptr() for a in found] == [b.data_ptr() for b in buffers]
    assert differences(found, shapes) == []


def test_a_value_comes_back_to_its_maker_and_passes_through_others(members):
    ref = members[0].make.remote("nested")
    assert ray.get(members[0].compare.remote(ref, "nested")) == []
    through = members[2].hand_on.remote(members[1].hand_on.remote(ref))
    assert ray.get(members[0].compare.remote(through, "nested")) == []


def test_many_references_are_under_way_at_once(members, monkeypatch):
    said = []
    for name in ("fetch_multiple_tensors", "wait_fetch_complete"):
        whole = getattr(adapter.TensorTransport, name)

        def heard(self, *args, _name=name, _whole=whole, **more):
            said.append(_name)
            return _whole(self, *args, **more)

        monkeypatch.setattr(adapter.TensorTransport, name, heard)
    refs = [members[i % 3].numbers.remote(BIG, i) for i in range(12)]
    ray.wait(refs, num_returns=12, fetch_local=False)
    for i, found in enumerate(ray.get(refs)):
        assert differences(found, numbers(BIG, seed=i)) == []
    assert said == ["fetch_multiple_tensors"] * 12 + ["wait_fetch_complete"] * 12


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (lambda: torch.eye(3).to_sparse(), "layout"),
        (lambda: torch.empty(2, device="meta"), "meta"),
        (lambda: torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8), "quint|qint8"),
    ],
    ids=["sparse", "meta", "quantized"],
)
def test_what_has_no_plain_memory_is_refused_in_words(members, value, words):
    with pytest.raises(Exception, match=words):
        ray.put(value(), _tensor_transport="TRANSPORT")


def test_registering_again_changes_nothing(members):
    adapter.register()
    adapter.register()
    assert ray.get(members[0].make.remote("scalar")) == 3.5
