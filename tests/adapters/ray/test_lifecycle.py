"""What is registered, and until when; and what is told when somebody has gone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest
import ray
import torch
from ray.experimental.rdt.util import get_tensor_transport_manager
from ray_actors import BIG, Member, card_of, differences, numbers

import transport.adapters.ray as adapter
from transport import Cancelled, PeerLost, StaleRegion

pytestmark = [pytest.mark.usefixtures("cluster"), pytest.mark.filterwarnings("ignore")]

SOON = 20.0  # seconds; Ray's own patience is a minute


def fetch(card, timeout=SOON):
    manager = get_tensor_transport_manager("TRANSPORT")
    request = manager.fetch_multiple_tensors("an object", card, None)
    return manager.wait_fetch_complete(request, timeout)


def cause_of(error):
    """What the adapter raised, out of what Ray made of it."""
    return getattr(error, "cause", None) or error


def kill(member):
    """As the system does it when memory is short; returns the name of its engine."""
    name, pid, _ = ray.get(member.facts.remote())
    os.kill(pid, signal.SIGKILL)
    return name


def test_the_engine_starts_no_cluster():
    code = """
import ray
import transport.adapters.ray as adapter
try:
    adapter.engine()
except adapter.InvalidUse as error:
    print(error, ray.is_initialized())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "Ray is not up in this process; call ray.init first False\n", done.stderr


# ----------------------------------------------------------------------------------- registrations
def test_a_storage_is_registered_once_whatever_of_it_is_put_how_often(members):
    source, target, _ = members
    assert ray.get(source.regions_after.remote()) == 0
    refs = ray.get(source.put_views.remote(3))
    assert ray.get(source.regions.remote()) == 1
    assert differences(ray.get(refs[-1]), numbers(4 * BIG).view(4, -1)[1]) == []
    last = refs.pop()
    del refs
    assert ray.get(target.fetch_and_compare.remote([last], BIG)) != []  # it is the second quarter
    assert differences(ray.get(last), numbers(4 * BIG).view(4, -1)[1]) == []
    assert ray.get(source.regions.remote()) == 1
    del last
    assert ray.get(source.regions_after.remote()) == 0


def test_a_bigger_tensor_at_the_same_address_is_registered_anew():
    tensor = numbers(BIG)
    first = ray.put(tensor, _tensor_transport="TRANSPORT")
    card = card_of(first)
    tensor.resize_(2 * BIG).copy_(numbers(2 * BIG, seed=3))
    second = ray.put(tensor, _tensor_transport="TRANSPORT")
    assert differences(fetch(card_of(second)), [numbers(2 * BIG, seed=3)]) == []
    del first, card


def test_what_ray_has_freed_is_stale_and_never_what_lies_there_now(members):
    source, *_ = members
    for count in (BIG, 100):  # read where it lies, and copied into a block
        ref = source.numbers.remote(count, 1)
        card = card_of(ref)
        assert differences(fetch(card), [numbers(count, seed=1)]) == []
        del ref
        ray.get(source.overwrite.remote())
        with pytest.raises(StaleRegion, match="made by actor"):
            fetch(card)


def test_a_read_beside_the_release_is_right_or_stale(members):
    source, *_ = members
    seen = set()
    for turn in range(12):
        ref = source.numbers.remote(8 * BIG, turn)
        card = card_of(ref)
        del ref  # Ray frees it while it is being read
        try:
            assert differences(fetch(card), [numbers(8 * BIG, seed=turn)]) == []
            seen.add("right")
        except StaleRegion:
            seen.add("stale")
    assert seen <= {"right", "stale"}
    assert ray.get(source.regions_after.remote()) == 0


def test_nothing_stays_registered_after_errors(members):
    source, *_ = members
    mixed = [numbers(BIG), torch.eye(300).to_sparse()]
    with pytest.raises(Exception, match="layout"):
        ray.put(mixed, _tensor_transport="TRANSPORT")
    assert ray.get(source.regions_after.remote()) == 0
    assert not adapter.engine().regions


# ------------------------------------------------------------------------------- those who go away
def test_a_maker_that_is_killed_is_named_at_once():
    maker, reader = Member.remote(), Member.remote()
    ref, other = maker.numbers.remote(BIG), maker.numbers.remote(64)
    assert ray.get(reader.compare_numbers.remote(ref, BIG)) == []
    name = kill(maker)
    begun = time.monotonic()
    for mine in (ref, other):
        with pytest.raises(PeerLost) as caught:
            ray.get(mine)
        assert name in str(caught.value)
        assert caught.value.peer == name
    with pytest.raises(Exception, match="made by actor") as told:
        ray.get(reader.compare_numbers.remote(ref, BIG))
    assert isinstance(cause_of(told.value), PeerLost)
    with pytest.raises(Exception, match="made by actor"):
        ray.get(reader.fetch_and_compare.remote([ref], BIG))
    assert time.monotonic() - begun < SOON
    assert ray.get(reader.ready.remote())


def test_a_maker_that_is_killed_while_it_is_read(members):
    maker = Member.remote()
    refs = [maker.numbers.remote(32 * BIG, seed) for seed in range(3)]
    cards = [card_of(ref) for ref in refs]
    _, pid, _ = ray.get(maker.facts.remote())
    manager = get_tensor_transport_manager("TRANSPORT")
    requests = [manager.fetch_multiple_tensors("object", card, None) for card in cards]
    os.kill(pid, signal.SIGKILL)
    begun = time.monotonic()
    for seed, request in enumerate(requests):
        with contextlib.suppress(PeerLost):  # it may have been quicker than the signal
            found = manager.wait_fetch_complete(request, SOON)
            assert differences(found, [numbers(32 * BIG, seed=seed)]) == []
    assert time.monotonic() - begun < SOON


def test_a_reader_that_is_killed_costs_its_source_nothing(members):
    source, other, _ = members
    reader = Member.remote()
    ref = source.numbers.remote(32 * BIG)
    _, pid, _ = ray.get(reader.facts.remote())
    taken = reader.compare_numbers.remote(ref, 32 * BIG)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ray.exceptions.ActorDiedError):
        ray.get(taken)
    assert ray.get(other.compare_numbers.remote(ref, 32 * BIG)) == []
    del ref, taken
    assert ray.get(source.regions_after.remote()) == 0


def test_an_actor_that_was_restarted_gives_and_takes_again(members):
    _, other, _ = members
    again = Member.options(max_restarts=1, max_task_retries=2).remote()
    old = again.numbers.remote(BIG)
    assert ray.get(other.compare_numbers.remote(old, BIG)) == []
    name = kill(again)
    new = again.numbers.remote(BIG, 5)
    assert ray.get(other.compare_numbers.remote(new, BIG, 5)) == []
    assert ray.get(again.compare_numbers.remote(other.numbers.remote(BIG, 6), BIG, 6)) == []
    with pytest.raises(PeerLost) as caught:
        ray.get(old)
    assert caught.value.peer == name
    assert ray.get(again.facts.remote())[0] != name


def test_references_go_from_hand_to_hand_and_to_those_who_come_late(members):
    source, second, third = members
    card_of(ref := source.numbers.remote(BIG, 2))  # Ray passes it on once it has that
    assert ray.get(second.pass_refs.remote(third, [ref], BIG)) != []  # another seed
    late = Member.remote()
    assert ray.get(late.compare_numbers.remote(ref, BIG, 2)) == []
    assert ray.get(second.fetch_and_compare.remote([ref], BIG, 2)) == []
    assert ray.get(late.have_made.remote(BIG)) == []


def test_a_fetch_that_is_aborted_or_given_up_ends(members):
    source, *_ = members
    manager = get_tensor_transport_manager("TRANSPORT")
    card = card_of(ref := source.numbers.remote(32 * BIG))
    request = manager.fetch_multiple_tensors(ref.hex(), card, None)
    manager.abort_transport(ref.hex(), None)
    with contextlib.suppress(Cancelled):  # it may have been over
        manager.wait_fetch_complete(request)
    request = manager.fetch_multiple_tensors(ref.hex(), card, None)
    transfer = request.transfer
    with contextlib.suppress(TimeoutError):
        manager.wait_fetch_complete(request, 0)
    del request
    assert transfer.wait_quiet(SOON)
    assert differences(ray.get(ref), numbers(32 * BIG)) == []
