"""NVIDIA's own Python bindings drive the double: two processes, each with a driver that it reached
by NVIDIA's declarations, share memory in both ways. Run by tests/gpu/test_witness.py:

    python cuda_witness.py owner|user SOCKET_FD

May import the standard library and cuda.bindings only: not the package under test.
"""

from __future__ import annotations

import ctypes
import socket
import sys
from typing import Any

from cuda.bindings import driver as cu

PIECE, IPC_BYTES = 2 << 20, 64
BY_DESCRIPTOR = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


def call(answer: tuple[Any, ...]) -> Any:
    error, *values = answer
    assert error == cu.CUresult.CUDA_SUCCESS, error
    return values[0] if len(values) == 1 else values


def context() -> Any:
    call(cu.cuInit(0))
    device = call(cu.cuDeviceGet(0))
    made = call(cu.cuDevicePrimaryCtxRetain(device))
    call(cu.cuCtxSetCurrent(made))
    return device


def properties() -> Any:
    made = cu.CUmemAllocationProp()
    made.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    made.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    made.location.id = 0
    made.requestedHandleTypes = BY_DESCRIPTOR
    made.allocFlags.gpuDirectRDMACapable = 1
    return made


def mapped(handle: Any) -> int:
    base = int(call(cu.cuMemAddressReserve(PIECE, 0, 0, 0)))
    call(cu.cuMemMap(base, PIECE, 0, handle, 0))
    access = cu.CUmemAccessDesc()
    access.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.location.id = 0
    access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    call(cu.cuMemSetAccess(base, PIECE, [access], 1))
    return base


def write(to: int, data: bytes) -> None:
    """By a stream, an event that another stream waits for, and a copy behind it."""
    first, second = (
        call(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING)) for _ in range(2)
    )
    event = call(cu.cuEventCreate(cu.CUevent_flags.CU_EVENT_DISABLE_TIMING))
    source = ctypes.create_string_buffer(data, len(data))
    call(cu.cuMemsetD8Async(to, 0, len(data), first))
    call(cu.cuEventRecord(event, first))
    call(cu.cuStreamWaitEvent(second, event, 0))
    call(cu.cuMemcpyHtoDAsync(to, ctypes.addressof(source), len(data), second))
    call(cu.cuStreamSynchronize(second))
    assert cu.cuEventQuery(event)[0] == cu.CUresult.CUDA_SUCCESS
    call(cu.cuEventDestroy(event))
    call(cu.cuStreamDestroy(first))
    call(cu.cuStreamDestroy(second))


def read(source: int, size: int) -> bytes:
    found = ctypes.create_string_buffer(size)
    call(cu.cuMemcpyDtoH(ctypes.addressof(found), source, size))
    return found.raw


def ask(address: int, *names: str) -> list[Any]:
    kinds = cu.CUpointer_attribute
    return [
        call(cu.cuPointerGetAttribute(getattr(kinds, f"CU_POINTER_ATTRIBUTE_{name}"), address))
        for name in names
    ]


def owner(channel: socket.socket) -> None:
    device = context()
    assert call(cu.cuDeviceGetName(64, device)).split(b"\0")[0] == b"Fake GPU 0"
    assert bytes(call(cu.cuDeviceGetUuid(device)).bytes) == b"\xf0" * 16
    handle = call(cu.cuMemCreate(PIECE, properties(), 0))
    base = mapped(handle)
    assert ask(base, "MEMORY_TYPE", "IS_LEGACY_CUDA_IPC_CAPABLE", "RANGE_SIZE")[1:] == [0, PIECE]
    fd = int(call(cu.cuMemExportToShareableHandle(handle, BY_DESCRIPTOR, 0)))
    write(base, b"by descriptor")
    socket.send_fds(channel, [b"v"], [fd])
    assert channel.recv(1) == b"d"
    assert read(base, 13) == b"BY DESCRIPTOR"
    plain = int(call(cu.cuMemAlloc(5000)))
    assert ask(plain, "IS_LEGACY_CUDA_IPC_CAPABLE", "RANGE_SIZE") == [1, 5000]
    write(plain + 100, b"by handle")
    channel.send(ctypes.string_at(call(cu.cuIpcGetMemHandle(plain)).getPtr(), IPC_BYTES))
    assert channel.recv(1) == b"d"
    assert read(plain + 100, 9) == b"BY HANDLE"
    call(cu.cuMemFree(plain))
    dmabuf = call(cu.cuMemGetHandleForAddressRange(
        base, PIECE, cu.CUmemRangeHandleType.CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 1))  # fmt: skip
    assert int(dmabuf) > 2
    call(cu.cuMemUnmap(base, PIECE))
    call(cu.cuMemAddressFree(base, PIECE))
    call(cu.cuMemRelease(handle))


def user(channel: socket.socket) -> None:
    context()
    _, (fd,), _, _ = socket.recv_fds(channel, 1, 1)
    handle = call(cu.cuMemImportFromShareableHandle(fd, BY_DESCRIPTOR))
    base = mapped(handle)
    assert read(base, 13) == b"by descriptor"
    write(base, b"BY DESCRIPTOR")
    channel.send(b"d")
    ipc = cu.CUipcMemHandle()
    ctypes.memmove(ipc.getPtr(), channel.recv(IPC_BYTES), IPC_BYTES)
    flag = cu.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
    plain = int(call(cu.cuIpcOpenMemHandle(ipc, flag)))
    assert ask(plain, "RANGE_SIZE") == [5000]
    assert read(plain + 100, 9) == b"by handle"
    write(plain + 100, b"BY HANDLE")
    call(cu.cuIpcCloseMemHandle(plain))
    channel.send(b"d")
    call(cu.cuMemUnmap(base, PIECE))
    call(cu.cuMemAddressFree(base, PIECE))
    call(cu.cuMemRelease(handle))


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[2])) as end:
        {"owner": owner, "user": user}[sys.argv[1]](end)
