"""Two engines that connect to each other at once end with one link, whatever the timing."""

from __future__ import annotations

import collections
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.control.arbiter import Situation, Verdict, judge

LOW, HIGH = b"a" * 16, b"b" * 16


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        ({}, Verdict.ACCEPT),
        ({"challenged": True}, Verdict.DUPLICATE),
        ({"challenged": True, "mine": HIGH, "theirs": LOW}, Verdict.ACCEPT),
        ({"link_at": 11}, Verdict.DUPLICATE),
        ({"link_at": 9}, Verdict.REPLACE),
        ({"link_at": 9, "challenged": True}, Verdict.REPLACE),
        ({"inbound_at": 11}, Verdict.DUPLICATE),
        ({"inbound_at": 9}, Verdict.ACCEPT),
    ],
)
def test_each_rule(facts, verdict):
    assert judge(Situation(**{"mine": LOW, "theirs": HIGH, "came_at": 10, **facts})) is verdict


class Connection:
    """Words in flight, in order in each direction."""

    def __init__(self, initiator, acceptor):
        self.initiator, self.acceptor = initiator, acceptor
        self.there, self.back = collections.deque(["hello"]), collections.deque()
        self.came_at = None


class Node:
    """One engine as the connector behaves, with words instead of sockets."""

    def __init__(self, incarnation):
        self.incarnation = incarnation
        self.clock = itertools.count(1)
        self.other = None
        self.attempt = self.inbound = self.link = self.link_at = None
        self.challenged = False
        self.replaced = 0
        self.starts_left = 1 << 30

    def may_start(self):
        idle = self.attempt is None and self.inbound is None and self.link is None
        return idle and self.starts_left > 0

    def start(self):
        self.starts_left -= 1
        self.attempt = Connection(self, self.other)
        return self.attempt

    def situation(self, connection):
        return Situation(
            self.incarnation,
            self.other.incarnation,
            connection.came_at,
            challenged=self.challenged,
            link_at=self.link_at,
            inbound_at=self.inbound.came_at if self.inbound else None,
        )

    def end_attempt(self, *, say=None):
        if self.attempt is not None and say:
            self.attempt.there.append(say)
        self.attempt, self.challenged = None, False

    def lose_link(self):
        self.link = self.link_at = None

    def come_up(self, connection):
        self.link, self.link_at = connection, next(self.clock)

    def accept_word(self, connection, word):
        """As the accepting side."""
        if word == "hello":
            connection.came_at = next(self.clock)
            connection.back.append("challenge")
        elif word == "commit":
            self.decide(connection)
        elif word == "ready" and self.inbound is connection:
            self.inbound = None
            self.come_up(connection)
        elif word == "end":
            if self.inbound is connection:
                self.inbound = None
            if self.link is connection:
                self.lose_link()

    def decide(self, connection):
        verdict = judge(self.situation(connection))
        if verdict is Verdict.DUPLICATE:
            connection.back.append("duplicate")
            return
        if verdict is Verdict.REPLACE:
            self.replaced += 1
            self.hang_up()
        if self.inbound is not None:
            self.inbound.back.append("end")
        self.end_attempt(say="end")
        self.inbound = connection
        connection.back.append("accept")

    def initiator_word(self, connection, word):
        """As the connecting side."""
        if word == "end" and self.link is connection:
            self.lose_link()
        if self.attempt is not connection:
            return
        if word == "challenge":
            self.challenged = True
            connection.there.append("commit")
        elif word == "accept":
            self.end_attempt()
            connection.there.append("ready")
            self.come_up(connection)
        elif word in ("duplicate", "end"):
            self.end_attempt()

    def hang_up(self):
        link, _ = self.link, self.lose_link()
        way = link.there if link.initiator is self else link.back
        way.append("end")


class World:
    def __init__(self, swapped):
        self.low, self.high = Node(LOW), Node(HIGH)
        self.low.other, self.high.other = self.high, self.low
        self.nodes = (self.high, self.low) if swapped else (self.low, self.high)
        self.connections = []

    def moves(self, *, breaking):
        moves = [
            lambda n=n: self.connections.append(n.start()) for n in self.nodes if n.may_start()
        ]
        for c in self.connections:
            if c.there:
                moves.append(lambda c=c: c.acceptor.accept_word(c, c.there.popleft()))
            if c.back:
                moves.append(lambda c=c: c.initiator.initiator_word(c, c.back.popleft()))
        if breaking:
            moves += [n.hang_up for n in self.nodes if n.link is not None]
        return moves

    def settle(self):
        """Fair play to the end: deliver everything in turn; who has nothing tries again."""
        for _ in range(500):
            moves = self.moves(breaking=False)
            if not moves:
                return
            for move in moves[-1:] if len(moves) > 6 else moves[:1]:
                move()
        raise AssertionError("they never agree")


@given(st.booleans(), st.lists(st.integers(0, 1 << 16), max_size=60))
def test_any_timing_ends_with_one_link_that_both_sides_have(swapped, choices):
    world = World(swapped)
    for choice in choices:
        moves = world.moves(breaking=False)
        if not moves:
            break
        moves[choice % len(moves)]()
    world.settle()
    assert world.low.link is not None
    assert world.low.link is world.high.link
    assert world.low.replaced == world.high.replaced == 0, "a link that both had was thrown away"


@given(st.booleans(), st.lists(st.integers(0, 1 << 16), max_size=60))
def test_one_try_on_each_side_is_enough(swapped, choices):
    """They neither refuse each other nor give way to each other."""
    world = World(swapped)
    world.low.starts_left = world.high.starts_left = 1
    for choice in choices:
        moves = world.moves(breaking=False)
        if not moves:
            break
        moves[choice % len(moves)]()
    world.settle()
    assert world.low.link is not None
    assert world.low.link is world.high.link


@pytest.mark.parametrize("silent", [LOW, HIGH])
def test_a_side_that_does_not_connect_is_connected_to(silent):
    world = World(swapped=False)
    for node in world.nodes:
        node.starts_left = 0 if node.incarnation == silent else 1
    world.settle()
    assert world.low.link is not None
    assert world.low.link is world.high.link


@given(st.booleans(), st.lists(st.integers(0, 1 << 16), max_size=80))
def test_links_that_break_at_any_time_are_made_again(swapped, choices):
    world = World(swapped)
    for choice in choices:
        moves = world.moves(breaking=True)
        moves[choice % len(moves)]()
    world.settle()
    assert world.low.link is not None
    assert world.low.link is world.high.link
