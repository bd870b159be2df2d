"""The way of a prompt's KV cache from the replica that computed it to the one that decodes.

Facts: vidur-alibabacloud, vidur/events/batch_end_event.py and vidur/entities/replica.py.
"""

from dataclasses import dataclass
from typing import Any

from blis_sim.bench.errors import BenchError
from blis_sim.bench.vidur.catalogue import VidurModel
from replay.metrics_dir.request_rows import KVTransfer

WIDTHS = {"fp8": 1, "int8": 1, "float16": 2, "fp16": 2, "bfloat16": 2, "bf16": 2, "float32": 4, "fp32": 4}
WIDTHS |= {"float64": 8, "fp64": 8}
"""Bytes of an element by the name of its type."""
_ORIGINAL_GBIT = 2**30
"""Bits per second that SimAI takes a Gbit/s for."""
_GBIT = 10**9


def bytes_per_s(gbit_s: float, *, is_original: bool) -> float:
    """Return the rate of a link."""
    return gbit_s * (_ORIGINAL_GBIT if is_original else _GBIT) / 8


@dataclass(frozen=True, slots=True)
class Transfers:
    """The links between replicas, and the KV cache that they carry."""

    model: VidurModel
    bytes_per_s: float
    dtype: str
    is_original: bool

    def of(self, prompt_tokens: int) -> KVTransfer:
        """Return the transfer of a prompt on a link of its own."""
        width = WIDTHS[self.dtype]
        size_bytes = width * self._values(prompt_tokens)
        return KVTransfer(
            size_bytes=size_bytes,
            duration_s=size_bytes / self.bytes_per_s,
            bytes_per_s=self.bytes_per_s,
            bytes_per_value=width,
            dtype=self.dtype,
        )

    def _values(self, prompt_tokens: int) -> int:
        """Return the elements of a KV cache.

        The original counts the first output token, and full heads in all layers of all models.
        """
        model = self.model
        per_token = 2 * model.num_kv_heads * model.head_size * model.num_layers
        if self.is_original:
            return (prompt_tokens + 1) * per_token
        return prompt_tokens * per_token if model.experts is None else model.experts.kv_values(prompt_tokens)


def transfers_of(model: VidurModel, replica: dict[str, Any], *, is_original: bool) -> Transfers:
    """Return the transfers of a configuration. Raises BenchError."""
    dtype = replica["pd_p2p_comm_dtype"]
    if dtype not in WIDTHS:
        raise BenchError(f"--replica_config_pd_p2p_comm_dtype must be one of {', '.join(WIDTHS)}, got {dtype!r}")
    rate = bytes_per_s(replica["pd_p2p_comm_bandwidth"], is_original=is_original)
    return Transfers(model, rate, dtype, is_original)
