"""The matrices of a model as one GPU holds them, by the names that vLLM gives their modules."""

from collections.abc import Callable
from dataclasses import dataclass

from blis_sim.engine.memory.weight_formats import WeightFormat

LINEAR = "linear"
EXPERTS = "experts"
HEAD = "lm_head"


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One module with matrices: `count` of each of `matrices`, rows (outputs) by columns (inputs).

    `name` is the dotted name below the decoder, such as `layers.0.self_attn.qkv_proj`; `shards` are the names of the
    checkpoint's matrices that vLLM merges into it. `other_parameters` are biases, which are never quantised.
    """

    name: str
    matrices: tuple[tuple[int, int], ...]
    role: str = LINEAR
    shards: tuple[str, ...] = ()
    count: int = 1
    other_parameters: int = 0

    def shard_names(self) -> tuple[str, ...]:
        """Return the dotted names of the checkpoint's matrices."""
        parent = self.name.rpartition(".")[0]
        return tuple(f"{parent}.{shard}" for shard in self.shards) or (self.name,)


FormatOf = Callable[[Module], WeightFormat | None]
"""From a module to its format; None for full precision."""
