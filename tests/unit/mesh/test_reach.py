"""Which address a process tells others, from the links that it has."""

from __future__ import annotations

import socket

import numpy
import pytest

from transport.mesh import reach, tensors
from transport.mesh.remote_tensor import RemoteTensor


@pytest.fixture(autouse=True)
def _forget():
    reach._hosts.clear()
    yield
    reach._hosts.clear()
    tensors.close()


class Link(socket.socket):
    """Connected to another host, as far as can be told."""

    def getsockname(self):
        return ("192.0.2.7", 4711)


def test_links_within_this_host_tell_nothing():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reach.note(ours)
    with socket.create_server(("127.0.0.1", 0)) as server:
        reach.note(server)
    assert reach.hosts() == ()
    assert all(address.startswith("unix:") for address in tensors.here().engine.addresses)


def test_a_link_that_came_to_a_socket_for_both_kinds_of_addresses():
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)), server.accept()[0] as accepted:
            assert accepted.getsockname()[0] == "::ffff:127.0.0.1"
            reach.note(accepted)
            assert reach.own_host(accepted) == "127.0.0.1"
    assert reach.hosts() == ()


def test_a_link_to_another_host_is_noted_once():
    with Link() as link:
        reach.note(link)
        reach.note(link)
    assert reach.hosts() == ("192.0.2.7",)


def test_the_engine_listens_where_others_reach_it(monkeypatch):
    monkeypatch.setattr(reach, "_hosts", ["127.0.0.1"])
    tensors.close()
    assert any(address.startswith("127.0.0.1:") for address in tensors.here().engine.addresses)


def test_an_engine_that_others_cannot_reach_is_followed_by_one_that_they_can(monkeypatch):
    first = tensors.here()
    array = numpy.arange(100)
    handle, ticket = first.lease(array, 1)
    kept = RemoteTensor(handle, first.take([ticket])[0], "numpy", "cpu")
    monkeypatch.setattr(reach, "_hosts", ["127.0.0.1"])
    second = tensors.here()
    assert any(address.startswith("127.0.0.1:") for address in second.engine.addresses)
    assert tensors.here() is second
    assert numpy.array_equal(kept.fetch(), array)  # with the second, from the first
    tensors.close()
    assert first.engine.closed
    assert second.engine.closed
