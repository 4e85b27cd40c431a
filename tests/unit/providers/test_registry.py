"""Which providers are known, and what happens with one that does not load."""

from __future__ import annotations

import dataclasses
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest

from transport.config import Settings
from transport.errors import InvalidUse, PeerRefused, Unavailable
from transport.providers import registry
from transport.providers.base import Provider
from transport.types import LinkFacts, Offer

FACTS = LinkFacts(is_unix=False, pid=0, uid=-1, initiator=True, incarnation=bytes(16))


class Foreign:
    name = "pigeon"
    identifier = 5

    def probe(self, settings):
        raise NotImplementedError

    def open(self, engine, settings):
        raise NotImplementedError


def install(monkeypatch, loaded, name="pigeon"):
    entry = SimpleNamespace(name=name, value="pigeons:post", load=loaded)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry])


def test_the_built_in_ones_are_listed_in_their_default_order():
    assert (
        registry.names()[:5] == ("gpu_ipc", "shm", "verbs", "tcp", "staged") == Settings().providers
    )


@pytest.mark.parametrize("name", ["shm", "tcp"])
def test_built_in_ones_are_usable_and_meet_the_contract(name):
    provider = registry.find(name)
    assert isinstance(provider, Provider)
    assert provider.name == name
    assert provider.probe(Settings())


def test_tcp_takes_the_lesser_number_of_streams():
    endpoint = registry.find("tcp").open(None, Settings(tcp_streams=5))
    assert endpoint.connection(dataclasses.replace(FACTS, is_unix=True)) is None
    connection = endpoint.connection(FACTS)
    assert connection.offer() == Offer(bytes([5]))
    connection.accept(Offer(bytes([3])), FACTS)
    assert connection.offer() == Offer(bytes([3]))
    for wrong in (b"", bytes([0]), bytes([1, 2])):
        with pytest.raises(PeerRefused):
            connection.accept(Offer(wrong), FACTS)
    assert "tcp" in endpoint.describe()
    endpoint.close()


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(InvalidUse, match=r"'carrier'.*shm"):
        registry.find("carrier")


def test_a_third_party_is_an_object_or_makes_one(monkeypatch):
    provider = Foreign()
    install(monkeypatch, lambda: provider)
    assert registry.find("pigeon") is provider
    assert "pigeon" in registry.names()
    install(monkeypatch, lambda: Foreign)
    assert isinstance(registry.find("pigeon"), Foreign)


def test_a_third_party_cannot_take_our_place(monkeypatch):
    install(monkeypatch, lambda: Foreign(), name="tcp")
    assert registry.find("tcp").identifier == 2
    assert registry.names().count("tcp") == 1


@pytest.mark.parametrize(
    "changes", [{"identifier": 2}, {"identifier": 10}, {"name": "dove"}, {"probe": None, "open": 1}]
)
def test_a_third_party_that_is_none_is_unavailable(monkeypatch, changes):
    provider = Foreign()
    for name, value in changes.items():
        setattr(provider, name, value)
    if "probe" in changes:
        provider = object()
    install(monkeypatch, lambda: lambda: provider)
    with pytest.raises(Unavailable):
        registry.find("pigeon")


def test_a_third_party_that_fails_to_import_is_unavailable_with_its_reason(monkeypatch):
    entry = EntryPoint("pigeon", "no_such_module_here:post", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry])
    with pytest.raises(Unavailable, match="no_such_module_here"):
        registry.find("pigeon")
