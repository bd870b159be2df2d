"""The limits one engine instance schedules within."""

from dataclasses import dataclass

from engine.errors import EngineError


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """KV capacity and batch limits, in vLLM's words.

    `long_prefill_token_threshold` 0 means prefills are only split by the token budget; `max_model_len` 0 means
    no limit. Raises EngineError for a value out of bounds, or for a `max_model_len` the KV cache cannot hold.
    """

    total_kv_blocks: int
    block_size_tokens: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    long_prefill_token_threshold: int = 0
    max_model_len: int = 0
    scheduler: str = "fcfs"
    """Order of the wait queue, a key of `engine.scheduler.waiting.ORDERS`."""
    preemption_policy: str = "fcfs"
    """Who loses its blocks, a key of `engine.scheduler.preemption.VICTIMS`."""

    def __post_init__(self) -> None:
        for name in ("total_kv_blocks", "block_size_tokens", "max_num_seqs", "max_num_batched_tokens"):
            _at_least(name, getattr(self, name), 1)
        for name in ("long_prefill_token_threshold", "max_model_len"):
            _at_least(name, getattr(self, name), 0)
        if self.max_model_len > self.kv_capacity_tokens:
            raise EngineError(
                f"max_model_len must fit in the KV cache of {self.kv_capacity_tokens} tokens, got {self.max_model_len}"
            )

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens the whole KV cache holds."""
        return self.total_kv_blocks * self.block_size_tokens


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise EngineError(f"{name} must be at least {least}, got {value}")
