"""Division of a model over GPUs by tensor, expert and pipeline parallelism."""

from collections.abc import Sequence
from typing import NamedTuple

from blis_sim.engine.errors import EngineError

_VOCABULARY_MULTIPLE = 64


class ShardingError(EngineError):
    """A part of a model cannot be divided over that many GPUs."""


class Sharding(NamedTuple):
    """Tensor parallelism of `tp` GPUs, pipeline parallelism of `pp` stages, `dp` replicas of all but the experts.

    `expert_parallel` gives every GPU whole experts instead of parts of all.
    """

    model: str
    tp: int = 1
    pp: int = 1
    dp: int = 1
    expert_parallel: bool = False

    def part(self, size: int, what: str) -> int:
        """Return one GPU's part of `size`. Raises ShardingError when tp does not divide it."""
        if size % self.tp:
            raise ShardingError(f"{self.model} has {size} {what}, which tp {self.tp} does not divide")
        return size // self.tp

    def kv_heads(self, heads: int) -> int:
        """Return the KV heads of one GPU: where GPUs outnumber heads, each holds a copy of one."""
        if heads < self.tp:
            if self.tp % heads:
                raise ShardingError(f"{self.model} has {heads} KV heads, which do not divide tp {self.tp}")
            return 1
        return self.part(heads, "KV heads")

    def vocabulary(self, size: int) -> int:
        """Return the rows of an embedding on one GPU; vLLM pads vocabularies to multiples of 64."""
        padded = -(-size // _VOCABULARY_MULTIPLE) * _VOCABULARY_MULTIPLE
        return -(-padded // self.tp)

    def experts(self, experts: int, intermediate_size: int) -> tuple[int, int]:
        """Return how many experts one GPU holds, and their intermediate size there: replicas share the experts."""
        gpus = self.tp * self.dp
        if self.expert_parallel:
            return -(-experts // gpus), intermediate_size
        if intermediate_size % gpus:
            raise ShardingError(
                f"{self.model} has experts of width {intermediate_size}, which {gpus} GPUs do not divide"
            )
        return experts, intermediate_size // gpus


def stage_layers(num_layers: int, pp: int, model: str) -> Sequence[range]:
    """Return the layers of every pipeline stage as vLLM splits them.

    Layers that do not divide evenly go to the stages before the last, from the back, so that the last stage, which also
    has the output head, and where possible the first have fewest.
    """
    if pp > num_layers:
        raise ShardingError(f"{model} has {num_layers} layers, fewer than the {pp} pipeline stages")
    counts = [num_layers // pp] * pp
    for stage in range(2, num_layers % pp + 2):
        counts[-stage] += 1
    starts = [sum(counts[:stage]) for stage in range(pp)]
    return [range(start, start + count) for start, count in zip(starts, counts, strict=True)]
