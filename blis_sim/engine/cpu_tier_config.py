"""The settings of CPU memory behind the KV cache, and the time of a transfer from there."""

from dataclasses import dataclass
from math import ceil

from blis_sim.engine.errors import EngineError
from blis_sim.engine.units import Micros

LONGEST_TRANSFER_US: Micros = 3_600_000_000
"""Upper limit of the time to move a block: longer times are mistakes."""


@dataclass(frozen=True, slots=True)
class OffloadConfig:
    """CPU memory to which vLLM copies KV blocks. Raises EngineError for a value out of bounds."""

    num_blocks: int
    block_us: float
    """The time to bring one block to the GPU or to CPU memory."""

    def __post_init__(self) -> None:
        if self.num_blocks < 1:
            raise EngineError(f"num_blocks must be at least 1, got {self.num_blocks}")
        if not 0 <= self.block_us <= LONGEST_TRANSFER_US:
            raise EngineError(f"block_us must be at least 0 and at most {LONGEST_TRANSFER_US}, got {self.block_us}")


@dataclass(frozen=True, slots=True)
class CpuTierConfig:
    """CPU memory behind the KV cache, for `num_blocks` blocks. Raises EngineError for a value out of bounds."""

    num_blocks: int
    policy: str = "mirror"
    """The policy of moving blocks, a key of `blis_sim.engine.kv_cache.tiered_cache.OFFLOAD_POLICIES`."""
    offload_threshold: float = 0.9
    """Share of the GPU's blocks in use above which free ones go there. The policy "threshold" only."""
    bandwidth_tokens_per_us: float = 100.0
    base_latency_us: Micros = 0

    def __post_init__(self) -> None:
        if self.num_blocks < 1:
            raise EngineError(f"num_blocks must be at least 1, got {self.num_blocks}")
        if self.base_latency_us < 0:
            raise EngineError(f"base_latency_us must be at least 0, got {self.base_latency_us}")
        if not self.bandwidth_tokens_per_us > 0:
            raise EngineError(f"bandwidth_tokens_per_us must be above 0, got {self.bandwidth_tokens_per_us}")
        if not 0 <= self.offload_threshold <= 1:
            raise EngineError(f"offload_threshold must be at least 0 and at most 1, got {self.offload_threshold}")

    def transfer_us(self, block_size_tokens: int) -> Micros:
        """Return the time to bring back one block. Raises EngineError for more than an hour."""
        time_us = self.base_latency_us + block_size_tokens / self.bandwidth_tokens_per_us
        if time_us > LONGEST_TRANSFER_US:
            raise EngineError(
                f"bringing back a block of {block_size_tokens} tokens would take {time_us:g} us; it must take "
                f"at most {LONGEST_TRANSFER_US} us (--kv-transfer-bandwidth, --kv-transfer-base-latency)"
            )
        return self.base_latency_us + ceil(block_size_tokens / self.bandwidth_tokens_per_us)
