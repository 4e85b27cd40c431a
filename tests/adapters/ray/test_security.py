"""Who may talk to the engines of a cluster: those who have its secret, and nobody without one."""

from __future__ import annotations

import contextlib
import pickle
import socket

import pytest
import ray
from ray.experimental import internal_kv
from ray.util import get_node_ip_address
from ray_actors import BIG, Member, card_of

import transport
import transport.adapters.ray as adapter
from transport import PeerLost, PeerRefused

pytestmark = [pytest.mark.usefixtures("cluster"), pytest.mark.filterwarnings("ignore")]


def tcp_of(addresses):
    return [address for address in addresses if not address.startswith("unix:")]


def test_it_listens_on_the_nodes_address_only(members):
    for _, _, addresses in [
        *ray.get([m.facts.remote() for m in members]),
        (0, 0, adapter.engine().addresses),
    ]:
        hosts = {address.rpartition(":")[0] for address in tcp_of(addresses)}
        assert hosts <= {get_node_ip_address()}


def test_the_secret_is_the_clusters_and_does_not_travel_with_references(members):
    secret = internal_kv._internal_kv_get("secret", namespace="tensor-transport")
    assert len(secret) >= 32
    adapter._secret()
    assert internal_kv._internal_kv_get("secret", namespace="tensor-transport") == secret
    card = card_of(ref := members[0].numbers.remote(BIG))
    assert secret not in pickle.dumps(card)
    assert secret.decode() not in repr(adapter.engine())
    del ref


def test_strangers_are_refused(members):
    _, _, addresses = ray.get(members[0].facts.remote())
    with transport.Engine(secret="of somebody else, long enough") as stranger:
        for address in addresses:
            with pytest.raises((PeerRefused, PeerLost)):
                stranger.connect(address, timeout=10)
    for address in tcp_of(addresses):
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10) as raw:
            raw.sendall(b"GET / HTTP/1.0\r\n\r\n")
            raw.settimeout(20)
            with contextlib.suppress(ConnectionError):
                while raw.recv(1 << 16):
                    pass  # it may say what it is, and hangs up
    assert ray.get(members[0].ready.remote())


def test_an_actor_with_a_secret_of_its_own_is_no_member():
    env = {"env_vars": {"TRANSPORT_SECRET": "another secret than the cluster's"}}
    other = Member.options(runtime_env=env).remote()
    ref = other.numbers.remote(BIG)
    with pytest.raises((PeerRefused, PeerLost), match="made by actor"):
        ray.get(ref)
