"""A checkpoint through files in memory: sources save, then targets load their part."""

from __future__ import annotations

from pathlib import Path

from member import Member, pieces, serve
from safetensors import safe_open
from safetensors.torch import save_file


class Files(Member):
    """safetensors: a file for each source, mapped and sliced by the targets."""

    def __init__(self, side, rank, spec, options):
        super().__init__(side, rank, spec, options)
        self.folder = Path(options["folder"])
        self.pieces = list(pieces(spec, rank)) if side == "target" else []

    def save(self, seed):
        save_file(self.tensors, self.folder / f"{self.rank}.safetensors")

    def load(self, seed):
        sources = self.ranks("source")
        files = [safe_open(self.folder / f"{it}.safetensors", "pt") for it in sources]
        for name, source, there, here in self.pieces:
            self.tensors[name][here].copy_(files[source].get_slice(name)[there])


serve(Files)
