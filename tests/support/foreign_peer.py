"""A peer of an engine whose RDMA is none of ours: foreign_verbs behind our protocol.

    python foreign_peer.py pyverbs|ibverbs DEVICE ADDRESS BYTES

May import the handshake; what it says on the stream is made here, byte by byte, after
native/providers/verbs/exchange.h. Its incarnation is lower than any other and so it proposes the
queue pair. A line of JSON on stdin is a wish, and one on stdout its answer.
"""

from __future__ import annotations

import asyncio
import json
import os
import selectors
import socket
import struct
import sys
import time

import msgspec
import numpy as np
from foreign_verbs import PACKAGES, SEQUENCE
from hostile_peer import PING, PONG, frame

from transport.control import handshake
from transport.control.address import parse
from transport.control.doors import dial
from transport.control.handshake import Party
from transport.control.messages import Identity
from transport.control.secret import Secret
from transport.testing.servant import pattern
from transport.types import Offer

VERBS, LINK = 1, 14  # TN_PROVIDER_VERBS, TN_FRAME_LINK
WANT, OFFER, ANSWER, CONFIRM, _, _, REST, RESTED = range(1, 9)
_AGAIN = -1  # TN_AGAIN
_HEADER = struct.Struct("<IBBhQQQQ16sQ")  # struct tn_header
_MESSAGE = struct.Struct("<IIQiIQQQQ16s64s200s")  # struct tn_verbs_message
_ENDS = struct.Struct("<16sQIIIIIIIIII")  # struct tn_verbs_offer
_NOTE = struct.Struct("<QII")  # struct tn_verbs_note, without its payload
_NOTE_BYTES = _NOTE.size + 1024
_SLOTS, _MTU = 64, 4096
_PATIENCE = 60.0  # seconds


class _Verbs:
    """Tells the engine of one rail, and wants nothing else than verbs."""

    def __init__(self, name, gid):
        rail = [0, f"{name}:1", gid, 96 + 24, 0, True, 2, _MTU, 0.0, -1, 16, 16, True]
        self._offer = Offer(msgspec.msgpack.encode([2, 1, [rail]]))
        self.refused = None

    def begin(self, facts):
        del facts

    def offers(self):
        return {"verbs": self._offer}

    def consider(self, offers, reasons):
        self.refused = reasons.get("verbs")
        for offer in offers.values():
            for fd in offer.fds:
                os.close(fd)

    def reasons(self):
        return {}

    def settle(self, providers, reasons):
        del providers, reasons


class ForeignPeer:
    def __init__(self, package, device, address, nbytes):
        self.verbs = PACKAGES[package](device)
        self.memory = np.zeros(nbytes, np.uint8)
        self.ring = np.zeros(_SLOTS * _NOTE_BYTES, np.uint8)
        self.staged = np.zeros(_NOTE_BYTES, np.uint8)
        self.keys = self.verbs.register(self.memory)
        self.ring_keys = self.verbs.register(self.ring)
        self.staged_keys = self.verbs.register(self.staged)
        self.verbs.expect(_SLOTS)
        self.incarnation = bytes(8) + os.urandom(8)
        self.epoch, self.theirs, self.sent, self.completions = 0, None, 0, []
        self.link = self._connect(device, address)

    def _connect(self, device, address):
        negotiator = _Verbs(device, self.verbs.gid)

        async def prove():
            channel = await dial(parse(address))
            me = Identity(self.incarnation, "foreign", os.getpid(), _SLOTS, ())
            secret = Secret(os.environ["TRANSPORT_SECRET"].encode())
            await handshake.initiate(channel, Party(me, secret), negotiator)
            return socket.socket(fileno=channel.detach())

        link = asyncio.run(prove())
        if negotiator.refused:
            raise SystemExit(f"the engine refuses verbs: {negotiator.refused}")
        link.settimeout(_PATIENCE)
        return link

    # ------------------------------------------------------------------------------- the stream
    def hear(self):
        """One frame of the engine's."""
        header = _HEADER.unpack(self._exactly(_HEADER.size))
        kind, length = header[1], header[5]
        has_payload = kind in (4, 5, 7, 10, LINK)
        payload = self._exactly(length) if has_payload else b""
        if kind == PING:
            self.link.sendall(frame(PONG))
        elif kind == LINK and header[6] == VERBS:
            self._take(payload)

    def _exactly(self, count):
        data = b""
        while len(data) < count:
            more = self.link.recv(count - len(data))
            if not more:
                raise SystemExit("the engine closed the link")
            data += more
        return data

    def _take(self, payload):
        kind, lane, epoch, status, *_, ends, text = _MESSAGE.unpack(payload)
        if lane or status < 0:
            raise SystemExit(f"lane {lane}, status {status}: {text.rstrip(bytes(1)).decode()}")
        if kind == REST:
            self._say(RESTED, status=_AGAIN)  # this end uses its queue pair
        elif kind == WANT and not self.epoch:
            self.propose(epoch + 1)
        elif kind == ANSWER and epoch == self.epoch:
            self._meet(_ENDS.unpack(ends))
            self._say(CONFIRM)
        elif kind != WANT:
            raise SystemExit(f"an unexpected message of kind {kind}, epoch {epoch}")

    def _meet(self, ends):
        gid, ring, ring_key, slots, number, sequence, _, mtu = ends[:8]
        code = {256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}[min(mtu, _MTU)]
        self.verbs.connect(number, sequence, gid, code)
        self.theirs = ring, ring_key, slots

    def propose(self, epoch):
        self.epoch = epoch
        ends = _ENDS.pack(
            self.verbs.gid, self.ring.ctypes.data, self.ring_keys[1], _SLOTS, self.verbs.number,
            SEQUENCE, 0, _MTU, 0, 2, 16, 16,
        )  # fmt: skip
        self._say(OFFER, ends)

    def _say(self, kind, ends=b"", status=0):
        message = _MESSAGE.pack(kind, 0, self.epoch, status, 0, 0, 0, 0, 0, b"", ends, b"")
        self.link.sendall(frame(LINK, message, region=VERBS))

    # ------------------------------------------------------------------------------- RDMA
    def open(self):
        """Until there is a queue pair at both ends."""
        if not self.epoch:
            self.propose(1)
        while not self.theirs:
            self.hear()

    def _await(self, received):
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            self.completions += self.verbs.poll()
            for completion in self.completions:
                if completion.received == received or completion.status:
                    self.completions.remove(completion)
                    if completion.status:
                        raise SystemExit(f"work completion status {completion.status}")
                    return completion
        raise SystemExit("no completion came")

    def move(self, op, there, key, length):
        self.open()
        self.verbs.post(op, (self.memory.ctypes.data, self.keys[0]), (there, key), length)
        self._await(received=False)

    def notify(self, region, text):
        """Into the engine's ring, as it is after `sent` notifications."""
        self.open()
        payload = text.encode()
        note = _NOTE.pack(region, len(payload), 0) + payload
        self.staged[: len(note)] = np.frombuffer(note, np.uint8)
        ring, key, slots = self.theirs
        place = ring + self.sent % slots * _NOTE_BYTES
        local = self.staged.ctypes.data, self.staged_keys[0]
        self.verbs.post("write", local, (place, key), len(note), immediate=self.sent)
        self.sent += 1
        self._await(received=False)

    def notified(self):
        """The next notification that the engine writes: its number, region and bytes."""
        completion = self._await(received=True)
        at = completion.immediate % _SLOTS * _NOTE_BYTES
        region, length, _ = _NOTE.unpack_from(self.ring[at : at + _NOTE.size].tobytes())
        payload = self.ring[at + _NOTE.size : at + _NOTE.size + length].tobytes()
        assert completion.nbytes == _NOTE.size + length
        return completion.immediate, region, payload.decode()

    def facts(self):
        memory = {"address": self.memory.ctypes.data, "rkey": self.keys[1]}
        return {"incarnation": self.incarnation.hex(), **memory}

    def fill(self, seed):
        self.memory[:] = pattern(seed, self.memory.nbytes)

    def holds(self, seed):
        return bool(np.array_equal(self.memory, pattern(seed, self.memory.nbytes)))


def main():
    package, device, address, nbytes = sys.argv[1:]
    peer = ForeignPeer(package, device, address, int(nbytes))
    print(json.dumps(peer.facts()), flush=True)
    ready = selectors.DefaultSelector()
    ready.register(peer.link, selectors.EVENT_READ)
    ready.register(0, selectors.EVENT_READ)
    while True:
        for key, _ in ready.select():
            if key.fileobj is peer.link:
                peer.hear()
                continue
            line = sys.stdin.buffer.raw.readline()
            if not line:
                return
            name, *arguments = json.loads(line)
            print(json.dumps(getattr(peer, name)(*arguments)), flush=True)


if __name__ == "__main__":
    main()
