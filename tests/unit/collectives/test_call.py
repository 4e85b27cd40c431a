"""Collective calls as data."""

from __future__ import annotations

import pytest

from transport.collectives.call import Call, Kind
from transport.collectives.reduction import Premultiplied, Reduction
from transport.errors import InvalidUse

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("name", ["sum", "prod", "min", "max", "avg"])
def test_reductions_have_names(name: str) -> None:
    assert Reduction.parse(name).value == name  # type: ignore[union-attr]


def test_a_factor_of_each_rank_is_a_reduction() -> None:
    assert Reduction.parse(Premultiplied(0.5)) == Premultiplied(0.5)


def test_what_is_no_reduction_is_refused_by_name() -> None:
    with pytest.raises(InvalidUse, match="'mean'"):
        Reduction.parse("mean")


def test_bytes_count_what_is_in_place_once() -> None:
    x = torch.zeros(8)
    assert Call(Kind.ALL_REDUCE, (x,), (x,)).bytes == 32
    assert Call(Kind.ALL_GATHER, (x[:2],), (x[:2], x[2:4], x[4:6], x[6:])).bytes == 32
