"""native/abi/cuda.h and the driver table against NVIDIA's cuda.h, which a package brings, and
native/abi/hip.h against the HIP of Debian.

Every size, offset and number of ours is printed by one program for each header, and must be equal.
Every function of the table is called by a wrapper that has our types, which must compile.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import pytest
from gpu_table import DRIVERS, ROOT, Entry, entries

OURS = ROOT / "native/abi/cuda.h"

_STRUCT = re.compile(r"^typedef struct \{\n(.*?)^\} (\w+);", re.MULTILINE | re.DOTALL)
_NESTED = re.compile(r"struct \{[^{}]*\} (\w+);")
_FIELD = re.compile(r"(\w+)(?:\[\w+\])?\s*[;,]")
_CONSTANT = re.compile(r"\b((?:CUDA|CU)_[A-Z0-9_]+)\b(?=\s*=)")


def _header() -> Path:
    """The folder of cuda.h (the package nvidia-cuda-runtime)."""
    try:
        found = [file for file in files("nvidia-cuda-runtime") or [] if file.name == "cuda.h"]
    except PackageNotFoundError:
        found = []
    if not found:
        pytest.skip("cuda-headers: the package nvidia-cuda-runtime is not installed")
    return Path(str(found[0].locate())).parent


def _source() -> str:
    return re.sub(r"/\*.*?\*/", "", OURS.read_text(), flags=re.DOTALL)


def _expressions() -> list[str]:
    source = _source()
    lines = []
    for body, name in _STRUCT.findall(source):
        lines.append(f"sizeof({name})")
        inner = [(outer[1], outer[0]) for outer in _NESTED.finditer(body)]
        fields = _FIELD.findall(_NESTED.sub(r"int \1;", body))
        lines += [f"offsetof({name}, {field})" for field in fields]
        for outer, text in inner:
            names = _FIELD.findall(text[: text.rindex("}")])
            lines += [f"offsetof({name}, {outer}.{field})" for field in names]
    return lines + list(dict.fromkeys(_CONSTANT.findall(source)))


def _program(include: str, expressions: list[str]) -> str:
    prints = "\n".join(f'    printf("%s = %lld\\n", "{e}", (long long)({e}));' for e in expressions)
    head = f"#include <stddef.h>\n#include <stdio.h>\n#include {include}\n"
    return f"{head}int main(void)\n{{\n{prints}\n    return 0;\n}}\n"


def _compile(source: Path, *flags: str) -> Path:
    compiler = shutil.which(os.environ.get("CC", "gcc")) or pytest.skip("gcc: no C compiler")
    program = source.with_suffix("")
    done = subprocess.run(
        [compiler, *flags, str(source), "-o", str(program)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[:4000]
    return program


def _run(folder: Path, name: str, include: str, expressions: list[str], *flags: str) -> list[str]:
    source = folder / f"{name}.c"
    source.write_text(_program(include, expressions))
    program = _compile(source, *flags)
    return subprocess.run(
        [str(program)], check=True, capture_output=True, text=True
    ).stdout.splitlines()


def test_the_lists_are_not_empty() -> None:
    expressions = _expressions()
    assert len(expressions) > 90
    assert "offsetof(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable)" in expressions
    assert "CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE" in expressions
    assert len(entries()) > 50


def test_every_size_offset_and_number_is_nvidias(tmp_path: Path) -> None:
    folder, expressions = _header(), _expressions()
    ours = _run(tmp_path, "ours", f'"{OURS}"', expressions)
    theirs = _run(tmp_path, "theirs", "<cuda.h>", expressions, "-I", str(folder))
    assert ours == theirs


def _wrapper(entry: Entry) -> str:
    inner = entry.arguments.strip()[1:-1]
    flat = re.sub(r"\(\*(\w+)\)\([^()]*\)", r"\1", inner)  # a function pointer is its name
    names = [re.findall(r"\w+", word)[-1] for word in flat.split(",")] if flat != "void" else []
    return (
        f"int call_{entry.field}({inner});\nint call_{entry.field}({inner})\n"
        f"{{\n    return {entry.cuda}({', '.join(names)});\n}}\n"
    )


def test_every_function_takes_what_we_give(tmp_path: Path) -> None:
    """Numbers of another width and structures by value are errors; the names of pointed-to types
    are not ours to match."""
    folder = _header()
    wrappers = [_wrapper(entry) for entry in entries() if entry.cuda]
    assert len(wrappers) > 40
    source = tmp_path / "calls.c"
    source.write_text(
        "#include <stddef.h>\n#include <stdint.h>\n#include <cuda.h>\n" + "".join(wrappers)
    )
    flags = ["-Wconversion", "-Wno-sign-conversion", "-Werror", "-Wno-incompatible-pointer-types"]
    _compile(source, "-shared", "-fPIC", "-I", str(folder), *flags)


def test_the_layouts_of_hip_5_2(tmp_path: Path) -> None:
    headers = DRIVERS / "usr/include"
    if not (headers / "hip/hip_runtime_api.h").is_file():
        pytest.skip("gpu-drivers: scripts/gpu-drivers.sh has fetched no HIP headers")
    pairs = [
        ("compressionType", "compression_type"), ("location", "location_type"),
        ("requestedHandleType", "handle_type"), ("type", "type"),
        ("win32HandleMetaData", "win32"),
    ]  # fmt: skip
    theirs = [f"offsetof(hipMemAllocationProp, {name})" for name, _ in pairs]
    theirs += ["sizeof(hipMemAllocationProp)", "sizeof(hipPointerAttribute_t)"]
    theirs += ["offsetof(hipPointerAttribute_t, isManaged)", "hipMemoryTypeHost"]
    theirs += [
        "hipMemoryTypeDevice",
        "hipDeviceAttributeIntegrated",
        "hipDeviceAttributeIsLargeBar",
    ]
    theirs += ["hipIpcMemLazyEnablePeerAccess", "hipMemcpyDefault", "hipErrorNoDevice"]
    ours = [f"offsetof(struct tn_hip_properties_5_2, {name})" for _, name in pairs]
    ours += ["sizeof(struct tn_hip_properties_5_2)", "sizeof(struct tn_hip_pointer)"]
    ours += ["offsetof(struct tn_hip_pointer, is_managed)", "TN_HIP5_HOST"]
    ours += ["TN_HIP5_DEVICE", "TN_HIP_INTEGRATED", "TN_HIP_LARGE_BAR"]
    ours += ["0", "TN_HIP_COPY_DEFAULT", "hipErrorNoDevice"]
    flags = ["-D__HIP_PLATFORM_AMD__", "-I", str(headers), "-w"]
    real = _run(tmp_path, "theirs", "<hip/hip_runtime_api.h>", theirs, *flags)
    told = _run(tmp_path, "ours", f'"{ROOT / "native/abi/hip.h"}"', ours)
    assert [line.split(" = ")[1] for line in told] == [line.split(" = ")[1] for line in real]
