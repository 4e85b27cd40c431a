"""Four trainers that publish, and a reader."""

from __future__ import annotations

import pytest
from trainers import Trainers

from transport import Engine


@pytest.fixture(params=["snapshot", "live"])
def trainers(request):
    made = Trainers(mode=request.param)
    yield made
    made.close()


@pytest.fixture
def reader():
    with Engine(name="reader") as engine:
        yield engine
