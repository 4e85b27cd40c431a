"""verbs keeps the contract between two hosts, with the engines' usual providers."""

from __future__ import annotations

import pytest
from verbs_ways import TWO_HOSTS

from transport.testing.contract import Contract

pytestmark = pytest.mark.usefixtures("on_b")


class TestTwoHosts(Contract):
    way = TWO_HOSTS
