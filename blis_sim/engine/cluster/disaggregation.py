"""Settings of prefill/decode disaggregation: pools of instances, the decider, and the network between instances.

A new decider is one function and one row of `DECIDERS`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate, pairwise
from typing import NamedTuple, TypeAlias

from blis_sim.engine.errors import EngineError
from blis_sim.engine.units import Micros
from blis_sim.options.limits import LONGEST_BASE_LATENCY_MS, SLOWEST_GB_PER_S


class Role(StrEnum):
    """The part of a request that an instance computes under prefill/decode disaggregation."""

    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "prefill-decode"
    ENCODE = "encode"


@dataclass(frozen=True, slots=True)
class Pools:
    """Number of instances of each role; roles follow each other in instance order. Raises EngineError."""

    num_instances: int
    num_prefill: int = 0
    num_decode: int = 0
    num_both: int = 0
    num_encode: int = 0

    def __post_init__(self) -> None:
        if self.num_assigned > self.num_instances:
            raise EngineError(
                f"--prefill-instances, --decode-instances, --prefill-decode-instances and --encode-instances must add "
                f"up to at most --num-instances ({self.num_instances}), got {self.num_assigned}"
            )
        if self.is_disaggregated and not (self.prefill and self.decode):
            raise EngineError(
                "separate pools need at least one instance for prefill and one for decode: "
                "give --prefill-instances and --decode-instances, or --prefill-decode-instances"
            )

    @property
    def num_assigned(self) -> int:
        return self.num_prefill + self.num_decode + self.num_both + self.num_encode

    @property
    def is_disaggregated(self) -> bool:
        """Whether any instance has a role."""
        return bool(self.num_assigned)

    @property
    def prefill(self) -> tuple[int, ...]:
        """Numbers of the instances that may compute prompts for others."""
        return tuple(index for index, role in enumerate(self.roles) if role in (Role.PREFILL, Role.BOTH))

    @property
    def decode(self) -> tuple[int, ...]:
        """Numbers of the instances that may decode."""
        return tuple(index for index, role in enumerate(self.roles) if role in (Role.DECODE, Role.BOTH))

    @property
    def roles(self) -> tuple[Role | None, ...]:
        """Role of each instance by number; None for an instance in no pool, which gets no requests."""
        sizes = (self.num_prefill, self.num_decode, self.num_both, self.num_encode)
        roles: list[Role | None] = [None] * self.num_instances
        for role, (first, end) in zip(Role, pairwise((0, *accumulate(sizes))), strict=True):
            roles[first:end] = [role] * (end - first)
        return tuple(roles)


class Prompt(NamedTuple):
    """Input of a decider. `num_cached_tokens` are those that the router expects in the decode instance's cache."""

    num_tokens: int
    num_cached_tokens: int
    threshold_tokens: int


Separates: TypeAlias = Callable[[Prompt], bool]
"""Whether a prefill instance computes the prompt."""


@dataclass(frozen=True, slots=True)
class Decider:
    """A decision per prompt, and whether it depends on cached tokens."""

    separates: Separates
    reads_caches: bool = False


def never(_prompt: Prompt) -> bool:
    """Let the decode instance compute every prompt."""
    return False


def always(_prompt: Prompt) -> bool:
    """Let a prefill instance compute every prompt, even one that the decode instance has in its cache."""
    return True


def prefix_threshold(prompt: Prompt) -> bool:
    """Let a prefill instance compute a prompt if the decode instance misses more tokens than the threshold."""
    return prompt.num_tokens - prompt.num_cached_tokens > prompt.threshold_tokens


DECIDERS: dict[str, Decider] = {
    "never": Decider(never),
    "always": Decider(always),
    "prefix-threshold": Decider(prefix_threshold, reads_caches=True),
}
"""Deciders by name."""


@dataclass(frozen=True, slots=True)
class TransferSettings:
    """The network between instances. Raises EngineError for bandwidth or latency out of bounds."""

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
    """Transfers under way. A transfer's share of the bandwidth is fixed when it starts, as in BLIS."""

    __slots__ = ("_settings", "bytes_per_block", "most_active", "num_active", "num_ended", "num_started")

    def __init__(self, settings: TransferSettings, bytes_per_block: float) -> None:
        self._settings = settings
        self.bytes_per_block = bytes_per_block
        self.num_active = 0
        self.most_active = 0
        self.num_started = 0
        self.num_ended = 0

    def start(self, num_blocks: int) -> Micros:
        """Start a transfer of `num_blocks`. Returns its duration, at least one microsecond."""
        self.num_started += 1
        self.num_active += 1
        self.most_active = max(self.most_active, self.num_active)
        gb_per_s = self._settings.gb_per_s
        if self._settings.is_shared:
            gb_per_s /= self.num_active
        base_us = self._settings.base_latency_ms * 1000
        return max(1, math.ceil(base_us + num_blocks * self.bytes_per_block / (gb_per_s * 1000)))

    def end(self) -> None:
        """Count the end of one transfer."""
        self.num_active -= 1
        self.num_ended += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DisaggregationSettings:
    """Pools, decider and network of a cluster. Raises EngineError for an unknown decider."""

    pools: Pools
    decider: str = "never"
    threshold_tokens: int = 0
    transfer: TransferSettings = field(default_factory=TransferSettings)

    def __post_init__(self) -> None:
        if self.decider not in DECIDERS:
            raise EngineError(f"the P/D decider must be one of {', '.join(DECIDERS)}, got {self.decider!r}")
