"""native/abi/verbs.h against the system's <infiniband/verbs.h>: one program, compiled against each.

The program prints every size, offset and constant that our header declares; the two outputs must
be equal. TRANSPORT_VERBS_HEADERS names a folder that holds infiniband/ somewhere else.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS = ROOT / "native" / "abi" / "verbs.h"

# Stand-ins of ours for what we do not use: padding and slots that nobody calls.
_PADDING = {
    ("ibv_device", "unused"),
    ("ibv_send_wr", "more"),
    ("ibv_context_ops", "before_poll_cq"),
    ("ibv_context_ops", "before_post_srq_recv"),
    ("ibv_context_ops", "before_post_send"),
    ("ibv_context_ops", "after_post_recv"),
}
# Newer than some systems' headers; beyond what the exported ibv_query_port fills.
_GROWN = {("ibv_port_attr", "active_speed_ex")}
_GROWN_STRUCTS = {"ibv_port_attr", "ibv_device_attr_ex"}

_STRUCT = re.compile(r"^(struct|union) (ibv_\w+) \{\n(.*?)^\};", re.MULTILINE | re.DOTALL)
_NESTED = re.compile(r"\{[^{}]*\}")
_FIELD = re.compile(r"(?:\(\*(\w+)\)\([^;]*\)|(\w+)(?:\[\w+\])*)\s*;")
_CONSTANT = re.compile(r"\b(IBV_[A-Z0-9_]+)\b(?=\s*=)")


def _without_comments(source: str) -> str:
    return re.sub(r"/\*.*?\*/", "", source, flags=re.DOTALL)


def _fields(body: str) -> list[str]:
    while _NESTED.search(body):
        body = _NESTED.sub("", body)
    return [pointer or plain for pointer, plain in _FIELD.findall(body)]


def _table(source: str) -> list[str]:
    """C expressions of type size_t or int, in the order of our header."""
    lines = []
    for kind, name, body in _STRUCT.findall(source):
        if name not in _GROWN_STRUCTS:
            lines.append(f"sizeof({kind} {name})")
        for field in _fields(body):
            if (name, field) in _PADDING | _GROWN:
                continue
            lines.append(f"offsetof({kind} {name}, {field})")
            lines.append(f"sizeof((({kind} {name} *)0)->{field})")
    lines += ["offsetof(struct ibv_send_wr, wr.rdma.rkey)", "offsetof(struct ibv_send_wr, wr)"]
    context = "offsetof(struct verbs_context, context)"
    lines += [
        f"{context} - offsetof(struct verbs_context, {name})" for name in ("query_device_ex", "sz")
    ]
    lines += list(dict.fromkeys(_CONSTANT.findall(source)))
    return lines


def _program(include: str, table: list[str]) -> str:
    prints = "\n".join(f'    printf("%s = %lld\\n", "{e}", (long long)({e}));' for e in table)
    head = f"#include <stddef.h>\n#include <stdio.h>\n#include {include}\n"
    return f"{head}int main(void)\n{{\n{prints}\n    return 0;\n}}\n"


def _run(folder: Path, name: str, include: str, table: list[str], *flags: str) -> list[str]:
    compiler = shutil.which(os.environ.get("CC", "gcc")) or pytest.skip("gcc: no C compiler")
    source, program = folder / f"{name}.c", folder / name
    source.write_text(_program(include, table))
    subprocess.run([compiler, *flags, str(source), "-o", str(program)], check=True)
    return subprocess.run(
        [str(program)], check=True, capture_output=True, text=True
    ).stdout.splitlines()


def _system_headers() -> Path:
    folders = [Path(p) for p in (os.environ.get("TRANSPORT_VERBS_HEADERS"), "/usr/include") if p]
    found = next((f for f in folders if (f / "infiniband" / "verbs.h").is_file()), None)
    return found or pytest.skip(
        "verbs-headers: no <infiniband/verbs.h>; install libibverbs-dev, or name a folder in "
        "TRANSPORT_VERBS_HEADERS"
    )


@pytest.fixture(scope="module")
def table() -> list[str]:
    return _table(_without_comments(OURS.read_text()))


def test_the_table_is_not_empty(table: list[str]) -> None:
    assert len(table) > 250
    assert "offsetof(struct ibv_context_ops, post_send)" in table
    assert "sizeof(struct ibv_qp_attr)" in table
    assert "IBV_WC_RETRY_EXC_ERR" in table


def test_our_header_compiles_alone(tmp_path: Path, table: list[str]) -> None:
    output = _run(tmp_path, "ours", f'"{OURS}"', table)
    assert len(output) == len(table)


def test_every_size_offset_and_constant_is_the_systems(tmp_path: Path, table: list[str]) -> None:
    headers = _system_headers()
    ours = _run(tmp_path, "ours", f'"{OURS}"', table)
    theirs = _run(tmp_path, "theirs", "<infiniband/verbs.h>", table, "-I", str(headers))
    assert ours == theirs
