"""The stub agrees with the built module, and structs that Python packs agree with C."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import transport.ffi
from transport.engine.batch import RANGE
from transport.errors import InvalidUse, Status, TransportError
from transport.ffi import check, failure, ffi, last_error, lib
from transport.memory.remote import NATIVE

STUB = Path(transport.ffi.__file__).parent / "_native.pyi"


def stubbed():
    tree = ast.parse(STUB.read_text())
    body = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Lib").body
    functions = {n.name: n for n in body if isinstance(n, ast.FunctionDef)}
    constants = {n.target.id for n in body if isinstance(n, ast.AnnAssign)}
    return functions, constants


def test_every_name_of_the_stub_exists_and_the_other_way_round():
    functions, constants = stubbed()
    built = {name for name in dir(lib) if name.startswith(("tn_", "TN_"))}
    mine = {name for name in built if not name.startswith(("tn_verbs", "TN_VERBS"))}
    assert mine <= {*functions, *constants}
    assert {*functions, *constants} <= built


def test_functions_take_as_many_arguments_as_the_stub_says():
    functions, _ = stubbed()
    for name, node in functions.items():
        built = ffi.typeof(getattr(lib, name))
        stub = [*node.args.posonlyargs, *node.args.args]
        assert len(built.args) == len(stub) - 1, name


@pytest.mark.parametrize(
    "struct",
    ["remote", "range", "batch", "result", "event", "notification", "peer_stats", "engine_options"],
)
def test_structs_are_as_the_cdef_says(struct):
    assert ffi.sizeof(f"struct tn_{struct}") > 0
    assert ffi.new(f"struct tn_{struct} *") != ffi.NULL


def test_packed_structs_have_the_size_and_order_of_c():
    assert ffi.sizeof("struct tn_remote") == NATIVE.size
    assert ffi.sizeof("struct tn_range") == RANGE.size
    values = (1, 2, b"k" * 16, 4, 5, 6, 7, 3, *range(10, 18), 20, 19, 21, 1)
    remotes = ffi.from_buffer("struct tn_remote[]", NATIVE.pack(*values))
    remote = remotes[0]  # does not keep the bytes, `remotes` does
    assert (remote.number, remote.generation, remote.address, remote.length) == (1, 2, 4, 5)
    assert (remote.segment_offset, remote.segment, remote.access) == (6, 7, 3)
    assert (bytes(ffi.buffer(remote.key)), list(remote.rkeys)) == (b"k" * 16, list(range(10, 18)))
    assert (remote.key_span, remote.key_skew) == (20, 19)
    assert (remote.keys_at, remote.memory) == (21, 1)
    rows = ffi.from_buffer("struct tn_range[]", RANGE.pack(1, 2, 3, 4, 5, -6, -7, 8, 0))
    row = rows[0]
    assert (row.local_address, int(ffi.cast("uintptr_t", row.local_region))) == (1, 2)
    assert (row.remote_offset, row.length, row.rows) == (3, 4, 5)
    assert (row.local_stride, row.remote_stride, row.remote) == (-6, -7, 8)


def test_statuses_are_the_same_numbers_here_and_in_c():
    for status in Status:
        assert getattr(lib, f"TN_{status.name}") == status


def test_check():
    assert check(0) == 0
    assert check(5) == 5
    out = ffi.new("struct tn_engine **")
    with pytest.raises(InvalidUse, match="positive"):
        check(lib.tn_engine_open(ffi.new("struct tn_engine_options *"), out))
    assert "positive" in last_error()
    assert isinstance(failure(Status.CLOSED), TransportError)
