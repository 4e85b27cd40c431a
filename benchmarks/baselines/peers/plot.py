"""Draws what a run found: rate by size, one line for each way. `plot.py peers.json peers.svg`.

Runs in an environment of its own that has matplotlib; imports nothing of this project.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt

_STYLES = {"ours": ("-", 2.2), "peer": ("--", 1.2), "limit": (":", 1.2)}
_BATCHES = (1, 1024)


def main(source: str, target: str) -> None:
    found = json.loads(Path(source).read_text())
    figure, panels = plt.subplots(1, len(_BATCHES), figsize=(15, 6), sharey=True)
    for panel, batch in zip(panels, _BATCHES):
        _draw(panel, [row for row in found["rows"] if row["asked_batch"] == batch], batch)
    panels[0].set_ylabel("GB/s (median)")
    panels[-1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5), fontsize="small")
    host = found["host"]
    figure.suptitle(f"{host['cpu']}, {host['cores']} cores, Linux {host['kernel']}, {host['time']}")
    figure.savefig(target, bbox_inches="tight")


def _draw(panel, rows, batch):
    for number, name in enumerate(dict.fromkeys(row["way"] for row in rows)):
        mine = [row for row in rows if row["way"] == name and row["verified"]]
        if not mine:
            continue
        dashes, width = _STYLES[mine[0]["kind"]]
        sizes, rates = [row["bytes"] for row in mine], [row["gb_per_s"] for row in mine]
        colour = f"C{number % 10}"
        panel.plot(sizes, rates, dashes, marker=".", lw=width, color=colour, label=name)
    panel.set(xscale="log", yscale="log", xlabel="bytes of a block", title=f"batch {batch}")
    panel.set_xscale("log", base=2)
    panel.grid(alpha=0.3)


main(*sys.argv[1:])
