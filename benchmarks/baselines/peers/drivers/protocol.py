"""What every driver shares: one JSON object a line in, one a line out. Standard library and numpy.

A driver is one file with a class, `serve(Class)` at its end, and two processes: `initiator` and
`target` (or one, for a runtime that starts its own). It imports nothing of this project but this
file, because it runs in the environment of the library that it drives. The questions:

    {"ask": "open", "bytes": N, "op": "write"|"read", ...}   {"version": "1.2", "facts": {...}}
    {"ask": "connect", "facts": the other side's}            {}
    {"ask": "prepare", "size": S, "batch": B}                {}   never timed
    {"ask": "fill", "seed": K}                               {}   asked of the side that is read
    {"ask": "clear"}                                         {}   asked of the side that is written
    {"ask": "run", "count": C}                               {"ns": [...]} from the initiator
    {"ask": "verify", "seed": K}                             {"right": true|false}
    {"ask": "close"}                                         {}

What fails answers {"error": text}; the end of the input ends the process.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time
from dataclasses import dataclass

import numpy as np

# The blocks of a batch lie in an order that no side can join: prime steps, coprime with every
# batch that is not a multiple of them.
_STEPS = {"initiator": 7919, "target": 104729}
# As in transport.cli.bench_side: neighbouring words, and the same word of two seeds, differ.
_ODD, _MIX = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9
_PR_SET_PDEATHSIG = 1
_POLL = 0.001  # seconds between two turns of a library that must be driven by its caller


@dataclass(frozen=True)
class Layout:
    """A batch: block i lies at `initiator[i]` on one side and at `target[i]` on the other."""

    size: int
    batch: int

    @property
    def bytes(self):
        return self.size * self.batch

    def slots(self, role):
        return np.arange(self.batch, dtype=np.int64) * _STEPS[role] % self.batch

    def offsets(self, role):
        """int64[batch], in bytes."""
        return self.slots(role) * self.size

    def delivered(self, seed, role):
        """uint8[bytes]: what the side that is written must hold, when the other has the pattern."""
        other = "target" if role == "initiator" else "initiator"
        blocks = pattern(self.bytes, seed).reshape(self.batch, self.size)
        if self.batch == 1:
            return blocks[0]
        source = np.empty(self.batch, np.int64)
        source[self.slots(role)] = self.slots(other)
        return blocks[source].reshape(-1)


def pattern(size, seed):
    """uint8[size] that differ between seeds and between places."""
    words = np.arange((size + 7) // 8, dtype=np.uint64)
    words *= np.uint64(_ODD)
    words ^= np.uint64((seed + 1) * _MIX % (1 << 64))
    return words.view(np.uint8)[:size]


def aligned(size):
    """uint8[size], page-aligned, every page touched."""
    raw = np.empty(size + 4096, np.uint8)
    start = -raw.ctypes.data % 4096
    part = raw[start : start + size]
    part[:] = 0
    return part


def at_address(address, size):
    """uint8[size] over memory that somebody else owns."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


def clocked(once, count):
    """Nanoseconds of each of `count` calls, by time.perf_counter_ns."""
    clock = time.perf_counter_ns
    times = []
    for _ in range(count):
        start = clock()
        once()
        times.append(clock() - start)
    return times


class Driver:
    """One side. A subclass opens its library and `self.buffer`, and says how a batch is moved."""

    version = ""

    def __init__(self, role, options):
        self.role, self.options = role, options
        self.bytes, self.op = options["bytes"], options["op"]
        self.buffer = None
        self.layout = None

    def facts(self):
        """What the other side needs, as JSON."""
        return {}

    def connect(self, facts):
        """Both sides are told at the same time."""

    def prepare(self, layout):
        """Describes the batch; `run` repeats it."""

    def run(self, count):
        """Nanoseconds of each; the target answers {} unless it takes part."""
        return

    def idle(self):
        """Called about once in a millisecond while no question is there, if overridden."""

    def close(self):
        pass

    def fill(self, seed):
        self.buffer[: self.layout.bytes] = pattern(self.layout.bytes, seed)

    def clear(self):
        self.buffer[: self.layout.bytes] = 0

    def verify(self, seed):
        wanted = self.layout.delivered(seed, self.role)
        return bool(np.array_equal(self.buffer[: self.layout.bytes], wanted))


class _Answers:
    def __init__(self, kind, role):
        self._kind, self._role = kind, role
        self.driver = None

    def to(self, question):
        found = getattr(self, "_" + question.pop("ask"))(**question)
        return found or {}

    def _open(self, **options):
        self.driver = self._kind(self._role, options)
        return {"version": self.driver.version, "facts": self.driver.facts()}

    def _connect(self, facts):
        self.driver.connect(facts)

    def _prepare(self, size, batch):
        self.driver.layout = Layout(size, batch)
        self.driver.prepare(self.driver.layout)

    def _fill(self, seed):
        self.driver.fill(seed)

    def _clear(self):
        self.driver.clear()

    def _run(self, count):
        times = self.driver.run(count)
        return None if times is None else {"ns": times}

    def _verify(self, seed):
        return {"right": self.driver.verify(seed)}

    def _close(self):
        if self.driver is not None:
            self.driver.close()


def _lines(idle):
    """Lines of the standard input, read past Python's buffers so that select tells the truth."""
    held = b""
    while True:
        line, newline, rest = held.partition(b"\n")
        if newline:
            held = rest
            yield line
            continue
        driven = idle()
        while driven is not None and not select.select([0], [], [], _POLL)[0]:
            driven()
        more = os.read(0, 1 << 16)
        if not more:
            return
        held += more


def serve(kind):
    """Runs a driver until its input ends. Libraries that write to stdout write to stderr."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    answers = _Answers(kind, sys.argv[1])

    def idle():
        overridden = answers.driver is not None and kind.idle is not Driver.idle
        return answers.driver.idle if overridden else None

    for line in _lines(idle):
        question = json.loads(line)
        last = question["ask"] == "close"
        try:
            answer = answers.to(question)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        out.write(json.dumps(answer) + "\n")
        out.flush()
        if last:
            break
    sys.stderr.flush()
    os._exit(0)  # some libraries crash in the destructors of what they bundle
