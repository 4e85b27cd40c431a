"""Which providers two sides end up with; what one of them does wrong costs only itself."""

from __future__ import annotations

import os

import pytest
from control_planes import TalkingEndpoint

from transport.control.negotiation import Negotiation
from transport.types import LinkFacts, Offer

UNIX = LinkFacts(is_unix=True, pid=1, uid=0, initiator=True, incarnation=bytes(16))
TCP = LinkFacts(is_unix=False, pid=0, uid=-1, initiator=True, incarnation=bytes(16))


@pytest.fixture
def descriptor():
    read, write = os.pipe()
    os.close(write)
    return read


def is_open(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def states(endpoint):
    return [connection.state for connection in endpoint.connections]


def test_what_both_have_is_attached():
    shm, verbs = TalkingEndpoint(b"s"), TalkingEndpoint(b"v")
    negotiation = Negotiation({"shm": shm, "verbs": verbs})
    negotiation.begin(UNIX)
    assert {n: o.data for n, o in negotiation.offers().items()} == {"shm": b"s", "verbs": b"v"}
    negotiation.consider({"shm": Offer(b"theirs")}, {"verbs": "no device"})
    assert negotiation.attach(object()) == ("shm",)
    assert negotiation.reasons() == {"verbs": "the peer says: no device"}
    negotiation.close()
    assert (states(shm), states(verbs)) == (["attached"], ["closed"])
    assert shm.connections[0].accepted == b"theirs"


def test_one_that_is_not_for_this_link_says_so():
    negotiation = Negotiation({"shm": TalkingEndpoint(unix_only=True)})
    negotiation.begin(TCP)
    assert not negotiation.offers()
    assert negotiation.reasons() == {"shm": "not for TCP links"}
    assert negotiation.attach(object()) == ()


def test_what_is_absent_is_said_and_stays_ours():
    """For the peer to know; at most as much as a message may carry."""
    negotiation = Negotiation({"shm": TalkingEndpoint()}, {"verbs": "no device" * 100, "tcp": ""})
    negotiation.begin(UNIX)
    told = negotiation.reasons()
    assert told == {"verbs": ("no device" * 100)[:512], "tcp": "no reason given"}
    assert tuple(negotiation.offers()) == ("shm",)
    negotiation.close()
    many = Negotiation({}, {f"provider{n}": "absent" for n in range(20)})
    assert len(many.reasons()) == 8


def test_a_peers_words_are_made_safe_to_print():
    negotiation = Negotiation({"verbs": TalkingEndpoint()})
    negotiation.begin(UNIX)
    negotiation.consider({}, {"verbs": "\x1b[2J\n" + "x" * 1000})
    said = negotiation.reasons()["verbs"]
    assert said.startswith("the peer says: ?[2J?xxx")
    assert len(said) <= 512


def test_one_that_cannot_accept_is_dropped_with_its_reason():
    shm, verbs = TalkingEndpoint(fails="sealed wrongly"), TalkingEndpoint()
    negotiation = Negotiation({"shm": shm, "verbs": verbs})
    negotiation.begin(UNIX)
    negotiation.consider({"shm": Offer(b""), "verbs": Offer(b"")}, {})
    assert tuple(negotiation.offers()) == ("verbs",)
    assert negotiation.reasons() == {"shm": "sealed wrongly"}
    assert states(shm) == ["closed"]
    negotiation.close()


def test_one_that_breaks_is_dropped_and_logged(caplog):
    class Broken(TalkingEndpoint):
        def connection(self, facts):
            raise ZeroDivisionError("oops")

    negotiation = Negotiation({"broken": Broken(), "shm": TalkingEndpoint()})
    negotiation.begin(UNIX)
    assert tuple(negotiation.offers()) == ("shm",)
    assert negotiation.reasons() == {"broken": "ZeroDivisionError: oops"}
    assert "provider broken failed" in caplog.text
    negotiation.close()


def test_descriptors_for_a_provider_that_is_not_here_are_closed(descriptor):
    negotiation = Negotiation({})
    negotiation.begin(UNIX)
    negotiation.consider({"shm": Offer(b"", (descriptor,))}, {})
    assert not is_open(descriptor)


def test_the_accepting_side_keeps_what_the_initiator_uses():
    shm, verbs = TalkingEndpoint(), TalkingEndpoint()
    negotiation = Negotiation({"shm": shm, "verbs": verbs})
    negotiation.begin(UNIX)
    negotiation.consider({"shm": Offer(b""), "verbs": Offer(b"")}, {})
    negotiation.settle(("verbs", "unheard-of"), {"shm": "too small"})
    assert negotiation.attach(object()) == ("verbs",)
    assert negotiation.reasons() == {"shm": "the peer says: too small"}
    assert states(shm) == ["closed"]


def test_closing_twice_is_closing_once():
    shm = TalkingEndpoint()
    negotiation = Negotiation({"shm": shm})
    negotiation.begin(UNIX)
    negotiation.close()
    negotiation.close()
    assert states(shm) == ["closed"]
