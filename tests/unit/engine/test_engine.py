"""Engines of one process: facts, peers, names, closing."""

from __future__ import annotations

import gc
import os
import pickle
import re
import socket
import threading
import time
from pathlib import Path

import pytest
import torch

import transport
from transport import Engine, InvalidUse, Unavailable, Write
from transport.config import Settings
from transport.engine import submit

WAIT = 60.0


@pytest.fixture
def pair():
    with Engine(name="a") as a, Engine(name="b") as b:
        yield a, b


# ------------------------------------------------------------------------------------------ engines
def test_engine_facts(pair):
    a, b = pair
    assert (a.name, len(a.incarnation)) == ("a", 16)
    assert a.incarnation != b.incarnation
    assert a.addresses[0].startswith("unix:@")
    assert "shm" in a.providers
    assert repr(a) == "<Engine a>"
    assert a.peers == ()
    peer = b.connect(a.addresses[0])
    assert (peer.name, peer.pid, peer.incarnation) == ("a", os.getpid(), a.incarnation)
    assert peer.connected
    assert peer in b.peers
    assert peer.addresses == a.addresses
    assert any("shm" in line for line in peer.explain())
    assert set(peer.counters()) >= {"shm", "tcp", "served", "notifications"}


def test_engine_to_itself(pair):
    a = pair[0]
    tensor = torch.arange(1000)
    with a.register(tensor) as region:
        into = torch.zeros(1000, dtype=torch.int64)
        transfer = a.read(region.remote(), into).wait(WAIT)
        assert torch.equal(into, tensor)
        assert transfer.path == "self"
        a.write(into + 1, region.remote(), notify=b"me").wait(WAIT)
        note = a.notifications().wait(WAIT)
        assert (note.payload, note.region) == (b"me", region)
        assert torch.equal(tensor, into + 1)


@pytest.mark.parametrize(
    "wishes",
    [{}, {"fallback": "error"}, {"fallback": "allow"}, {"provider": "tcp", "fallback": "allow"}],
)
def test_an_engine_without_shm_to_itself(wishes):
    """F6: what goes to all ranks goes to oneself, too."""
    with Engine(providers="tcp", listen="127.0.0.1:0") as engine:
        tensor = torch.arange(1000)
        with engine.register(tensor) as region:
            into = torch.zeros(1000, dtype=torch.int64)
            transfer = engine.read(region.remote(), into, **wishes).wait(WAIT)
            assert (transfer.provider, transfer.path) == ("shm", "self")
            assert torch.equal(into, tensor)
            prepared = engine.prepare(Write(into + 1, region.remote()), **wishes)
            assert prepared.run(WAIT).path == "self"
            assert torch.equal(tensor, into + 1)
            with pytest.raises(Unavailable, match="self: not among the allowed"):
                engine.read(region.remote(), into, provider="tcp").wait(WAIT)


def test_names(pair):
    a, b = pair
    with a.register(torch.arange(10)) as region:
        timer = threading.Timer(0.1, a.publish, ("weights", region))
        timer.start()
        remote = b.connect(a.addresses[0]).lookup("weights")
        timer.join()
        assert remote == region.remote()
        assert a.connect(a.addresses[0]).lookup("weights") == remote
        b.publish("his", remote)
        assert a.connect(b.addresses[0]).lookup("his") == remote
    peer = b.connect(a.addresses[0])
    with pytest.raises(transport.DeadlineExceeded, match="nothing named 'x'"):
        peer.lookup("x", timeout=0.05)
    for name in ("", 3, "x" * 2000):
        with pytest.raises(InvalidUse):
            peer.lookup(name)


def test_peer_close(pair):
    a, b = pair
    with a.register(torch.arange(10)) as region:
        into = torch.zeros(10, dtype=torch.int64)
        b.read(region.remote(), into).wait(WAIT)
        peer = b.peers[0]
        peer.close()
        assert not peer.connected
        b.read(region.remote(), into).wait(WAIT)
        assert b.peers[0] != peer


def test_providers_as_one_text():
    with Engine(providers="tcp, shm") as engine:
        assert engine.providers == ("tcp", "shm")


def test_where_nothing_can_listen_or_be_reached(pair, tmp_path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(Unavailable, match=r"choose another path$"):
        Engine(listen=f"unix:{file}")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable, match=r"or port 0 for any free one$"):
            Engine(listen=f"127.0.0.1:{port}")
    with pytest.raises(transport.PeerLost, match=f"127.0.0.1:{port}: connection refused$"):
        pair[0].connect(f"127.0.0.1:{port}")


def test_what_is_sent_by_mistake_names_what_can_be_sent(pair):
    a, b = pair
    with a.register(torch.ones(3)) as region:
        transfer = b.read(region.remote(), torch.zeros(3)).wait(WAIT)
        for thing, advice in (
            (region, "region.remote()"),
            (transfer, "wait for it"),
            (b.peers[0], "one of its addresses"),
            (a, "make a new one"),
        ):
            with pytest.raises(TypeError, match=re.escape(advice)):
                pickle.dumps(thing)


def test_unusable_providers():
    with pytest.raises(InvalidUse, match="no provider named"):
        Engine(providers=["pigeon"])
    with pytest.raises(Unavailable, match="no provider can be used: none was asked for"):
        Engine(providers=())
    with pytest.raises(Unavailable, match="no provider can be used: verbs: "):
        Engine(providers=["verbs"], settings=Settings(verbs_lib="/nonexistent.so"))


def test_a_closed_engine(pair):
    a, _ = pair
    tensor = torch.ones(3)
    region = a.register(tensor)
    remote = region.remote()
    a.close()
    a.close()
    assert a.closed
    assert "closed" in repr(a)
    for call in (
        lambda: a.register(tensor),
        lambda: a.empty(3, "uint8"),
        lambda: a.read(remote, tensor),
        lambda: a.write(tensor, remote),
        lambda: a.submit([]),
        lambda: a.connect("unix:@x"),
        lambda: a.notifications(),
        lambda: a.peers,
        lambda: a.publish("x", remote),
    ):
        with pytest.raises(InvalidUse, match="closed"):
            call()
    region.close()


def test_a_dropped_engine_warns_and_closes():
    engine = Engine()
    core = engine._core
    with pytest.warns(ResourceWarning, match="unclosed engine"):
        del engine
    end = time.monotonic() + WAIT
    while core.native.pointer is not None and time.monotonic() < end:
        time.sleep(0.001)
    assert core.native.pointer is None


def test_children_keep_their_engine():
    with Engine() as a:
        region = a.register(torch.arange(3))
        b = Engine()
        into = torch.zeros(3, dtype=torch.int64)
        transfer = b.read(region.remote(), into)
        closing = b.close
        del b
        gc.collect()
        transfer.wait(WAIT)
        closing()
        region.close()


def count_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_threads_and_descriptors_do_not_pile_up():
    with Engine():
        pass
    before = threading.active_count(), count_descriptors()
    for _ in range(10):
        with Engine() as a, Engine() as b, a.register(bytearray(10)) as region:
            b.read(region.remote(), bytearray(10)).wait(WAIT)
    gc.collect()
    end = time.monotonic() + WAIT
    while threading.active_count() > before[0] and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() <= before[0]  # fewer if an earlier test was still leaving
    assert count_descriptors() <= before[1] + 2


# --------------------------------------------------------------------------- engines that differ
@pytest.mark.parametrize("listen", [None, "127.0.0.1:0"])
@pytest.mark.parametrize(
    ("ours", "theirs"), [(None, ["tcp"]), (["tcp"], None), (["tcp"], ["tcp"]), (["shm"], ["tcp"])]
)
def test_engines_of_one_host_with_different_providers(ours, theirs, listen):
    """Whichever socket they meet on, its stream is enough."""
    with Engine(providers=ours) as near, Engine(providers=theirs, listen=listen) as far:
        tensor, into = torch.arange(1000), torch.zeros(1000, dtype=torch.int64)
        with far.register(tensor) as region:
            transfer = near.read(region.remote(), into).wait(WAIT)
            assert transfer.path in ("stream", "tcp")
            assert torch.equal(into, tensor)


# --------------------------------------------------------------------------------- what is no name
@pytest.mark.parametrize("name", [5, b"x", "\ud800"])
def test_names_of_engines_are_text(name):
    with pytest.raises(InvalidUse, match="an engine's name"):
        Engine(name=name)


@pytest.mark.parametrize("name", [5, "", "\ud800", "x" * 1025])
def test_names_of_regions_are_text(pair, name):
    a, b = pair
    with a.register(torch.arange(3)) as region:
        with pytest.raises(InvalidUse, match="a name is text"):
            a.publish(name, region)
        with pytest.raises(InvalidUse, match="a name is text"):
            b.connect(a.addresses[0]).lookup(name, 1)


@pytest.mark.parametrize("what", [5, None, b"x"])
def test_only_regions_are_published(pair, what):
    with pytest.raises(InvalidUse, match="what is published is a region"):
        pair[0].publish("x", what)


@pytest.mark.parametrize("address", [5, None, b"x"])
def test_addresses_are_text(pair, address):
    with pytest.raises(InvalidUse, match="an address is text"):
        pair[0].connect(address)


def test_a_notification_that_does_not_lie_in_one_piece(pair):
    a, b = pair
    with a.register(torch.arange(3)) as region, pytest.raises(InvalidUse, match="notification"):
        b.write(torch.arange(3), region.remote(), notify=memoryview(b"abcdef")[::2])


# ----------------------------------------------------------------------- Ctrl-C at the wrong moment
def _once(function):
    """Does what the function does and is then interrupted, the first time."""
    times = iter([True])

    def interrupted(*arguments, **keywords):
        result = function(*arguments, **keywords)
        if next(times, False):
            raise KeyboardInterrupt
        return result

    return interrupted


@pytest.mark.parametrize("to_itself", [False, True])
def test_interrupted_while_a_peer_is_made(pair, monkeypatch, to_itself):
    """The next call must not wait for a peer that nobody connects."""
    a, b = pair
    near = a if to_itself else b
    with a.register(torch.arange(3)) as region:
        table = near._core.plane._table
        monkeypatch.setattr(table, "obtain", _once(table.obtain))
        into = torch.zeros(3, dtype=torch.int64)
        with pytest.raises(KeyboardInterrupt):
            near.read(region.remote(), into)
        near.read(region.remote(), into).wait(WAIT)


def test_interrupted_right_after_a_transfer_has_begun(pair, monkeypatch):
    """It is cancelled, and its memory is kept until it is quiet."""
    a, b = pair
    with a.register(torch.arange(3)) as region:
        b.read(region.remote(), torch.zeros(3, dtype=torch.int64)).wait(WAIT)
        monkeypatch.setattr(submit, "check", _once(submit.check))
        begun = []
        drop = b._core.drop
        monkeypatch.setattr(
            type(b._core), "drop", lambda _, f, pins: (begun.extend(f), drop(f, pins))
        )
        with pytest.raises(KeyboardInterrupt):
            b.read(region.remote(), torch.zeros(3, dtype=torch.int64))
        gc.collect()
        assert len(begun) == 1
        assert begun[0].pointer
    # A call does what finalizers left, or the control thread, which is also told when it is quiet.
    end = time.monotonic() + WAIT
    while b._core.pinned:
        assert time.monotonic() < end
        b.notifications().poll()
        time.sleep(0.001)
