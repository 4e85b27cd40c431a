"""Leases by themselves, with a clock of the test's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport import InvalidUse
from transport.mesh.leases import MOST_TOKENS, Leases, Notice, Word, notices

ANN, BOB = b"a" * 16, b"b" * 16


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Grant:
    closed = 0

    def close(self):
        self.closed += 1


@pytest.fixture
def table():
    clock = Clock()
    made = Leases(60.0, clock)
    made.clock = clock
    return made


def say(table, word, lease, who, copies=1):
    table.hear(Notice(word, [lease.token], copies), who)


def test_it_ends_when_the_last_holder_lets_go(table):
    grant = Grant()
    lease = table.lend(grant, copies=2)
    say(table, Word.TOOK, lease, ANN)
    say(table, Word.TOOK, lease, BOB)
    say(table, Word.LET_GO, lease, ANN)
    assert not grant.closed
    say(table, Word.LET_GO, lease, ANN)  # once too often: it counts for nobody else
    assert not grant.closed
    say(table, Word.LET_GO, lease, BOB)
    assert grant.closed == 1
    assert len(table) == 0


def test_one_that_nobody_takes_expires(table):
    grant = Grant()
    table.lend(grant)
    table.clock.now = 59.0
    table.sweep([])
    assert not grant.closed
    table.clock.now = 60.0
    table.sweep([])
    assert grant.closed == 1


def test_holders_that_are_gone_hold_nothing(table):
    grant = Grant()
    lease = table.lend(grant)
    say(table, Word.TOOK, lease, ANN)
    table.clock.now = 1000.0
    table.sweep([ANN, BOB])
    assert not grant.closed
    table.sweep([BOB])
    assert grant.closed == 1


def test_what_is_passed_on_lives_until_it_is_taken(table):
    grant = Grant()
    lease = table.lend(grant)
    say(table, Word.TOOK, lease, ANN)
    say(table, Word.PASSED, lease, ANN)
    say(table, Word.LET_GO, lease, ANN)
    assert not grant.closed
    say(table, Word.TOOK, lease, BOB)
    say(table, Word.LET_GO, lease, BOB)
    assert grant.closed == 1


def test_whoever_took_it_and_went_at_once_does_not_keep_it(table):
    grant = Grant()
    lease = table.lend(grant)
    say(table, Word.TOOK, lease, None)
    assert grant.closed == 1


def test_unknown_leases_are_nobody_s(table):
    grant = Grant()
    table.lend(grant)
    table.hear(Notice(Word.LET_GO, [b"unknown!"]), ANN)
    assert not grant.closed
    table.close()
    assert grant.closed == 1


@given(st.lists(st.binary(min_size=8, max_size=8), max_size=300), st.sampled_from(Word))
def test_notices_travel(tokens, word):
    made = [Notice.decode(notice.encode()) for notice in notices(word, tokens)]
    assert [token for notice in made for token in notice.tokens] == tokens
    assert all(len(notice.encode()) <= 1024 for notice in made)
    assert all(len(notice.tokens) <= MOST_TOKENS for notice in made)


@given(st.binary(max_size=1024))
def test_other_bytes_are_refused(data):
    try:
        notice = Notice.decode(data)
    except InvalidUse:
        return
    assert all(len(token) == 8 for token in notice.tokens)
    assert notice.copies > 0
