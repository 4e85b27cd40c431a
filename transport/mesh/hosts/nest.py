"""What a host, its zygote and a process that begins say to each other. Imports errors and types.

Three kinds of sockets, all of one user on one machine and inherited or passed, never dialled:
control (SEQPACKET, a message each) between host and zygote, log (a stream of frames) from the
zygote to the host, and setup (SEQPACKET) from the host to one process, used once.
"""

from __future__ import annotations

import array
import socket
import struct
from typing import TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from transport.errors import TransportError

MAX_MESSAGE = 1 << 17  # below the default buffer of a unix socket
MAX_LOG = 1 << 18
KEPT_LINES = 50  # of a process's output, for the cause of its end
KEPT_BYTES = 1 << 15  # of those lines in UTF-8: they fit into one message, an agent's too
MAX_LINE = 4096  # characters of a line that are kept and forwarded
LOG_HEAD = struct.Struct("<I")
HEARD = b"heard"  # a process, on its setup socket: it has read what it shall be


class Fork(Struct, frozen=True, array_like=True, tag="fork"):
    """Host: start a process; its setup socket comes along. `fresh`: as a new interpreter."""

    number: int
    fresh: bool


class Kill(Struct, frozen=True, array_like=True, tag="kill"):
    """Host: SIGKILL for the process and whatever it started in its process group."""

    number: int


class Imported(Struct, frozen=True, array_like=True, tag="imported"):
    """Zygote, first: what was asked for is imported; or what failed, and how."""

    failed: dict[str, str]
    threads: int  # that a fork would not take along; more than one and nothing is forked


class Forked(Struct, frozen=True, array_like=True, tag="forked"):
    number: int
    pid: int


class Failed(Struct, frozen=True, array_like=True, tag="failed"):
    """No process came to be."""

    number: int
    text: str


class Ended(Struct, frozen=True, array_like=True, tag="ended"):
    """Zygote: it has ended, and what it said last."""

    number: int
    code: int | None
    signal: int | None
    logs: tuple[str, ...]


class Output(Struct, frozen=True, array_like=True, tag="output"):
    """Zygote, on the log socket: lines that a process wrote. `stream`: 1 or 2."""

    number: int
    stream: int
    lines: tuple[str, ...]


class Setup(Struct, frozen=True, array_like=True, tag="setup"):
    """Host, to a process: who you are; the link comes along. `cpus`: all when empty."""

    name: str
    host: str
    environment: dict[str, str]
    cpus: tuple[int, ...] = ()


Request: TypeAlias = Fork | Kill
Report: TypeAlias = Imported | Forked | Failed | Ended

encode = msgspec.msgpack.Encoder().encode
_Kind = TypeVar("_Kind")
REQUEST = msgspec.msgpack.Decoder(Request)
REPORT = msgspec.msgpack.Decoder(Report)
SETUP = msgspec.msgpack.Decoder(Setup)
OUTPUT = msgspec.msgpack.Decoder(Output)


def send(sock: socket.socket, message: Struct, fds: tuple[int, ...] = ()) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg([encode(message)], rights, socket.MSG_NOSIGNAL)


def receive(
    sock: socket.socket, decoder: msgspec.msgpack.Decoder[_Kind]
) -> tuple[_Kind, list[int]] | None:
    """A message and the descriptors that came along, which the caller owns; None at the end."""
    fds = array.array("i")
    room = socket.CMSG_SPACE(4 * fds.itemsize)
    try:
        data, ancillary, _, _ = sock.recvmsg(MAX_MESSAGE, room, socket.MSG_CMSG_CLOEXEC)
    except ConnectionError:
        return None
    if not data:
        return None
    for level, what, rights in ancillary:
        if (level, what) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(rights[: len(rights) - len(rights) % fds.itemsize])
    return decoder.decode(data), fds.tolist()


def check_size(message: Struct) -> None:
    """Raises TransportError for what does not fit into one message."""
    size = len(encode(message))
    if size > MAX_MESSAGE:
        raise TransportError(f"a process's environment has {size} bytes, over {MAX_MESSAGE}")


def log_frame(output: Output) -> bytes:
    data = encode(output)
    return LOG_HEAD.pack(len(data)) + data
