"""The matrices of a model as one GPU holds them: names that vLLM gives their modules, and their storage."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple


class WeightFormat(NamedTuple):
    """Storage of one matrix.

    `group_columns` inputs and `group_rows` outputs share one scale of `scale_bytes`; 0 columns means that the scales
    are too few to count. With `has_zero_points` every scale has a zero point of `bits` beside it.
    """

    name: str
    bits: int
    group_columns: int = 0
    group_rows: int = 1
    scale_bytes: float = 0.0
    has_zero_points: bool = False

    def matrix_bytes(self, rows: int, columns: int) -> int:
        """Return the bytes of a matrix with its scales."""
        weights = -(-rows * columns * self.bits // 8)
        if not self.group_columns:
            return weights
        groups = -(-rows // self.group_rows) * -(-columns // self.group_columns)
        zero_points = groups * self.bits // 8 if self.has_zero_points else 0
        return weights + int(groups * self.scale_bytes) + zero_points


FP8 = WeightFormat("fp8", 8)
INT8 = WeightFormat("int8", 8)
MXFP8 = WeightFormat("mxfp8", 8, 32, 1, 1.0)
NVFP4 = WeightFormat("nvfp4", 4, 16, 1, 1.0)
MXFP4 = WeightFormat("mxfp4", 4, 32, 1, 1.0)
NF4 = WeightFormat("nf4", 4, 64, 1, 1.0)


def plain(bytes_per_weight: int) -> WeightFormat:
    """Return the format of weights that are not quantised."""
    return WeightFormat("unquantized", 8 * bytes_per_weight)


def block_fp8(rows: int, columns: int) -> WeightFormat:
    """Return FP8 with one 32-bit scale per block of `rows` by `columns` weights."""
    return WeightFormat("block fp8", 8, columns, rows, 4.0)


def grouped_integers(bits: int, group_size: int, has_zero_points: bool) -> WeightFormat:
    """Return integers of `bits` with a 16-bit scale per group of inputs, per output where `group_size` is 0."""
    columns = group_size if group_size > 0 else 2**30
    return WeightFormat(f"int{bits}", bits, columns, 1, 2.0, has_zero_points)


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


_PARENTS = (
    "model.language_model.model.",
    "model.language_model.",
    "language_model.model.",
    "language_model.",
    "backbone.",
    "model.",
)


def canonical(name: str) -> str:
    """Return a name or a pattern without the parent of the decoder."""
    for parent in _PARENTS:
        if name.startswith(parent):
            return name[len(parent) :]
    return name


def ignores_exactly(module: Module, ignored: Collection[str]) -> bool:
    """Return whether a list of full names ignores a module: experts when one of them is listed, else all shards."""
    if module.name in ignored:
        return True
    if module.role == EXPERTS:
        return any(module.name in name for name in ignored)
    return all(name in ignored for name in module.shard_names())
