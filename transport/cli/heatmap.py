"""Who sends what to whom, as a picture: characters, PNG or SVG. Pure; may import types.

A matrix has a row for each source rank and a column for each target rank, in bytes. Drawn by hand:
a plotting library would be a heavy thing to need for one plot.
"""

from __future__ import annotations

import base64
import itertools
import struct
import zlib
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from transport.types import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

SHADES = " ░▒▓█"
_PLOT = 640  # pixels of the longer side of the matrix in an SVG
_NARROW = 120.0  # at least, of the shorter side
_MARGIN = 70
_LIGHT, _DARK = (255, 255, 255), (8, 48, 107)


def binned(matrix: NDArray[np.int64], rows: int, columns: int) -> NDArray[np.float64]:
    """Means over rectangles, so that it has at most so many rows and columns."""
    low, left = edges(matrix.shape[0], rows), edges(matrix.shape[1], columns)
    sums = np.add.reduceat(np.add.reduceat(matrix, low, axis=0), left, axis=1)
    height = np.diff(low, append=matrix.shape[0])
    width = np.diff(left, append=matrix.shape[1])
    means: NDArray[np.float64] = sums / (height[:, None] * width)
    return means


def edges(count: int, most: int) -> NDArray[np.int64]:
    """Where `count` things begin anew when they are put into at most so many bins: equal ones,
    unless that would leave less than half of them."""
    bins = min(count, most)
    equal = next(n for n in range(bins, 0, -1) if count % n == 0)
    bins = equal if 2 * equal >= bins else bins
    return np.arange(bins) * count // bins


def text(matrix: NDArray[np.int64], rows: int = 24, columns: int = 64) -> list[str]:
    """Lines of shades between no bytes and the largest mean, with the ranks of each row."""
    bins = binned(matrix, rows, columns)
    labels = [f"{span:>11} " for span in _spans(matrix.shape[0], len(bins))]
    wide = " " * len(labels[0])
    lines = [wide + "┌" + "─" * bins.shape[1] + "┐"]
    for label, levels in zip(labels, _levels(bins, len(SHADES) - 1)):
        lines.append(f"{label}│{''.join(SHADES[level] for level in levels)}│")
    lines.append(wide + "└" + "─" * bins.shape[1] + "┘")
    last = matrix.shape[1] - 1
    under = "0" + (f"{last:>{bins.shape[1] - 1}}" if last else "")
    most = format_bytes(int(bins.max()))
    legend = f"rows: source ranks, columns: target ranks; █ = {most} from one to one"
    return [*lines, f"{wide} {under}", f"{wide} {legend}"]


def png(matrix: NDArray[np.int64], most: int = 1024) -> bytes:
    """A pixel for each pair of ranks (of bins, above `most`): white for nothing, dark for most."""
    bins = binned(matrix, most, most)
    shade = _levels(bins, 255)[..., None].astype(np.float64) / 255
    light, dark = np.array(_LIGHT), np.array(_DARK)
    pixels = np.rint(light + (dark - light) * shade).astype(np.uint8)
    height, width = bins.shape
    lines = np.zeros((height, 1 + 3 * width), np.uint8)  # each line begins with its filter: none
    lines[:, 1:] = pixels.reshape(height, -1)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB
    chunks = (b"IHDR", head), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def svg(matrix: NDArray[np.int64], title: str, notes: Sequence[str] = ()) -> str:
    """The same picture with axes, a scale and words around it."""
    rows, columns = matrix.shape
    scale = _PLOT / max(rows, columns)
    width, height = (max(count * scale, _NARROW) for count in (columns, rows))
    top = 50 + 18 * len(notes)
    right, bottom = _MARGIN + width, top + height
    image = base64.b64encode(png(matrix)).decode()
    words = [
        _words(_MARGIN, 26, title, size=15),
        *(_words(_MARGIN, 46 + 18 * line, note) for line, note in enumerate(notes)),
        _words(_MARGIN + width / 2, bottom + 36, "target rank", anchor="middle"),
        _words(_MARGIN, bottom + 18, "0"),
        _words(right, bottom + 18, str(columns - 1), anchor="end"),
        _words(_MARGIN - 8, top + 12, "0", anchor="end"),
        _words(_MARGIN - 8, bottom, str(rows - 1), anchor="end"),
        _words(_MARGIN - 8, top + height / 2, "source", anchor="end"),
        _words(right + 40, top + 12, format_bytes(int(binned(matrix, 1024, 1024).max()))),
        _words(right + 40, top + 120, "0"),
    ]
    place = f'x="{_MARGIN}" y="{top}" width="{width:.1f}" height="{height:.1f}"'
    pixels = 'preserveAspectRatio="none" style="image-rendering:pixelated"'
    words_width = _MARGIN + 7 * max(map(len, (title, *notes)))
    wide = max(right + 150, words_width)
    whole = f'width="{wide:.0f}" height="{bottom + 60:.0f}" font-family="sans-serif"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {whole}>',
            '<rect width="100%" height="100%" fill="white"/>',
            f'<image {place} {pixels} href="data:image/png;base64,{image}"/>',
            f'<rect {place} fill="none" stroke="black"/>',
            _ramp(right + 16, top),
            *words,
            "</svg>\n",
        ]
    )


def _levels(bins: NDArray[np.float64], top: int) -> NDArray[np.int64]:
    """0 for nothing, 1 to `top` for something: little is not nothing."""
    most = float(bins.max()) or 1.0
    return np.ceil(bins * (top / most)).clip(0, top).astype(np.int64)


def _spans(count: int, bins: int) -> list[str]:
    starts = [*edges(count, bins).tolist(), count]
    pairs = itertools.pairwise(starts)
    return [f"{low}" if high == low + 1 else f"{low}-{high - 1}" for low, high in pairs]


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _words(x: float, y: float, words: str, *, anchor: str = "start", size: int = 12) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"'
    return f"<text {place}>{escape(words)}</text>"


def _ramp(x: float, y: float) -> str:
    dark, light = ("rgb({},{},{})".format(*colour) for colour in (_DARK, _LIGHT))
    return (
        '<defs><linearGradient id="ramp" x1="0" y1="0" x2="0" y2="1">'
        f'<stop offset="0" stop-color="{dark}"/><stop offset="1" stop-color="{light}"/>'
        "</linearGradient></defs>"
        f'<rect x="{x:.1f}" y="{y}" width="16" height="120" fill="url(#ramp)" stroke="black"/>'
    )
