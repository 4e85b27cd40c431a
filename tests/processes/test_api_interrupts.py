"""Signals, Ctrl-C and the garbage collector at the worst instructions: nothing is lost."""

from __future__ import annotations

import gc
import signal
import time
import weakref

import numpy as np
import pytest

from transport import Engine, Read, Settings, Write
from transport.testing.processes import PeerProcess, run_program
from transport.testing.servant import pattern

WAIT = 60.0


def run(code, *, expected=0):
    """Runs a program; what it printed."""
    exit_code, out, err = run_program(_PRELUDE + code, timeout=300)
    assert exit_code == expected, err
    assert "_close_all" not in err, err  # what closes the engines at exit
    return out.strip()


_PRELUDE = """
import gc, os, signal, sys, threading, time, warnings
import numpy as np
from transport import Engine, Settings
from transport.testing.processes import PeerProcess

armed = False

def interrupt(*_):
    global armed
    if armed:
        armed = False  # one at a time, else none of the handlers below could be reached
        raise KeyboardInterrupt

def storm(seconds, pause):
    pid, helper = os.getpid(), os.fork()
    if helper:
        return helper
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            time.sleep(pause)
            os.kill(pid, signal.SIGINT)
    finally:
        os._exit(0)
"""


@pytest.fixture
def alarms():
    """A signal every half millisecond, as profilers send them."""
    count = []
    before = signal.signal(signal.SIGALRM, lambda *_: count.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    yield count
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("pool", [True, False], ids=["mapped", "process_vm"])
def test_a_peer_is_not_lost_to_signals(alarms, pool):
    nbytes = 3_000_000
    with Engine() as near, Engine() as far:
        memory = far.empty(nbytes, "uint8") if pool else np.empty(nbytes, np.uint8)
        memory[:] = pattern(1, nbytes)
        into = np.zeros(nbytes, np.uint8)
        with far.register(memory) as region:
            end = time.monotonic() + 0.8
            late = end + WAIT
            while time.monotonic() < end or len(alarms) <= 50:
                assert time.monotonic() < late
                near.read(region.remote(), into).wait(WAIT)
                near.write(into, region.remote()).wait(WAIT)
        assert np.array_equal(into, pattern(1, nbytes))


def test_ctrl_c_again_and_again():
    """Every transfer after it works, and the engine closes at once."""
    assert run(_AGAIN) == "fine"


_AGAIN = """
peer = PeerProcess()
peer.call("open")
remote = peer.call("make", "x", 2_000_000, seed=1)
engine = Engine(settings=Settings.from_env(close_timeout=200.0))
signal.signal(signal.SIGINT, interrupt)
helper = storm(20.0, 0.001)
end = time.monotonic() + 20
interrupted = 0

def work():
    global armed
    armed = True
    while time.monotonic() < end:
        engine.read(remote, bytearray(2_000_000)).wait(60)
    armed = False

while interrupted < 50 and time.monotonic() < end:  # a machine may be too busy for all of them
    try:
        work()
    except KeyboardInterrupt:
        interrupted += 1
armed = False
os.kill(helper, signal.SIGKILL)
os.waitpid(helper, 0)
into = bytearray(2_000_000)
engine.read(remote, into).wait(60)
assert bytes(into) == peer.call("content", "x")
began = time.monotonic()
engine.close()
assert time.monotonic() - began < 60, "calls that were interrupted are still counted as inside"
peer.close()
assert interrupted > 5, interrupted
print("fine")
"""


def test_ctrl_c_while_the_program_ends():
    """Those who are impatient press it again: all is closed all the same, and nothing crashes."""
    run(_IMPATIENT, expected=-signal.SIGINT)


_IMPATIENT = """
peer = PeerProcess()
peer.call("open")
remote = peer.call("make", "x", 2_000_000)
engine = Engine()
engine.read(remote, bytearray(2_000_000)).wait(60)
storm(1.0, 0.001)
some = []
while True:
    some = [*some[-4:], engine.read(remote, bytearray(2_000_000))]
    some[0].wait(60)
"""


def test_ctrl_c_while_an_engine_closes():
    """The close goes on behind it."""
    assert run(_CLOSING) == "fine"


_CLOSING = """
signal.signal(signal.SIGINT, interrupt)
for _ in range(30):
    a, b = Engine(), Engine()
    region = a.register(np.zeros(100_000, np.uint8))
    transfers = [b.read(region.remote(), bytearray(100_000)) for _ in range(10)]
    threading.Timer(0.0005, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        armed = True
        b.close()
        a.close()
        time.sleep(0.1)
    except KeyboardInterrupt:
        pass
    armed = False
    for core in (a._core, b._core):
        end = time.monotonic() + 60
        while core.gate.closed and core.native.pointer is not None:
            assert time.monotonic() < end, "it is half closed"
            time.sleep(0.001)
print("fine")
"""


def test_transfers_die_while_the_collector_runs_in_every_call():
    """A finalizer that took a lock of the code it interrupts would wait for itself."""
    assert run(_COLLECTED) == "fine"


_COLLECTED = """
import faulthandler
faulthandler.dump_traceback_later(240, exit=True)
with PeerProcess() as peer:
    peer.call("open", providers=["tcp"], listen="127.0.0.1:0")
    remote = peer.call("make", "x", 100_000)
    engine = Engine(providers=["tcp"])
    engine.read(remote, bytearray(100_000)).wait(60)
    peer.stop()  # so that they are pending when they die
    end = time.monotonic() + 2

    def cycles():
        while time.monotonic() < end:
            for transfer in [engine.read(remote, bytearray(100_000)) for _ in range(20)]:
                cycle = [transfer]
                cycle.append(cycle)
            time.sleep(0)

    sys.setswitchinterval(1e-5)
    gc.set_threshold(2, 2, 2)
    threads = [threading.Thread(target=cycles) for _ in range(2)]
    for thread in threads:
        thread.start()
    while time.monotonic() < end:
        engine.read(remote, bytearray(100_000))
    for thread in threads:
        thread.join()
    gc.set_threshold(700, 10, 10)
    peer.go_on()
    engine.close()
print("fine")
"""


def test_memory_of_a_dropped_transfer_lives_until_its_last_peer_is_quiet():
    patient = Settings.from_env(liveness=1000.0)  # else the slow one is lost if this takes long
    with (
        PeerProcess() as quick,
        PeerProcess() as slow,
        Engine(providers=["tcp"], settings=patient) as engine,
    ):
        remotes = []
        for process in (quick, slow):
            process.call("open", providers=["tcp"], listen="127.0.0.1:0")
            remotes.append(process.call("make", "x", 20_000_000))
        into = np.zeros((2, 1000), np.uint8)
        parts = [remote[:1000] for remote in remotes]
        engine.submit([Read(part, row) for part, row in zip(parts, into)]).wait(WAIT)
        slow.stop()
        sources = [np.ones(20_000_000, np.uint8) for _ in remotes]
        alive = [weakref.ref(source) for source in sources]
        engine.submit([Write(s, remote) for s, remote in zip(sources, remotes)])  # and dropped
        del sources
        end = time.monotonic() + WAIT
        while quick.call("run", _WRITTEN) is False:
            assert time.monotonic() < end
        for _ in range(20):  # what the finalizer left is done by now
            gc.collect()
            engine.notifications().poll()
            time.sleep(0.01)
        assert alive[1]() is not None, "it is freed while its bytes are being sent"
        slow.go_on()
        while any(source() is not None for source in alive):
            assert time.monotonic() < end
            engine.notifications().poll()
            time.sleep(0.01)
        assert slow.call("run", _WRITTEN)


_WRITTEN = "result = bool((servant.arrays['x'] == 1).all())"


def test_without_descriptors_a_peer_is_kept_and_its_memory_read_another_way():
    assert run(_EXHAUSTED) == "process_vm"


_EXHAUSTED = """
import resource
with PeerProcess() as peer, Engine() as engine:
    peer.call("open")
    private = peer.call("make", "a", 1000)
    engine.read(private, bytearray(1000)).wait(60)
    pool = peer.call("make", "b", 1000, seed=1, pool=True)
    files = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 4096))
    try:
        while True:
            files.append(os.dup(0))
    except OSError:
        pass
    into = bytearray(1000)
    path = engine.read(pool, into).wait(60).path
    for file in files:
        os.close(file)
    assert bytes(into) == peer.call("content", "b")
    print(path)
"""


def test_engines_that_cannot_be_opened_say_why_and_leave_nothing():
    assert run(_NO_ROOM) == "fine"


_NO_ROOM = """
import resource
from pathlib import Path
from transport import TransportError

Engine().close()
sys.unraisablehook = lambda _: None  # asyncio's half-made loop complains when it dies
before = len(list(Path("/proc/self/fd").iterdir()))
for limit in range(before, before + 16):
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, 4096))
    try:
        Engine().close()
        break
    except TransportError:
        pass
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
else:
    raise SystemExit("no limit was enough")
print("fine")
"""
