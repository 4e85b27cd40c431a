"""Versions that are read while they are written: live ones, and snapshots."""

from __future__ import annotations

import pytest
import torch
from states import FULL, blank, filled, same
from trainers import Trainers

from transport import (
    DeadlineExceeded,
    Engine,
    InvalidUse,
    VersionGone,
    weights,
)

SECRET = "s" * 32
WAIT = 60.0


class Interrupting(dict):
    """A progress function that does something once."""

    def __init__(self, act):
        self.act = act

    def __call__(self, done, total):
        act, self.act = self.act, lambda: None
        act()


def test_live_a_version_that_is_written_while_it_is_read_is_fetched_again(reader):
    trainers = Trainers(mode="live", patience=0.0)
    into = blank()
    with weights.subscribe(reader, "policy", into, trainers.addresses) as subscription:
        done = subscription.fetch(progress=Interrupting(lambda: trainers.step(2)))
        assert (done.version, done.attempts) == (2, 2)
        assert same(into, filled(2))
        with pytest.raises(VersionGone):
            subscription.fetch(2, progress=Interrupting(lambda: trainers.step(3)))
        assert subscription.version is None
    trainers.close()


def test_live_a_writer_waits_for_its_readers_but_not_for_ever(reader):
    trainers = Trainers(mode="live", patience=0.02)
    waited = []

    def look():
        waited.append([p.wait_for_readers(0.0) for p in trainers.publications])
        trainers.step(2)

    with weights.subscribe(reader, "policy", blank(), trainers.addresses) as subscription:
        assert subscription.fetch(progress=Interrupting(look)).attempts == 2
        assert waited == [[False] * 4]
        assert all(p.wait_for_readers(0.0) for p in trainers.publications)
    trainers.close()


def test_live_a_block_that_raises_leaves_no_version(reader):
    with Engine() as owner, weights.publish(owner, "policy", FULL, 1, mode="live") as publication:
        with pytest.raises(RuntimeError, match="of the step"), publication.writing(2):
            raise RuntimeError("of the step")
        assert publication.version is None
        with pytest.raises(DeadlineExceeded):
            weights.fetch(reader, "policy", blank(), owner.addresses[0], deadline=0.05)
        with publication.writing(2):
            pass
        assert weights.fetch(reader, "policy", blank(), owner.addresses[0]).version == 2


def test_snapshots_a_reader_keeps_what_it_reads(reader):
    """Two versions come meanwhile: the first takes the other slot, the second waits in vain."""
    trainers = Trainers(mode="snapshot", patience=0.02)
    into = blank()
    with weights.subscribe(reader, "policy", into, trainers.addresses) as subscription:
        done = subscription.fetch(progress=Interrupting(lambda: trainers.step(2)))
        assert (done.version, done.attempts) == (1, 1)
        assert same(into, FULL)
        done = subscription.fetch(
            progress=Interrupting(lambda: [trainers.step(3), trainers.step(4)])
        )
        assert (done.version, done.attempts) == (4, 2)
        assert same(into, filled(4))
    trainers.close()


def test_snapshots_with_room_a_reader_is_spared(reader):
    trainers = Trainers(mode="snapshot", keep=2, patience=30.0)
    trainers.step(2)
    trainers.step(3)
    into = blank()
    with weights.subscribe(reader, "policy", into, trainers.addresses) as subscription:
        steps = Interrupting(lambda: [trainers.step(version) for version in (4, 5, 6, 7)])
        assert subscription.fetch(2, progress=steps).attempts == 1
        assert same(into, filled(2))
        assert trainers.publications[0].versions == (2, 6, 7)
    trainers.close()


def test_live_a_tensor_that_is_resized_is_no_version(reader):
    for size in (10, 100_000):
        state = {"w": torch.zeros(1000), "v": torch.zeros(3)}
        with weights.publish(reader, "policy", state, 1, mode="live") as publication:
            with pytest.raises(InvalidUse, match="w has other memory"), publication.writing(2):
                state["w"].resize_(size)
            assert publication.version is None


def test_live_a_tensor_that_moves_is_no_version(reader):
    state = {"w": torch.zeros(1000), "v": torch.zeros(3)}
    with weights.publish(reader, "policy", state, 1, mode="live") as publication:
        held = state["w"].data
        with pytest.raises(InvalidUse, match="w has other memory"), publication.writing(2):
            state["w"].data = torch.ones(1000)
        assert publication.version is None
        state["w"].data = held
        with publication.writing(2):
            state["w"].fill_(2)
        into = {"w": torch.ones(1000), "v": torch.ones(3)}
        assert weights.fetch(reader, "policy", into, reader.addresses).version == 2
        assert (into["w"] == 2).all()
