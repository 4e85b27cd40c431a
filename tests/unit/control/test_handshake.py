"""Two coroutines over a socket pair: the good case, every kind of stranger, every kind of lie."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket

import pytest
from handshakes import (
    OTHER,
    SECRET,
    A,
    B,
    Wheel,
    both,
    channels,
    no_descriptor_left,
    party,
    run,
    shake,
    welcome,
)

from transport.control import messages as m
from transport.control.channel import Channel
from transport.control.handshake import Oneself, Refused, Stale, initiate, respond
from transport.errors import PeerError, PeerLost, PeerRefused, VersionMismatch
from transport.types import Offer


# ---------------------------------------------------------------------------------- the good case
def test_both_learn_who_is_there_and_what_they_offer():
    wheels = Wheel({"shm": Offer(b"mine")}), Wheel({"shm": Offer(b"yours")})
    ours, theirs = shake(wheels=wheels, wanted=B)
    assert (ours.peer.name, theirs.peer.name) == ("nb", "na")
    assert ours.facts.initiator
    assert not theirs.facts.initiator
    assert (ours.facts.pid, ours.facts.uid) == (os.getpid(), os.geteuid())
    assert ours.link
    assert theirs.link
    assert (wheels[0].heard, wheels[1].heard) == ({"shm": b"yours"}, {"shm": b"mine"})
    assert wheels[0].told == wheels[1].told == {"verbs": "no device"}
    assert wheels[1].settled == (("shm",), {"verbs": "no device"})


def test_nothing_is_read_beyond_the_last_frame():
    async def talk():
        with channels() as (left, right):
            await asyncio.gather(
                initiate(left, party(A), Wheel()), respond(right, party(B), Wheel(), welcome)
            )
            await left.write(b"the link's first bytes")
            await right.write(b"and those of the other side")
            for channel, expected in (
                (right, b"the link's first bytes"),
                (left, b"and those of the other side"),
            ):
                with socket.socket(fileno=channel.detach()) as sock:
                    assert sock.recv(100) == expected

    run(talk())


def test_the_links_first_bytes_may_come_together_with_ready():
    async def talk():
        with channels() as (left, right):

            async def eager():
                await initiate(left, party(A), Wheel())
                await left.write(b"data")

            await asyncio.gather(eager(), respond(right, party(B), Wheel(), welcome))
            assert await right.read(4) == b"data"

    run(talk())


def test_descriptors_travel_with_their_offers():
    with no_descriptor_left():
        pipes = [os.pipe(), os.pipe()]
        wheels = (
            Wheel({"shm": Offer(b"1", (pipes[0][0],)), "x": Offer(b"2", (pipes[1][0],))}),
            Wheel({"shm": Offer(b"3", (pipes[1][0], pipes[0][0]))}),
        )
        ours, theirs = shake(wheels=wheels)
        assert ours.link
        assert theirs.link
        inodes = [[os.fstat(fd).st_ino for fd in wheel.descriptors] for wheel in wheels]
        expected = [os.fstat(pipe[0]).st_ino for pipe in pipes]
        assert inodes == [expected[::-1], expected]
        assert not any(os.get_inheritable(fd) for wheel in wheels for fd in wheel.descriptors)
        for wheel in wheels:
            wheel.close()
        for fd in (*pipes[0], *pipes[1]):
            os.close(fd)


def test_asking_who_is_there_makes_no_link():
    judged = []
    ours, theirs = shake(link=False, judge=lambda *_: judged.append(1))
    assert ours.peer.incarnation == B
    assert not ours.link
    assert not theirs.link
    assert not judged


def test_without_secrets_a_unix_socket_of_the_same_user_is_enough():
    ours, theirs = shake(party(A, None), party(B, None))
    assert ours.link
    assert theirs.link


def test_a_party_does_not_show_its_secret():
    assert "secret=" not in repr(party())


# --------------------------------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (SECRET, OTHER, "different secrets"),
        (SECRET, None, "initiator proves itself with a secret and the acceptor has none"),
        (None, SECRET, "acceptor proves itself with a secret and the initiator has none"),
    ],
)
def test_secrets_must_be_the_same(one, other, words):
    judged = []
    wheels = Wheel({"shm": Offer(b"private")}), Wheel()
    ours, theirs = shake(
        party(A, one), party(B, other), wheels=wheels, judge=lambda *_: judged.append(1)
    )
    assert isinstance(ours, Refused)
    assert ours.heard
    assert words in str(ours)
    assert isinstance(theirs, Refused)
    assert theirs.code == m.SECRET
    assert not judged
    assert not wheels[1].heard


def test_a_wrong_secret_leaves_no_descriptor_behind():
    with no_descriptor_left():
        read, write = os.pipe()
        shake(party(A, OTHER), wheels=(Wheel({"shm": Offer(b"", (read,))}), Wheel()))
        os.close(read)
        os.close(write)


def test_an_acceptor_that_cannot_prove_itself_is_refused():
    async def impostor(channel):
        """Has no secret: accepts every proof and makes one up."""
        await channel.read(m.PREAMBLE_BYTES)
        await channel.read_frame()
        await channel.write(m.PREAMBLE + m.frame(m.Challenge(party(B).identity, bytes(32))))
        await channel.read_frame(descriptors=True)
        accept = m.encode(m.Accept((m.ProviderOffer("shm", b"evil", 0),), {}))
        await channel.write(m.frame(m.Proven(bytes(32), accept)))
        with contextlib.suppress(PeerError):
            await channel.read_frame()

    wheel = Wheel({"shm": Offer(b"mine")})
    with channels() as (left, right):
        ours, _ = run(both(initiate(left, party(A), wheel), impostor(right), left, right))
    assert isinstance(ours, Refused)
    assert ours.code == m.SECRET
    assert not wheel.heard


def test_the_wrong_incarnation_is_stale():
    ours, theirs = shake(wanted=b"c" * 16)
    assert isinstance(ours, Stale)
    assert isinstance(theirs, (Stale, PeerLost))


def test_the_judges_word_reaches_the_initiator():
    def no(peer, facts):
        raise Refused(m.DUPLICATE, "you are here already")

    with no_descriptor_left():
        read, write = os.pipe()
        wheels = Wheel({"shm": Offer(b"", (read,))}), Wheel()
        ours, theirs = shake(wheels=wheels, judge=no)
        os.close(read)
        os.close(write)
    assert (ours.code, ours.heard, theirs.heard) == (m.DUPLICATE, True, False)
    assert "you are here already" in str(ours)
    assert not wheels[1].heard


def test_a_refusal_cannot_forge_log_lines():
    async def rude(channel):
        await channel.read(m.PREAMBLE_BYTES)
        await channel.read_frame()
        await channel.write(m.PREAMBLE + m.frame(m.Refuse("x", "a\nCRITICAL \x1b[31mforged")))
        with contextlib.suppress(PeerError):
            await channel.read(1)

    with channels() as (left, right):
        ours, _ = run(both(initiate(left, party(A), Wheel()), rude(right), left, right))
    assert str(ours) == "the peer refused: a?CRITICAL ?[31mforged"


def test_both_ends_of_one_engine_find_out():
    ours, theirs = shake(party(A), party(A))
    assert isinstance(ours, Oneself)
    assert isinstance(theirs, Oneself)
    assert ours.nonce == theirs.nonce


# ---------------------------------------------------------------------------- strangers and liars
async def accept_from(data, *, close=True):
    """An acceptor that is sent exactly these bytes; its error, and what it said."""
    left, right = socket.socketpair()
    channel = Channel(right)
    try:
        left.setblocking(False)
        left.sendall(data)
        if close:
            left.shutdown(socket.SHUT_WR)
        try:
            await respond(channel, party(B), Wheel(), welcome)
        except Exception as error:
            said = b""
            with contextlib.suppress(BlockingIOError):
                said = left.recv(1 << 16)
            return error, said
        raise AssertionError("accepted")
    finally:
        channel.close()
        left.close()


HELLO = m.PREAMBLE + m.frame(m.Hello(party(A).identity, bytes(32), None, True))


def test_an_http_request_is_told_nothing():
    error, said = run(accept_from(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
    assert isinstance(error, VersionMismatch)
    assert said == b""


def test_a_newer_release_is_told_our_version():
    error, said = run(accept_from(b"TENSOR\x09\0" + b"who knows what"))
    assert isinstance(error, VersionMismatch)
    assert "version 9" in str(error)
    assert said == m.PREAMBLE


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"TENSOR\x09\0"])
def test_the_initiator_says_what_answers(answer):
    async def foreign(channel):
        await channel.read(m.PREAMBLE_BYTES)
        await channel.write(answer)
        await channel.drain()

    with channels() as (left, right):
        ours, _ = run(both(initiate(left, party(A), Wheel()), foreign(right), left, right))
    assert isinstance(ours, VersionMismatch)


@pytest.mark.parametrize("length", [0, m.MAX_FRAME + 1, 0x7FFFFFFF, 0xFFFFFFFF])
def test_a_length_out_of_bounds_is_refused_before_a_byte_of_it_is_read(length):
    data = m.PREAMBLE + m.LENGTH.pack(length)
    error, said = run(accept_from(data, close=False))
    assert isinstance(error, PeerRefused)
    assert f"a frame of {length} bytes" in str(error)
    assert said == b""


def test_a_hello_cut_at_every_byte_is_a_lost_peer():
    async def all_cuts():
        for length in range(len(HELLO)):
            error, _ = await accept_from(HELLO[:length])
            assert isinstance(error, PeerLost), length

    run(all_cuts(), 20)


async def relayed(cut_there=None, cut_back=None, change=lambda direction, data: data, patience=5.0):
    """A handshake through a middleman who forwards so many bytes each way, or changes them."""
    left, middle_left = socket.socketpair()
    middle_right, right = socket.socketpair()
    ends = Channel(left), Channel(right)
    middle = Channel(middle_left), Channel(middle_right)

    async def forward(source, target, cut, direction):
        passed = 0
        with contextlib.suppress(PeerError, OSError):
            while cut is None or passed < cut:
                data = change(direction, await source.read(1))
                passed += 1
                await target.write(data)
        hang_up(*middle)

    async def end(coroutine, channel):
        try:
            return await asyncio.wait_for(coroutine, patience)
        finally:
            hang_up(channel)

    pumps = [
        asyncio.ensure_future(forward(*middle, cut_there, "there")),
        asyncio.ensure_future(forward(*middle[::-1], cut_back, "back")),
    ]
    try:
        return await asyncio.gather(
            end(initiate(ends[0], party(A), Wheel({"shm": Offer(b"o")})), ends[0]),
            end(respond(ends[1], party(B), Wheel({"shm": Offer(b"p")}), welcome), ends[1]),
            return_exceptions=True,
        )
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        for channel in (*ends, *middle):
            channel.close()


def hang_up(*channels):
    for channel in channels:
        with contextlib.suppress(OSError):
            channel._socket.shutdown(socket.SHUT_RDWR)


async def lengths():
    """How many bytes a whole handshake has in each direction."""
    counts = {"there": 0, "back": 0}

    def count(direction, data):
        counts[direction] += 1
        return data

    ours, theirs = await relayed(change=count)
    assert ours.link
    assert theirs.link
    return counts["there"], counts["back"]


def test_a_handshake_cut_at_any_byte_ends_as_a_lost_peer_on_the_side_that_waits():
    async def all_cuts():
        there, back = await lengths()
        for cut in range(0, there, 3):
            _, theirs = await relayed(cut_there=cut)
            assert isinstance(theirs, PeerLost), cut
        for cut in range(0, back, 3):
            ours, theirs = await relayed(cut_back=cut)
            assert isinstance(ours, PeerLost), cut
            assert isinstance(theirs, PeerLost), cut

    run(all_cuts(), 30)


@pytest.mark.parametrize("direction", ["there", "back"])
def test_a_middleman_who_changes_any_byte_is_found_out(direction):
    """Whatever is flipped, nobody brings up a link on the strength of changed words."""

    async def all_flips():
        total = dict(zip(("there", "back"), await lengths()))[direction]
        for at in range(8, total, 5):
            seen = 0

            def flip(way, data, at=at):
                nonlocal seen
                if way != direction:
                    return data
                seen += 1
                return bytes((data[0] ^ 0x01,)) if seen - 1 == at else data

            # A flipped length makes a reader wait for more than there is.
            ours, theirs = await relayed(change=flip, patience=0.2)
            assert isinstance(theirs, Exception), at
            if direction == "back":
                assert isinstance(ours, Exception), at

    run(all_flips(), 60)


def test_a_peer_that_echoes_our_own_words_is_refused():
    async def mirror(channel):
        with contextlib.suppress(PeerError):
            while True:
                await channel.write(await channel.read(1))

    with channels() as (left, right):
        ours, _ = run(both(initiate(left, party(A), Wheel()), mirror(right), left, right))
    assert isinstance(ours, PeerRefused)
    assert "hello where challenge was due" in str(ours)


def test_our_own_proof_is_not_a_proof_to_us():
    """The mirror fakes the challenge and gives our proof back as its own."""

    async def mirror(channel):
        await channel.read(m.PREAMBLE_BYTES)
        hello = m.decode_handshake(await channel.read_frame(), m.Hello)
        await channel.write(m.PREAMBLE + m.frame(m.Challenge(party(B).identity, hello.nonce)))
        proven = await channel.read_frame()
        await channel.write(m.LENGTH.pack(len(proven)) + proven)
        with contextlib.suppress(PeerError):
            await channel.read(1)

    with channels() as (left, right):
        ours, _ = run(both(initiate(left, party(A), Wheel()), mirror(right), left, right))
    assert isinstance(ours, Refused)
    assert ours.code == m.SECRET


def test_a_recorded_conversation_is_worth_nothing():
    async def replay():
        recorded = bytearray()

        def record(direction, data):
            if direction == "there":
                recorded.extend(data)
            return data

        await relayed(change=record)
        return await accept_from(bytes(recorded))

    error, _ = run(replay())
    assert isinstance(error, Refused)
    assert error.code == m.SECRET


def test_descriptors_where_none_belong_never_arrive():
    """On the frames before the proof the kernel drops them."""

    async def pushy():
        with channels() as (left, right):
            read, write = os.pipe()
            await left.write(HELLO, (read, write))
            with pytest.raises((PeerError, asyncio.TimeoutError)):
                await asyncio.wait_for(respond(right, party(B), Wheel(), welcome), 0.05)
            assert right.received == 0
            os.close(read)
            os.close(write)

    with no_descriptor_left():
        run(pushy())


@pytest.mark.parametrize("count", [1, 17, 40])
def test_descriptors_that_no_offer_names_are_closed(count):
    async def pushy():
        with channels() as (left, right):
            read, write = os.pipe()

            async def initiator():
                wheel = Wheel()
                write_once = left.write

                async def with_descriptors(data, descriptors=()):
                    extra = (read,) * count if not data.startswith(m.PREAMBLE) else ()
                    await write_once(data, extra)

                left.write = with_descriptors
                await initiate(left, party(A), wheel)

            ours, theirs = await both(
                initiator(), respond(right, party(B), Wheel(), welcome), left, right
            )
            os.close(read)
            os.close(write)
            return ours, theirs

    with no_descriptor_left():
        _, theirs = run(pushy())
    assert isinstance(theirs, PeerRefused)
    assert "descriptors" in str(theirs)


def test_cancelling_leaves_nothing_behind():
    async def abandoned():
        with channels() as (left, right):
            task = asyncio.ensure_future(respond(right, party(B), Wheel(), welcome))
            await left.write(HELLO[:20])
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    with no_descriptor_left():
        run(abandoned())


# -------------------------------------------------------------------------------------------- tcp
def test_tcp_needs_a_secret_before_a_byte_is_read():
    async def talk():
        server = socket.create_server(("127.0.0.1", 0))
        with server, socket.create_connection(server.getsockname()) as client:
            accepted, _ = server.accept()
            left, right = Channel(client), Channel(accepted)
            try:
                assert (right.pid, right.uid) == (0, -1)
                for coroutine in (
                    initiate(left, party(A, None), Wheel()),
                    respond(right, party(B, None), Wheel(), welcome),
                ):
                    with pytest.raises(PeerRefused, match="TCP needs the job's secret"):
                        await coroutine
                ours, theirs = await both(
                    initiate(left, party(A), Wheel()), respond(right, party(B), Wheel(), welcome)
                )
                assert not ours.facts.is_unix
                assert theirs.link
            finally:
                left.close()
                right.close()

    run(talk())


def test_another_user_is_refused_before_a_byte_is_read(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    ours, theirs = shake()
    assert "another user" in str(ours)
    assert "another user" in str(theirs)
