"""Another user of this host gets nothing, in either direction, whatever secret he may have."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from control_planes import open_plane

from transport.errors import PeerRefused

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")

NOBODY = 65534

# Plain sockets: it speaks first, as an initiator does, and tells how many bytes came back.
CALLER = """
sock = socket.socket(socket.AF_UNIX)
sock.settimeout(60)
sock.connect("\\0" + sys.argv[1])
said = b""
try:
    sock.sendall(b"TENSOR\\2\\0" + bytes(64))
    while part := sock.recv(4096):
        said += part
except ConnectionError:
    pass
print(len(said))
"""

LISTENER = """
server = socket.socket(socket.AF_UNIX)
server.bind("\\0" + sys.argv[1])
server.listen()
server.settimeout(60)
print("ready", flush=True)
sock, _ = server.accept()
sock.settimeout(60)
try:
    print(len(sock.recv(4096)))
except ConnectionError:
    print(0)
"""


def as_nobody(program, name):
    """Becomes the other user after its start, for that one may not be able to start this Python."""
    become = f"import os, socket, sys; os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})"
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", become + program, name],
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("secret", ["a secret of this job", None])
def test_a_caller_of_another_user_is_told_nothing(secret, caplog):
    with open_plane(secret=secret) as one:
        name = one.plane.addresses[0].removeprefix("unix:@")
        with as_nobody(CALLER, name) as caller:
            said, _ = caller.communicate(timeout=60)
        assert said.strip() == "0"
    assert f"another user ({NOBODY})" in caplog.text


def test_a_listener_of_another_user_is_told_nothing():
    name = f"tensor-transport/impostor-{os.getpid()}"
    with open_plane() as one, as_nobody(LISTENER, name) as impostor:
        assert impostor.stdout.readline() == "ready\n"
        with pytest.raises(PeerRefused, match=f"another user .{NOBODY}."):
            one.plane.connect(f"unix:@{name}")
        said, _ = impostor.communicate(timeout=60)
        assert said.strip() == "0"
