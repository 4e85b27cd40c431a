"""verbs keeps the contract between processes of one host, where shm is not wanted."""

from __future__ import annotations

import pytest
from verbs_ways import ONE_HOST

from transport.testing.contract import Contract

pytestmark = pytest.mark.usefixtures("on_c")


class TestOneHost(Contract):
    way = ONE_HOST
