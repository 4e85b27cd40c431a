"""How a model is spread over ranks, in the words of its users: "dp=2,fsdp=16,tp=8". Pure.

May import errors. Which dimension of which tensor is cut is the rules' business.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from transport.errors import LayoutError

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_RANKS = 1 << 20


@dataclass(frozen=True)
class Parallelism:
    """pp x dp x fsdp x tp ranks, the last one innermost however it is written.

    pp    pipeline stages: each has a contiguous run of layers
    dp    replicas of everything
    fsdp  shards of dimension 0 of each tensor (FSDP2: torch's chunks, uneven)
    tp    tensor parallel ranks: they cut the dimension that the rules say
    ep    experts are spread over so many of a stage's ranks. They are the same ranks: ep multiplies
          nothing. The ranks that are left over replicate (without fsdp, and along dp) or shard
          dimension 0 (with fsdp)
    etp   tensor parallel ranks of each expert: tp without ep, 1 with it, unless said otherwise
    """

    pp: int = 1
    dp: int = 1
    fsdp: int = 1
    tp: int = 1
    ep: int = 1
    etp: int = 0  # 0: see above

    def __post_init__(self) -> None:
        if self.etp == 0:
            object.__setattr__(self, "etp", self.tp if self.ep == 1 else 1)
        if self.size > MAX_RANKS:
            raise LayoutError(f"{self} has {self.size} ranks, over the limit of {MAX_RANKS}")
        _ = self.expert_grid  # refuses what cannot be

    @classmethod
    def parse(cls, text: str) -> Parallelism:
        """Reads "tp=4,pp=2". Raises LayoutError for other text."""
        known = [field.name for field in fields(cls)]
        found: dict[str, int] = {}
        for part in text.split(","):
            written = re.fullmatch(r"\s*([a-z]+)\s*=\s*([0-9]{1,7})\s*", part)
            if not written or written[1] not in known or int(written[2]) < 1:
                words = "with a size: write it as in dp=2,fsdp=16,tp=8, with sizes of 1 and more"
                raise LayoutError(f"{part!r:.40} is none of {', '.join(known)} {words}")
            if written[1] in found:
                raise LayoutError(f"{written[1]} stands twice in {text!r:.80}")
            found[written[1]] = int(written[2])
        return cls(**found)

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.pp * self.stage_size

    @property
    def stage_size(self) -> int:
        """How many ranks hold one pipeline stage."""
        return self.dp * self.fsdp * self.tp

    def grid(self, stage: int) -> NDArray[np.int64]:
        """The ranks of a stage as (dp, fsdp, tp)."""
        return self._ranks(stage).reshape(self.dp, self.fsdp, self.tp)

    def experts_of(self, stage: int) -> NDArray[np.int64]:
        """The ranks of a stage as its experts see them: (replicas, shards, ep, etp)."""
        return self._ranks(stage).reshape(self.expert_grid)

    @property
    def expert_grid(self) -> tuple[int, int, int, int]:
        """(replicas, shards of dimension 0, ep, etp). Raises LayoutError where it does not fit."""
        each, inner = self.ep * self.etp, self.fsdp * self.tp
        if self.stage_size % each or (inner % each and each % inner):
            raise LayoutError(
                f"ep={self.ep} times etp={self.etp} does not fit into dp={self.dp}, "
                f"fsdp={self.fsdp}, tp={self.tp}: choose ep so that it divides fsdp x tp, or is a "
                "multiple of it that divides dp x fsdp x tp"
            )
        left = self.stage_size // each
        shards = inner // each if self.fsdp > 1 and each <= inner else 1
        return left // shards, shards, self.ep, self.etp

    def stage_of(self, layer: int, layers: int) -> int:
        """The stage of a layer: contiguous runs; where it is uneven the first are longer by one."""
        if self.pp > layers:
            raise LayoutError(f"pp={self.pp} is more than the model's {layers} layers")
        each, longer = divmod(layers, self.pp)
        first = longer * (each + 1)
        return layer // (each + 1) if layer < first else longer + (layer - first) // each

    def _ranks(self, stage: int) -> NDArray[np.int64]:
        return np.arange(stage * self.stage_size, (stage + 1) * self.stage_size)

    def __str__(self) -> str:
        default = {"etp": self.tp if self.ep == 1 else 1}
        sizes = {field.name: getattr(self, field.name) for field in fields(self)}
        said = [f"{name}={n}" for name, n in sizes.items() if n != default.get(name, 1)]
        return ",".join(said) or "dp=1"
