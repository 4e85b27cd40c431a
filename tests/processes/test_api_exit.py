"""How processes with engines end and fork: exit codes, silence, refusals that say what to do."""

from __future__ import annotations

import pytest

from transport.testing.processes import PeerProcess, run_program

HEAD = """
import os, sys, signal, threading, time, warnings
import transport
from transport import Engine, RemoteRegion
remote = RemoteRegion.from_json(sys.argv[1]) if len(sys.argv) > 1 else None
"""


def run(code, *arguments):
    status, out, err = run_program(HEAD + code, *arguments)
    return status, out.split(), err


@pytest.fixture
def far():
    with PeerProcess() as process:
        process.call("open")
        yield process


def test_exit_with_an_open_engine_is_clean():
    assert run("engine = Engine(); region = engine.register(bytearray(9)); print(1)") == (
        0,
        ["1"],
        "",
    )


def test_exit_with_live_transfers_is_clean(far):
    """F8"""
    remote = far.call("make", "x", 1000)
    far.stop()
    code = """
engine = Engine()
kept = [engine.read(remote, bytearray(1000)) for _ in range(50)]
for _ in range(50):
    engine.write(bytes(1000), remote, notify=b"x")
tensor = engine.empty(1 << 20, "uint8")
print(len(kept))
"""
    assert run(code, remote.to_json()) == (0, ["50"], "")


def test_exit_while_threads_wait_is_clean(far):
    """F8"""
    remote = far.call("make", "x", 1000)
    far.stop()
    code = """
engine = Engine()
transfer = engine.read(remote, bytearray(1000))
def wait(call):
    try:
        call()
    except transport.TransportError:
        pass
for call in (transfer.wait, engine.notifications().wait):
    threading.Thread(target=wait, args=(call,), daemon=True).start()
time.sleep(0.2)
print("end")
"""
    assert run(code, remote.to_json()) == (0, ["end"], "")


def test_exit_in_a_running_event_loop_is_clean(far):
    remote = far.call("make", "x", 1000)
    far.stop()
    code = """
import asyncio
engine = Engine()
async def main():
    task = asyncio.ensure_future(wait())
    await asyncio.sleep(0.1)
    task.cancel()
    print("end")
async def wait():
    await engine.read(remote, bytearray(1000))
asyncio.run(main())
"""
    assert run(code, remote.to_json()) == (0, ["end"], "")


@pytest.mark.parametrize("signal", ["SIGTERM", "SIGKILL"])
def test_a_peer_learns_of_any_end_at_once(far, signal):
    """The far side reads from a process that then ends by a signal."""
    code = """
engine = Engine()
region = engine.register(bytearray(100))
print(region.remote().to_json().replace(" ", ""), flush=True)
time.sleep(1)
os.kill(os.getpid(), signal.%s)
"""
    status, out, _ = run(code % signal)
    assert status < 0
    far.call(
        "run",
        """
import transport
from transport import RemoteRegion
try:
    servant.engine.read(RemoteRegion.from_json(text), bytearray(100)).wait(60)
    raise AssertionError("it is dead")
except transport.PeerLost:
    pass
""",
        text=out[0],
    )


def test_ctrl_c_in_wait_ends_the_program(far):
    remote = far.call("make", "x", 1000)
    far.stop()
    code = """
engine = Engine()
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
engine.read(remote, bytearray(1000)).wait()
"""
    status, _, err = run(code, remote.to_json())
    assert status != 0
    assert err.rstrip().endswith("KeyboardInterrupt")


# --------------------------------------------------------------------------------------------- fork
FORK = """
def in_child(what):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            what()
            sys.stdout.flush()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
warnings.simplefilter("ignore", DeprecationWarning)
"""


def test_everything_refuses_after_fork_and_says_what_to_do(far):
    """H1"""
    remote = far.call("make", "x", 1000)
    code = (
        FORK
        + """
engine = Engine()
region = engine.register(bytearray(9))
transfer = engine.read(remote, bytearray(1000)).wait(60)
peer = engine.peers[0]
calls = [
    lambda: engine.read(remote, bytearray(1000)), lambda: engine.register(bytearray(1)),
    lambda: engine.empty(1, "uint8"), lambda: engine.connect("unix:@x"), engine.notifications,
    lambda: region.remote(), peer.counters, peer.explain, lambda: engine.submit([]),
]
def child():
    for call in calls:
        try:
            call()
        except transport.InvalidUse as error:
            assert f"to process {os.getppid()}; make a new Engine in the child" in str(error)
            print("refused")
    engine.close()
    region.close()
assert in_child(child) == 0
engine.read(remote, bytearray(1000)).wait(60)
region.close()
engine.close()
print("parent")
"""
    )
    assert run(code, remote.to_json()) == (0, ["refused"] * 9 + ["parent"], "")


def test_a_new_engine_in_the_child_works(far):
    """H2"""
    remote = far.call("make", "x", 1000)
    expected = far.call("content", "x")
    code = (
        FORK
        + """
engine = Engine()
engine.read(remote, bytearray(1000)).wait(60)
def child():
    global engine
    del engine
    with Engine() as mine:
        into = bytearray(1000)
        mine.read(remote, into).wait(60)
        print(into.hex())
assert in_child(child) == 0
into = bytearray(1000)
engine.read(remote, into).wait(60)
print(into.hex())
"""
    )
    assert run(code, remote.to_json()) == (0, [expected.hex()] * 2, "")


WARNED = "RuntimeWarning: this process was forked"


def test_a_child_of_multiprocessing_is_warned_of_shared_tensors():
    code = (
        FORK
        + """
import multiprocessing
engine = Engine()
def child():
    print("child")
def fork():
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
fork()
tensor = engine.empty(100, "uint8")
print("quiet", flush=True)
sys.stderr.write("quiet\\n")
fork()
"""
    )
    status, out, err = run(code)
    assert (status, out) == (0, ["child", "quiet", "child"])
    before, after = err.split("quiet\n")
    assert before == ""
    assert after.count(WARNED) == 1


def test_a_forked_child_is_warned_of_shared_tensors_when_it_makes_an_engine():
    code = (
        FORK
        + """
engine = Engine()
tensor = engine.empty(100, "uint8")
def child():
    sys.stderr.write("quiet\\n")
    for _ in range(2):
        Engine().close()
assert in_child(child) == 0
"""
    )
    status, _, err = run(code)
    assert status == 0
    assert err.startswith("quiet\n")
    assert err.count(WARNED) == 1


def test_a_child_that_runs_another_program_is_not_warned_of_shared_tensors():
    """subprocess forks with Python's hooks where it is given a preexec_fn."""
    code = (
        FORK
        + """
import multiprocessing.util, subprocess
engine = Engine()
tensor = engine.empty(100, "uint8")
print(subprocess.run(["true"], preexec_fn=lambda: None).returncode)
assert in_child(lambda: os.execvp("true", ["true"])) == 0
"""
    )
    assert run(code) == (0, ["0"], "")


def test_tensors_of_the_parent_die_quietly_in_the_child():
    """H1"""
    code = (
        FORK
        + """
engine = Engine()
tensor = engine.empty(1 << 20, "uint8")
tensor[:] = 5
warnings.simplefilter("ignore")
def child():
    global tensor
    del tensor
assert in_child(child) == 0
assert (tensor == 5).all()
engine.close()
assert (tensor == 5).all()
print("end")
"""
    )
    assert run(code) == (0, ["end"], "")


# ------------------------------------------------------------------------------------------ signals
@pytest.mark.parametrize("place", ["wait", "submit", "nothing"])
def test_a_signal_handler_may_close_the_engine(far, place):
    """As a SIGTERM handler does: whatever the engine was doing, nothing hangs or crashes."""
    remote = far.call("make", "x", 1000)
    code = """
engine = Engine()
engine.read(remote, bytearray(1000)).wait(60)
closed = []
def close(*_):
    closed.append(1)
    engine.close()
signal.signal(signal.SIGTERM, close)
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
place = %r
if place == "wait":
    try:
        engine.notifications().wait(60)
    except transport.InvalidUse:
        pass
elif place == "submit":
    try:
        while True:
            engine.read(remote, bytearray(1000)).wait(60)
    except transport.TransportError:
        pass
else:
    time.sleep(1)
while not engine.closed:
    time.sleep(0.01)
print(*closed)
"""
    assert run(code % place, remote.to_json()) == (0, ["1"], "")
