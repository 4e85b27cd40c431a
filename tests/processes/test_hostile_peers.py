"""Peers that hold the secret and break the protocol: they lose their link, nobody else does."""

from __future__ import annotations

import os
import random
import socket
import struct
import time
from array import array

import hostile_peer as hostile
import numpy as np
import pytest
from hostile_peer import CONTROL, frame

from transport import Engine
from transport.control import messages
from transport.memory.remote import NATIVE
from transport.testing.processes import PeerProcess
from transport.testing.servant import pattern

WAIT = 60.0
SECRET = "a secret for hostile tests only"
NBYTES = 100_000


@pytest.fixture(scope="module")
def far():
    with PeerProcess() as process:
        process.call("open", secret=SECRET, listen="127.0.0.1:0")
        yield process


@pytest.fixture(scope="module")
def remote(far):
    return far.call("make", "x", NBYTES, seed=1)


@pytest.fixture
def good(remote):
    """An honest peer: works before, and must work after."""
    with Engine(secret=SECRET) as engine:
        _check(engine, remote)
        yield engine
        _check(engine, remote)


def _check(engine, remote):
    into = np.zeros(NBYTES, np.uint8)
    engine.read(remote, into).wait(WAIT)
    assert np.array_equal(into, pattern(1, NBYTES))


def _address(remote, unix):
    return next(a for a in remote.addresses if a.startswith("unix:") == unix)


def _right(remote):
    number, generation, key, *_ = NATIVE.unpack(remote._owner.native)
    return {"region": number, "generation": generation, "key": key}


_VIOLATIONS = {
    "garbage": b"\xa5" * 4096,
    "magic": frame(1, magic=1),
    "type": frame(14),
    "flags": frame(1, flags=1),
    "status": frame(hostile.READ, status=-1),
    "length": frame(hostile.READ, length=1 << 63),
    "answer": frame(hostile.DATA, b"0123456789", number=1),
    "acknowledgement": frame(hostile.WRITE_DONE),
    "notifications": frame(hostile.NOTIFY, bytes(1000)) * 65,
    "notified": frame(hostile.NOTIFY_DONE, length=5),
    "credits": frame(hostile.CREDIT, length=(1 << 32) - 1),
    "descriptor": frame(hostile.SEGMENT_FD, number=1, region=1),
    "control": frame(CONTROL, b"\xc1"),
    "nothing": frame(CONTROL),
    "nested": frame(CONTROL, b"\x91" * 200_000),
    "long control": frame(CONTROL, length=1 << 40),
}


@pytest.mark.parametrize("unix", [True, False], ids=["unix", "tcp"])
@pytest.mark.parametrize("what", _VIOLATIONS)
def test_a_violation_ends_the_link(good, remote, what, unix):
    with hostile.connect(_address(remote, unix), SECRET) as link:
        try:
            link.sendall(_VIOLATIONS[what])
        except ConnectionError:
            return
        assert hostile.ends(link)


@pytest.mark.parametrize("unix", [True, False], ids=["unix", "tcp"])
def test_requests_without_the_right_are_refused(good, far, remote, unix):
    right = _right(remote)
    wrong = [
        {**right, "key": bytes(16)},
        {**right, "region": 0},
        {**right, "region": 1 << 63},
        {**right, "generation": right["generation"] + 1},
        {**right, "offset": NBYTES - 8},
        {**right, "offset": (1 << 64) - 5},
    ]
    with hostile.connect(_address(remote, unix), SECRET) as link:
        for request in wrong:
            link.sendall(frame(hostile.READ, length=16, **request))
            link.sendall(frame(hostile.WRITE, b"x" * 16, **request))
        answers = _read(link, 64 * 2 * len(wrong))
    for at in range(0, len(answers), 64):
        kind, _, status, _, length = struct.unpack_from("<BBhQQ", answers, at + 4)
        assert kind in (hostile.DATA, hostile.WRITE_DONE)
        assert (status < 0, length) == (True, 0)
    assert far.call("content", "x") == pattern(1, NBYTES).tobytes()


def _read(link, count):
    data = b""
    while len(data) < count:
        part = link.recv(count - len(data))
        assert part
        data += part
    return data


def test_a_flood_of_empty_messages_meets_a_limit_while_python_is_busy(good, far, remote):
    """Each costs memory at the target, although it has no bytes."""
    with hostile.connect(_address(remote, True), SECRET) as link:
        far.begin("hold_gil", 3.0)
        with pytest.raises(ConnectionError):
            link.sendall(frame(CONTROL) * 400_000)
    far.answer()


def test_whoever_never_reads_holds_up_only_itself(good, remote):
    request = frame(hostile.READ, length=NBYTES, **_right(remote))
    with hostile.connect(_address(remote, True), SECRET) as link:
        link.settimeout(0.5)
        with pytest.raises(TimeoutError):
            link.sendall(request * 20_000)
        _check(good, remote)


@pytest.mark.parametrize("count", [1, 2, 50])
def test_descriptors_that_nobody_asked_for_are_closed(good, far, remote, count):
    before = far.call("run", _DESCRIPTORS)
    with hostile.connect(_address(remote, True), SECRET) as link:
        copies = array("i", [link.fileno()] * count)
        link.sendmsg([frame(hostile.PING)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, copies)])
        assert hostile.ends(link)
    end = time.monotonic() + WAIT
    while far.call("run", _DESCRIPTORS) > before and time.monotonic() < end:
        time.sleep(0.01)
    assert far.call("run", _DESCRIPTORS) <= before


_DESCRIPTORS = "import os; result = len(os.listdir('/proc/self/fd'))"


def test_random_frames(good, far, remote):
    """H11: whatever they say, the target lives, and who has no right changes no memory."""
    rng = random.Random(1)
    right = _right(remote)
    for _ in range(150):
        unix = rng.random() < 0.5
        with hostile.connect(_address(remote, unix), SECRET) as link:
            frames = [_random_frame(rng, right) for _ in range(rng.randrange(1, 20))]
            try:
                link.sendall(b"".join(frames))
            except ConnectionError:
                continue
    assert far.call("content", "x") == pattern(1, NBYTES).tobytes()
    far.call("run", "while servant.engine.notifications().poll(): pass")


def _random_frame(rng, right):
    numbers = [0, 1, 2, 255, (1 << 32) - 1, 1 << 32, 1 << 63, (1 << 64) - 1]
    kind = rng.randrange(0, 15)
    payload = os.urandom(rng.choice([0, 1, 64, 1000]))
    if kind == CONTROL and rng.random() < 0.7:
        asked = messages.Ask(rng.getrandbits(40), "lookup", payload)
        payload = messages.encode(asked)
    return frame(
        kind,
        payload,
        length=rng.choice([None, None, None, *numbers]),
        status=rng.choice([0, 0, 0, -9, -10, 5]),
        number=rng.choice(numbers),
        region=rng.choice([right["region"], *numbers]),
        generation=rng.choice([right["generation"], *numbers]),
        key=bytes(16),
        offset=rng.choice(numbers),
    )
