"""Layouts from plain tables of slices."""

from __future__ import annotations

import pytest
import shards

from transport.errors import LayoutError
from transport.sharding.importers.tables import layout_of_slices


def test_ranks_have_their_slices():
    table = {0: (slice(0, 3),), 2: (slice(None), slice(1, 2)), 5: (slice(4, 4),)}
    layout = layout_of_slices((4, 2), "int32", table)
    found = shards.filled(layout)
    assert found[0].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert found[2].tolist() == [[1], [3], [5], [7]]
    assert found[5].shape == (0, 2)


@pytest.mark.parametrize("part", [slice(0, 5), slice(-1, None), slice(0, 4, 2), slice(3, 1)])
def test_nothing_is_clamped(part):
    with pytest.raises(LayoutError, match="of rank 3 is no part"):
        layout_of_slices((4,), "int32", {3: (part,)})
