"""Meetings: keys that one engine keeps for others, whatever bytes they send."""

from __future__ import annotations

import threading

import pytest

from transport import DeadlineExceeded, Engine, InvalidUse, PeerError
from transport.collectives import card as c
from transport.collectives import meeting as meetings
from transport.collectives.hub import Hub
from transport.collectives.meeting import Meeting


@pytest.fixture
def hubs():
    near, far = Hub(Engine(name="near"), owned=True), Hub(Engine(name="far"), owned=True)
    near.hall.open("here")
    yield near, far
    far.close()
    near.close()


@pytest.fixture
def peer(hubs):
    near, far = hubs
    return far.peer(near.engine.addresses[0], 10)


@pytest.fixture(params=["its own", "a peer's"])
def meeting(request, hubs, peer):
    near, far = hubs
    mine = Meeting(near, None, "here") if request.param == "its own" else None
    return (mine or Meeting(far, peer, "here")).under("some")


def test_keys_are_set_awaited_and_dropped(meeting):
    assert meeting.peek("a", 5) is None
    threading.Timer(0.1, meeting.set, ("a", b"1", 5)).start()
    assert meeting.get("a", 10) == b"1"
    assert meeting.add("n", 3, 5) == 3
    assert meeting.add("n", -1, 5) == 2
    assert meeting.swap("a", b"0", b"2", 5) == b"1"
    assert meeting.swap("a", b"1", b"2", 5) == b"2"
    assert meeting.swap("new", b"", b"3", 5) == b"3"
    assert meeting.count("", 5) == 3
    assert meeting.drop("a", 5)
    assert not meeting.drop("a", 5)
    with pytest.raises(DeadlineExceeded, match="nobody has set"):
        meeting.get("a", 0.05)


def test_what_it_keeps_is_bounded(meeting, monkeypatch):
    monkeypatch.setattr(meetings, "_MAX_KEYS", 2)
    meeting.set("a", b"1", 5)
    meeting.set("b", b"1", 5)
    with pytest.raises(PeerError, match="full"):
        meeting.set("c", b"1", 5)
    monkeypatch.setattr(meetings, "_MAX_BYTES", 4)
    with pytest.raises(PeerError, match="full"):
        meeting.set("a", b"12345", 5)
    with pytest.raises(InvalidUse, match="at most"):
        meeting.set("a", bytes(c.MAX_VALUE + 1), 5)
    meeting.set("a", b"x", 5)
    with pytest.raises(PeerError, match="no number"):
        meeting.add("a", 1, 5)


def test_there_is_one_of_a_name(hubs, peer):
    near, far = hubs
    with pytest.raises(InvalidUse, match="already"):
        near.hall.open("here")
    with pytest.raises(PeerError, match="no meeting"):
        Meeting(far, peer, "elsewhere").peek("a", 5)
    near.hall.give_up("here")
    near.hall.open("here")
    near.hall.shut("here")
    with pytest.raises(PeerError, match="no meeting"):
        Meeting(far, peer, "here").peek("a", 5)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff" * 100,
        b"\xdd\xff\xff\xff\xff",
        c.encode([1, "here", "get", "a"])[:-1],
        c.encode([9, "here", "get", "a"]),
        c.encode([1, "here", "burn", "a"]),
        c.encode([1, "here", "get", "k" * 600]),
        c.encode([1, "here", "get", "a", b"", b"", 0, 1e9]),
        c.encode([1, "here", "add", "a", b"", b"", 1 << 63]),
        c.encode([1, "here", "set", "a", bytes(c.MAX_VALUE + 1)]),
    ],
)
def test_hostile_questions_are_answered_with_an_error(hubs, peer, body):
    near, far = hubs
    plane = far.engine._core.plane
    for topic in (meetings.TOPIC, "collectives.place", "collectives.decided"):
        with pytest.raises(PeerError):
            plane.request(peer.record, topic, body, 5).result()
    plane.send(peer.record, "collectives.word", body)
    Meeting(far, peer, "here").set("a", b"still", 5)
    assert Meeting(near, None, "here").get("a", 5) == b"still"


def test_who_leaves_asks_nothing_more_and_keeps_no_peer(hubs, peer):
    near, far = hubs
    other, record, name = peer.again(), peer.record, peer.name
    meeting = Meeting(far, peer, "here")
    below = meeting.under("some")
    for _ in range(2):
        meeting.leave()
    with pytest.raises(InvalidUse, match="is closed"):
        below.peek("a", 5)
    with pytest.raises(InvalidUse, match="is closed"):
        peer.again()
    assert (peer.name, peer.lost) == (name, None)
    assert other.record is record
    Meeting(near, None, "here").leave()
    with pytest.raises(PeerError, match="no meeting"):
        Meeting(far, other, "here").peek("a", 5)


def test_messages_reach_the_mailbox_of_their_id(hubs):
    near, far = hubs
    mine, other = near.mailbox(b"a" * 8), near.mailbox(b"b" * 8)
    peer = far.peer(near.engine.addresses[0], 10)
    far.send(peer, b"b" * 8, b"for the other")
    far.send(peer, b"c" * 8, b"for nobody")
    far.send(peer, b"a" * 8, b"for me")
    note = mine.wait(10)
    assert note.payload == b"for me"
    assert note.peer == far.engine.incarnation
    assert other.wait(10).payload == b"for the other"
    assert mine.wait(0) is None
    with pytest.raises(InvalidUse, match="already"):
        near.mailbox(b"a" * 8)
    with pytest.raises(InvalidUse):
        far.send(peer, b"a" * 8, bytes(1001))
    mine.end(PeerError("over"))
    with pytest.raises(PeerError, match="over"):
        mine.wait(1)
    mine.close()
    near.mailbox(b"a" * 8).close()


def test_a_lost_peer_is_told_at_once(hubs):
    near, far = hubs
    told, came = [], threading.Event()
    near.watch(lambda incarnation, error: (told.append(incarnation), came.set()))
    far.peer(near.engine.addresses[0], 10)
    incarnation = far.engine.incarnation
    far.close()
    assert came.wait(5)
    assert told == [incarnation]
