"""Who is there, proven both ways, and what each side's providers must know: how a link begins.

May import channel, messages, secret and errors; knows neither C nor the tables of peers. Initiator
and acceptor are one coroutine each over a Channel; the caller bounds them in time and closes the
channel on every path.

    initiator                                   acceptor
      preamble, Hello(identity, nonce) ------->
               <------ preamble, Challenge(identity, nonce) or Refuse
      Proven Commit(offers, descriptors) ----->   checks the proof, then decides
               <------ Proven Accept(offers, descriptors) or Refuse
      Proven Ready(providers) ---------------->   checks it; the link is up on both sides

A proof is HMAC-SHA256 (RFC 2104) under the job's secret of the role and of the SHA-256 of every
byte said before it (which holds both nonces, both incarnations and all offers) and of the message
that carries it. So it fits one conversation, one role and one step: replayed or reflected ones
fail. The initiator proves first. Without a secret the proofs only tie the conversation together,
and what counts is the kernel's word on the peer's uid.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from transport.control import messages as m
from transport.errors import PeerLost, PeerRefused, StaleRegion, VersionMismatch
from transport.types import LinkFacts, Offer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transport.control.channel import Channel
    from transport.control.secret import Secret

_INITIATOR, _ACCEPTOR, _READY, _STREAMS = b"initiator", b"acceptor", b"ready", b"streams"
_NO_KEY = b"tensor-transport: no secret"


class Refused(PeerRefused):
    """A refusal with its code, one of messages.DUPLICATE, CLOSING, SECRET.

    `heard` tells the peer's from our own, which is still to be said.
    """

    def __init__(self, code: str = "", text: str = "", *, heard: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.heard = heard


class Stale(StaleRegion):
    """The engine that answers is another incarnation than the wanted one."""


class Oneself(Exception):
    """Both ends claim the same incarnation; `nonce` is the initiator's."""

    def __init__(self, nonce: bytes) -> None:
        super().__init__("both ends have the same incarnation")
        self.nonce = nonce


class Joins(Exception):
    """The socket is one more stream of a link that is up (streams.py), not a new one."""

    def __init__(self, join: m.Join) -> None:
        super().__init__("a socket that joins a link")
        self.join = join


class Negotiator(Protocol):
    """What the handshake asks of the providers; none of it may block."""

    def begin(self, facts: LinkFacts) -> None:
        """Who is at the other end, proven on the accepting side only."""

    def offers(self) -> Mapping[str, Offer]:
        """Of the providers that are still in the game."""
        ...

    def consider(self, offers: Mapping[str, Offer], reasons: Mapping[str, str]) -> None:
        """The proven peer's offers (takes their descriptors), and why it makes no others."""

    def reasons(self) -> dict[str, str]:
        """Why some providers are not used, or not even there: for the peer, bounded."""
        ...

    def settle(self, providers: tuple[str, ...], reasons: Mapping[str, str]) -> None:
        """Accepting side: the initiator uses exactly these."""


class Judge(Protocol):
    """Told who is there at the moment that counts; raises Refused when the link is not wanted."""

    def __call__(self, peer: m.Identity, facts: LinkFacts) -> None: ...


@dataclass(frozen=True)
class Party:
    """What this engine brings along."""

    identity: m.Identity
    secret: Secret | None = field(repr=False)


@dataclass(frozen=True)
class Outcome:
    """A finished handshake. `link` is False when the initiator only wanted to know who is there.

    `key` is from what the keys of further sockets are made; None without a secret.
    """

    peer: m.Identity
    facts: LinkFacts
    link: bool
    key: bytes | None = field(default=None, repr=False)


class _Conversation:
    """The transcript, and the proofs made from it."""

    def __init__(self, channel: Channel, secret: Secret | None) -> None:
        self.channel = channel
        self._secret = secret
        self._hash = hashlib.sha256(m.PREAMBLE)

    async def say(
        self, message: m.Handshake, fds: tuple[int, ...] = (), *, before: bytes = b""
    ) -> None:
        data = m.frame(message)
        self._hash.update(data)
        await self.channel.write(before + data, fds)

    def key(self) -> bytes | None:
        """What only the two ends of this conversation can derive from it."""
        return self._secret.proof(_STREAMS, self._hash.digest()) if self._secret else None

    async def hear(self, expected: type[m.Expected], *, descriptors: bool = False) -> m.Expected:
        body = await self.channel.read_frame(descriptors=descriptors)
        return self._heard(body, expected)

    async def hear_first(self) -> m.Hello:
        """Raises Joins."""
        body = await self.channel.read_frame()
        if m.is_join(body):
            raise Joins(self._heard(body, m.Join))
        return self._heard(body, m.Hello)

    def _heard(self, body: bytes, expected: type[m.Expected]) -> m.Expected:
        message = m.decode_handshake(body, expected)
        if isinstance(message, m.Refuse):
            text = f"the peer refused: {m.printable(message.text)}"
            raise Refused(message.code, text, heard=True)
        self._hash.update(m.LENGTH.pack(len(body)) + body)
        return message

    async def prove(
        self, role: bytes, message: m.Commit | m.Accept | m.Ready, fds: tuple[int, ...] = ()
    ) -> None:
        body = m.encode(message)
        await self.say(m.Proven(self._proof(self._hash, role, body), body), fds)

    async def hear_proven(
        self, role: bytes, expected: type[m.Expected], *, descriptors: bool = False
    ) -> m.Expected:
        before = self._hash.copy()
        message = await self.hear(m.Proven, descriptors=descriptors)
        if not hmac.compare_digest(message.proof, self._proof(before, role, message.body)):
            raise Refused(m.SECRET, "the proof is wrong: the two engines have different secrets")
        return m.decode_proven(message.body, expected)

    def _proof(self, transcript: hashlib._Hash, role: bytes, body: bytes) -> bytes:
        covered = transcript.copy()
        covered.update(body)
        if self._secret is not None:
            return self._secret.proof(role, covered.digest())
        return hmac.digest(_NO_KEY, role + b"\0" + covered.digest(), "sha256")


async def initiate(
    channel: Channel,
    party: Party,
    negotiator: Negotiator | None,
    *,
    wanted: bytes | None = None,
    challenged: Judge | None = None,
) -> Outcome:
    """The connecting side; without a negotiator it only finds out, proven, who is there.

    `challenged` is told who answers before the proof leaves. Raises Stale, Refused, PeerRefused,
    PeerLost, VersionMismatch or Oneself.
    """
    check_user(channel, party.secret)
    talk = _Conversation(channel, party.secret)
    nonce = secrets.token_bytes(m.NONCE_BYTES)
    hello = m.Hello(party.identity, nonce, wanted, party.secret is not None)
    await talk.say(hello, before=m.PREAMBLE)
    m.check_preamble(await channel.read(m.PREAMBLE_BYTES))
    peer = (await talk.hear(m.Challenge)).identity
    if wanted is not None and peer.incarnation != wanted:
        raise Stale("the engine there is another incarnation: the owner restarted")
    if peer.incarnation == party.identity.incarnation:
        raise Oneself(nonce)
    facts = _facts(channel, peer, initiator=True)
    if challenged is not None:
        challenged(peer, facts)
    await _commit(talk, negotiator, facts)
    return Outcome(peer, facts, negotiator is not None, talk.key())


async def _commit(talk: _Conversation, negotiator: Negotiator | None, facts: LinkFacts) -> None:
    if negotiator is None:
        await talk.prove(_INITIATOR, m.Commit(False, ()))
        await talk.hear_proven(_ACCEPTOR, m.Accept)
        return
    negotiator.begin(facts)
    offers, fds = _pack(negotiator.offers())
    await talk.prove(_INITIATOR, m.Commit(True, offers, negotiator.reasons()), fds)
    accept = await talk.hear_proven(_ACCEPTOR, m.Accept, descriptors=True)
    negotiator.consider(_unpack(talk.channel, accept.offers), accept.reasons)
    ready = m.Ready(tuple(negotiator.offers()), negotiator.reasons())
    await talk.prove(_READY, ready)


async def respond(channel: Channel, party: Party, negotiator: Negotiator, judge: Judge) -> Outcome:
    """The accepting side. `judge` decides, once the initiator is proven, whether it gets a link.

    Raises as initiate does, or Joins; a refusal of ours has been said by then.
    """
    check_user(channel, party.secret)
    await _check_version(channel)
    talk = _Conversation(channel, party.secret)
    try:
        return await _respond(talk, party, negotiator, judge)
    except Refused as refusal:
        if not refusal.heard:
            with contextlib.suppress(PeerLost):  # our reason counts, not that it went away
                await talk.say(m.Refuse(refusal.code, str(refusal)))
                await channel.drain()
        raise


async def _respond(
    talk: _Conversation, party: Party, negotiator: Negotiator, judge: Judge
) -> Outcome:
    hello = await _hello(talk, party)
    commit = await talk.hear_proven(_INITIATOR, m.Commit, descriptors=True)
    theirs = _unpack(talk.channel, commit.offers)
    facts = _facts(talk.channel, hello.identity, initiator=False)
    if not commit.link:
        _close_all(theirs)
        await talk.prove(_ACCEPTOR, m.Accept((), {}))
        return Outcome(hello.identity, facts, False)
    try:
        judge(hello.identity, facts)
        negotiator.begin(facts)
    except BaseException:
        _close_all(theirs)
        raise
    negotiator.consider(theirs, commit.reasons)
    offers, fds = _pack(negotiator.offers())
    await talk.prove(_ACCEPTOR, m.Accept(offers, negotiator.reasons()), fds)
    ready = await talk.hear_proven(_READY, m.Ready)
    negotiator.settle(ready.providers, ready.reasons)
    return Outcome(hello.identity, facts, True, talk.key())


async def _hello(talk: _Conversation, party: Party) -> m.Hello:
    hello = await talk.hear_first()
    # Before the first frame even a refusal needs it: the initiator reads it first.
    challenge = m.Challenge(party.identity, secrets.token_bytes(m.NONCE_BYTES))
    await talk.say(challenge, before=m.PREAMBLE)
    mine = party.identity.incarnation
    if hello.identity.incarnation == mine:
        raise Oneself(hello.nonce)
    if hello.wanted not in (None, mine):
        raise Stale("a peer looks for an earlier engine at this address")
    if hello.secret != (party.secret is not None):
        has, lacks = ("acceptor", "initiator") if party.secret else ("initiator", "acceptor")
        raise Refused(m.SECRET, f"the {has} proves itself with a secret and the {lacks} has none")
    return hello


async def _check_version(channel: Channel) -> None:
    preamble = await channel.read(m.PREAMBLE_BYTES)
    try:
        m.check_preamble(preamble)
    except VersionMismatch:
        if m.is_ours(preamble):
            await channel.write(m.PREAMBLE)  # so that the other release can say what is wrong
            await channel.drain()
        raise


def check_user(channel: Channel, secret: Secret | None) -> None:
    """Unix sockets serve one user only, TCP needs the secret; checked before a byte is read."""
    if channel.is_unix and channel.uid != os.geteuid():
        raise PeerRefused(f"the process at the other end belongs to another user ({channel.uid})")
    if not channel.is_unix and secret is None:
        raise PeerRefused("TCP needs the job's secret and this engine has none (secret=False)")


def _facts(channel: Channel, peer: m.Identity, *, initiator: bool) -> LinkFacts:
    return LinkFacts(channel.is_unix, channel.pid, channel.uid, initiator, peer.incarnation)


def _pack(offers: Mapping[str, Offer]) -> tuple[tuple[m.ProviderOffer, ...], tuple[int, ...]]:
    packed = tuple(m.ProviderOffer(name, o.data, len(o.fds)) for name, o in offers.items())
    return packed, tuple(fd for offer in offers.values() for fd in offer.fds)


def _unpack(channel: Channel, packed: tuple[m.ProviderOffer, ...]) -> dict[str, Offer]:
    """Hands the descriptors out in the order of the offers. The peer is proven by now."""
    names = {offer.provider for offer in packed}
    if len(names) != len(packed) or sum(o.descriptors for o in packed) != channel.received:
        raise PeerRefused("the peer broke the handshake protocol: offers and descriptors differ")
    return {o.provider: Offer(o.data, channel.take(o.descriptors)) for o in packed}


def _close_all(offers: Mapping[str, Offer]) -> None:
    for offer in offers.values():
        for fd in offer.fds:
            os.close(fd)
