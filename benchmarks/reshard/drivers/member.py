"""What every driver shares: one process of one side, one JSON object a line in, one a line out.

A driver is one file with a subclass of `Member` and `serve(Class)` at its end, started with its
side ("source" or "target") and its rank. The questions:

    {"ask": "open", "spec": see case.py, "options": {}}  {"version": "1.2", "facts": {...}}
    {"ask": "connect", "facts": {"source": [...], "target": [...]}}  {}
    {"ask": "fill", "seed": K}        {}   asked of sources: new values, in the same memory
    {"ask": "clear"}                  {}   asked of targets
    {"ask": PHASE, "seed": K, "at": ns}  {"begin": ns, "end": ns} of time.monotonic_ns; all begin
                                      at the same time
    {"ask": "digest"}                 {"digest": "..."} of what a target holds
    {"ask": "close"}                  {}
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time

import torch
from data import digest, part

_PR_SET_PDEATHSIG = 1
torch.set_num_threads(1)  # as torchrun has it: the ranks are more than the cores
_SPIN = 500_000  # ns: a sleeper wakes no later than that
_QUESTIONS = {"open", "connect", "fill", "clear", "digest", "close"}


class Member:
    """One rank of one side, with its local tensors: `boxes` says which part of each it holds."""

    version = f"torch {torch.__version__}"

    def __init__(self, side, rank, spec, options):
        self.side, self.rank, self.spec, self.options = side, rank, spec, options
        self.boxes = spec["sides"][side]["boxes"][rank]
        self.tensors = {name: self.make(*self.local(name)) for name in spec["tensors"]}

    def local(self, name):
        """Shape and dtype of this rank's part."""
        about = self.spec["tensors"][name]
        return self.shape(self.side, self.rank, name), getattr(torch, about["dtype"])

    def shape(self, side, rank, name):
        return tuple(self.spec["sides"][side]["shapes"][rank][name])

    def ranks(self, side):
        return range(len(self.spec["sides"][side]["boxes"]))

    def make(self, shape, dtype):
        return torch.zeros(shape, dtype=dtype)

    def facts(self):
        return {}

    def connect(self, facts):
        """All are told at the same time."""

    def fill(self, seed):
        for number, (name, tensor) in enumerate(self.tensors.items()):
            box = self.boxes.get(name)
            if box is not None:
                whole = _bits(tensor)
                whole[...] = part(number, *box, tensor.element_size(), seed)

    def clear(self):
        for tensor in self.tensors.values():
            tensor.zero_()

    def digest(self):
        return digest(_bits(self.tensors[name]) for name in self.boxes)

    def close(self):
        pass


def _bits(tensor):
    """The elements as unsigned integers."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    raw = tensor.view(kinds[tensor.element_size()]).numpy()
    return raw.view(f"uint{8 * tensor.element_size()}")


def pieces(spec, rank):
    """For a target rank: (name, source rank, slices there, slices here), each byte once."""
    for name in spec["tensors"]:
        want = spec["sides"]["target"]["boxes"][rank].get(name)
        seen = set()
        for source, held in enumerate(spec["sides"]["source"]["boxes"]):
            have = held.get(name)
            if want is None or have is None or str(have) in seen:
                continue  # nothing, or a replica
            seen.add(str(have))
            both = [
                (max(a, b), min(a + m, b + n)) for (a, m), (b, n) in zip(zip(*have), zip(*want))
            ]
            if all(low < high for low, high in both):
                there = tuple(slice(lo - a, hi - a) for (lo, hi), a in zip(both, have[0]))
                here = tuple(slice(lo - b, hi - b) for (lo, hi), b in zip(both, want[0]))
                yield name, source, there, here


def serve(kind):
    """Runs a driver until its input ends. Libraries that write to stdout write to stderr."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    member = None
    for line in sys.stdin:
        question = json.loads(line)
        ask = question.pop("ask")
        try:
            if ask == "open":
                side, rank = sys.argv[1].split(":")
                member = kind(side, int(rank), question["spec"], question["options"])
                answer = {"version": member.version, "facts": member.facts()}
            else:
                answer = _answer(member, ask, question)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        out.write(json.dumps(answer) + "\n")
        out.flush()
        if ask == "close":
            break
    os._exit(0)  # some libraries crash in the destructors of what they bundle


def _answer(member, ask, question):
    at = question.pop("at", 0)
    time.sleep(max(0, at - time.monotonic_ns() - _SPIN) / 1e9)
    while time.monotonic_ns() < at:
        pass
    begin = time.monotonic_ns()
    found = getattr(member, ask)(**question) if member is not None else None
    end = time.monotonic_ns()
    if ask == "digest":
        return {"digest": found}
    return {} if ask in _QUESTIONS else {"begin": begin, "end": end}
