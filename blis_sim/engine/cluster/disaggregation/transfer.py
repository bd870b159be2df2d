"""How long KV blocks take from the instance that computed a prompt to the one that answers."""

import math
from dataclasses import dataclass

from blis_sim.engine.errors import EngineError
from blis_sim.engine.units import Micros

SLOWEST_GB_PER_S = 1e-6
LONGEST_BASE_LATENCY_MS = 1e9


@dataclass(frozen=True, slots=True)
class TransferSettings:
    """The network between instances. Raises EngineError for one that hardly moves."""

    gb_per_s: float = 25.0
    base_latency_ms: float = 0.05
    is_shared: bool = False
    """Whether transfers under way at the same time share the bandwidth."""

    def __post_init__(self) -> None:
        if not SLOWEST_GB_PER_S <= self.gb_per_s < math.inf:
            raise EngineError(f"the transfer bandwidth must be at least {SLOWEST_GB_PER_S:g} GB/s, got {self.gb_per_s}")
        if not 0 <= self.base_latency_ms <= LONGEST_BASE_LATENCY_MS:
            raise EngineError(
                f"the transfer latency must be from 0 to {LONGEST_BASE_LATENCY_MS:g} ms, got {self.base_latency_ms}"
            )


class TransferNetwork:
    """Transfers under way. Each gets its share of the bandwidth when it starts and keeps it, as in BLIS."""

    __slots__ = ("_bytes_per_block", "_settings", "most_active", "num_active", "num_ended", "num_started")

    def __init__(self, settings: TransferSettings, bytes_per_block: float) -> None:
        self._settings = settings
        self._bytes_per_block = bytes_per_block
        self.num_active = 0
        self.most_active = 0
        self.num_started = 0
        self.num_ended = 0

    def start(self, num_blocks: int) -> Micros:
        """Begin to send blocks; how long it will take, at least one microsecond."""
        self.num_started += 1
        self.num_active += 1
        self.most_active = max(self.most_active, self.num_active)
        gb_per_s = self._settings.gb_per_s
        if self._settings.is_shared:
            gb_per_s /= self.num_active
        base_us = self._settings.base_latency_ms * 1000
        return max(1, math.ceil(base_us + num_blocks * self._bytes_per_block / (gb_per_s * 1000)))

    def end(self) -> None:
        """One of them has arrived."""
        self.num_active -= 1
        self.num_ended += 1
