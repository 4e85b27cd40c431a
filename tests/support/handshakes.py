"""Both ends of a handshake over a socket pair, and what a test does with them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket

from control_planes import descriptors

from transport.control import messages as m
from transport.control.channel import Channel
from transport.control.handshake import Party, initiate, respond
from transport.control.secret import Secret

SECRET, OTHER = Secret(b"the right secret"), Secret(b"some other secret")
A, B = b"a" * 16, b"b" * 16


def party(incarnation=A, secret=SECRET):
    return Party(
        m.Identity(incarnation, f"n{incarnation[:1].decode()}", 1, 64, ("unix:@x",)), secret
    )


class Wheel:
    """A negotiator that offers what it is given and remembers what it hears."""

    def __init__(self, offers=None):
        self.mine = dict(offers or {})
        self.facts = None
        self.heard = {}
        self.told = {}
        self.settled = None
        self.descriptors = []

    def begin(self, facts):
        self.facts = facts

    def offers(self):
        return self.mine

    def consider(self, offers, reasons):
        self.heard, self.told = {name: offer.data for name, offer in offers.items()}, dict(reasons)
        self.descriptors = [fd for offer in offers.values() for fd in offer.fds]

    def reasons(self):
        return {"verbs": "no device"}

    def settle(self, providers, reasons):
        self.settled = (providers, dict(reasons))

    def close(self):
        for fd in self.descriptors:
            os.close(fd)


def welcome(peer, facts):
    pass


@contextlib.contextmanager
def no_descriptor_left():
    before = descriptors()
    yield
    assert descriptors() == before


@contextlib.contextmanager
def channels():
    left, right = (Channel(sock) for sock in socket.socketpair())
    try:
        yield left, right
    finally:
        left.close()
        right.close()


def run(coroutine, seconds=60):
    return asyncio.run(asyncio.wait_for(coroutine, seconds))


async def both(one, other, *close):
    """Runs both ends; when one ends with an error its socket closes and so the other ends."""

    async def bounded(coroutine, channel):
        try:
            return await coroutine
        finally:
            if channel is not None:
                channel.close()

    ends = (bounded(one, close[0]), bounded(other, close[1])) if close else (one, other)
    return await asyncio.gather(*ends, return_exceptions=True)


def shake(initiator=None, acceptor=None, *, wheels=None, wanted=None, judge=welcome, link=True):
    mine, theirs = wheels or (Wheel(), Wheel())
    with channels() as (left, right):
        return run(
            both(
                initiate(left, initiator or party(A), mine if link else None, wanted=wanted),
                respond(right, acceptor or party(B), theirs, judge),
                left,
                right,
            )
        )
