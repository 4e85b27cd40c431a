from __future__ import annotations

import struct
import xml.etree.ElementTree as ET
import zlib

import numpy as np
import pytest

from transport.cli import heatmap

MATRIX = np.array([[0, 1 << 20], [1, 4 << 20]])


def pixels(data):
    """Height, width and rows of RGB of a PNG without filters."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    at, body = 8, b""
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        kind, content = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        (check,) = struct.unpack(">I", data[at + 8 + length : at + 12 + length])
        assert check == zlib.crc32(kind + content)
        body += content if kind == b"IDAT" else b""
        at += 12 + length
    raw = np.frombuffer(zlib.decompress(body), np.uint8).reshape(height, 1 + 3 * width)
    assert not raw[:, 0].any()
    return raw[:, 1:].reshape(height, width, 3)


def test_nothing_is_white_little_is_not_and_most_is_darkest():
    image = pixels(heatmap.png(MATRIX))
    assert image[0, 0].tolist() == [255, 255, 255]
    assert image[1, 0].tolist() != [255, 255, 255]
    assert image[1, 1].tolist() == [8, 48, 107]


def test_many_ranks_become_bins():
    matrix = np.ones((4096, 30), np.int64)
    assert pixels(heatmap.png(matrix)).shape == (1024, 30, 3)
    assert (heatmap.binned(matrix, 24, 64) == 1).all()


@pytest.mark.parametrize(
    ("count", "most", "bins"), [(8, 24, 8), (256, 64, 64), (96, 64, 48), (127, 64, 64)]
)
def test_bins_are_equal_where_that_leaves_enough(count, most, bins):
    starts = heatmap.edges(count, most)
    assert len(starts) == bins
    assert starts[0] == 0
    assert (np.diff(starts) > 0).all()


def test_text_has_a_line_for_each_source_and_a_legend():
    lines = heatmap.text(MATRIX)
    assert lines[1].endswith("│ ░│")
    assert lines[2].endswith("│░█│")
    assert "█ = 4 MiB" in lines[-1]


def test_text_of_nothing():
    assert heatmap.text(np.zeros((1, 1), np.int64))[1].endswith("│ │")


def test_svg_is_xml_with_its_words_and_picture():
    root = ET.fromstring(heatmap.svg(MATRIX, "a < b", ["x & y", "z"]))
    words = [it.text for it in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"a < b", "x & y", "z", "target rank", "source"} <= set(words)
    (image,) = root.iter("{http://www.w3.org/2000/svg}image")
    assert image.get("href").startswith("data:image/png;base64,")
