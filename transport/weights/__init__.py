"""Publishing and fetching sharded state: versions, no torn reads, files, recovery from peers.

May import sharding and everything below it. One-sided: while a reader fetches, no Python of the
publisher runs, and a publisher's new version is one word that readers find when they look.
"""

from transport.weights.fetch import fetch, subscribe
from transport.weights.publication import Publication, publish
from transport.weights.recover import recover
from transport.weights.save import save
from transport.weights.subscription import Fetched, Subscription

__all__ = [
    "Fetched",
    "Publication",
    "Subscription",
    "fetch",
    "publish",
    "recover",
    "save",
    "subscribe",
]
