"""What layouts look like. The text is the interface here, so it is compared as text."""

from __future__ import annotations

import pytest

from transport.sharding.layout import Layout
from transport.sharding.mesh import Mesh
from transport.sharding.picture import picture_of, picture_of_state, ranks_in_short
from transport.sharding.placement import Replicate, Shard
from transport.sharding.state import StateLayout

MESH = Mesh((2, 4), ("dp", "tp"))


def _drawn(layout, **limits):
    return "\n".join(line.rstrip() for line in picture_of(layout, **limits).splitlines())


def test_a_tensor_that_is_cut_along_two_dimensions():
    layout = Layout.placed((10, 9), "float32", MESH, [Shard(0), Shard(1)])
    assert _drawn(layout) == (
        "float32[10, 9] on dp=2,tp=4: S(0) S(1)\n"
        "360 B, 0 B to 60 B on each of 8 ranks; nothing on 3,7\n"
        "  dim 0 \\ dim 1 | 0:3 | 3:6 | 6:9\n"
        "  0:5           | 0   | 1   | 2\n"
        "  5:10          | 4   | 5   | 6"
    )


def test_copies():
    layout = Layout.placed((4,), "int8", MESH, [Replicate(), Shard(0)])
    assert _drawn(layout).splitlines()[2:] == [
        "  0:1 | 0,4",
        "  1:2 | 1,5",
        "  2:3 | 2,6",
        "  3:4 | 3,7",
    ]


def test_a_big_mesh_is_abbreviated():
    layout = Layout.placed((4096, 4096), "int8", Mesh((64, 64), ("a", "b")), [Shard(0), Shard(1)])
    lines = _drawn(layout, rows=4, columns=4).splitlines()
    assert lines[2:] == [
        "  dim 0 \\ dim 1 | 0:64 | 64:128 | ... | 4032:4096",
        "  0:64          | 0    | 1      | ... | 63",
        "  64:128        | 64   | 65     | ... | 127",
        "  ...           | ...  | ...    | ... | ...",
        "  4032:4096     | 4032 | 4033   | ... | 4095",
    ]


def test_what_has_no_parts():
    assert _drawn(Layout.whole((), "int64", 3)).splitlines()[2:] == ["  all | 3"]
    assert _drawn(Layout.whole((0, 4), "int64")).splitlines()[2:] == ["  all | -"]


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([], "-"),
        ([5], "5"),
        ([0, 1, 2, 3, 8], "0-3,8"),
        ([1, 5, 9, 13], "1-13/4"),
        ([1, 7], "1,7"),
        ([0, 1, 3, 7, 15, 31, 63, 127], "0-1,3,7,15,..."),
    ],
)
def test_ranks_in_short(ranks, text):
    assert ranks_in_short(ranks, 14) == text


def test_a_state_shows_its_layouts_by_size():
    big, small = (Layout.whole((n,), "int8") for n in (1 << 20, 16))
    state = StateLayout({"norm": small, "up": big, "down": big})
    text = picture_of_state(state, layouts=1)
    assert text.startswith("3 tensors, 2 MiB, on 1 ranks in 2 different layouts\n\nup and 1 more: ")
    assert text.endswith("... and 1 more layouts")
