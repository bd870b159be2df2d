"""Prefill/decode disaggregation as its flags set it: pools of instances, the decider, and transfers of KV blocks.

A new decider is one function and one row of `DECIDERS`.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate, pairwise
from typing import NamedTuple, TypeAlias

from blis_sim.engine.cluster.scorers import Weights, parse_weights
from blis_sim.engine.engine_defaults import AUTO
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.registry import LATENCY_MODELS
from blis_sim.engine.units import Micros
from blis_sim.options import OptionError, check_options, ineffective_flags, names_in, option, options_of
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


DEFAULT_THRESHOLD_TOKENS = 16
_LATENCY_MODELS = ("", AUTO, *LATENCY_MODELS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """Which instances compute prompts, which answer."""

    prefill_instances: int = option(
        0,
        "Number of prefill-only instances. Prefill-only instances get the lowest instance numbers; the other pools "
        "follow.",
        at_least=0,
        heading="Prefill/decode disaggregation",
    )
    decode_instances: int = option(
        0, "Number of decode-only instances. Their numbers follow those of --prefill-instances.", at_least=0
    )
    prefill_decode_instances: int = option(
        0,
        "Number of instances for prefill and decode. Their numbers follow those of --decode-instances.",
        at_least=0,
    )
    encode_instances: int = option(
        0,
        "Number of instances set apart for encoders. Their numbers follow those of --prefill-decode-instances. "
        "Encoding takes no time.",
        at_least=0,
    )
    pd_decider: str = option(
        "never",
        "Which prompts a prefill instance computes: none, all, or those with more than --pd-prefix-threshold tokens "
        "missing from the decode instance's cache.",
        choices=names_in("blis_sim.engine.cluster.disaggregation", "DECIDERS"),
    )
    pd_prefix_threshold: int = option(
        DEFAULT_THRESHOLD_TOKENS,
        "Most missing prompt tokens that the decode instance computes itself with --pd-decider prefix-threshold.",
        at_least=0,
    )
    pd_transfer_bandwidth: float = option(
        25.0,
        "Bandwidth in GB per second of transfers of KV blocks from a prefill to a decode instance.",
        at_least=SLOWEST_GB_PER_S,
    )
    pd_transfer_base_latency: float = option(
        0.05,
        "Milliseconds added to each transfer of KV blocks.",
        at_least=0,
        at_most=LONGEST_BASE_LATENCY_MS,
    )
    pd_transfer_contention: bool = option(
        False, "Divide --pd-transfer-bandwidth by the number of transfers under way when a transfer starts."
    )
    prefill_routing_scorers: str = option(
        "",
        "Scorers that choose the prefill instance, as in --routing-scorers (default: those of --routing-policy).",
        metavar="SCORER:WEIGHT,...",
    )
    decode_routing_scorers: str = option(
        "",
        "Scorers that choose the decode instance, as in --routing-scorers (default: those of --routing-policy).",
        metavar="SCORER:WEIGHT,...",
    )
    prefill_tp: int = option(0, "--tp of prefill instances, if different.", at_least=0)
    prefill_pp: int = option(0, "--pp of prefill instances, if different.", at_least=0)
    prefill_hardware: str = option("", "--hardware of prefill instances, if different.")
    prefill_latency_model: str = option(
        "", "--latency-model of prefill instances, if different.", choices=_LATENCY_MODELS
    )
    prefill_max_model_len: int = option(0, "--max-model-len of prefill instances, if different.", at_least=0)
    decode_tp: int = option(0, "--tp of decode instances, if different.", at_least=0)
    decode_pp: int = option(0, "--pp of decode instances, if different.", at_least=0)
    decode_hardware: str = option("", "--hardware of decode instances, if different.")
    decode_latency_model: str = option(
        "", "--latency-model of decode instances, if different.", choices=_LATENCY_MODELS
    )
    decode_max_model_len: int = option(0, "--max-model-len of decode instances, if different.", at_least=0)

    def __post_init__(self) -> None:
        check_options(self)
        for flag, text in (
            ("--prefill-routing-scorers", self.prefill_routing_scorers),
            ("--decode-routing-scorers", self.decode_routing_scorers),
        ):
            _ = pool_weights(text, flag)  # making it checks it
        if self.pd_decider != "never" and not self.num_pooled:
            raise OptionError(
                f"--pd-decider {self.pd_decider} needs --prefill-instances and --decode-instances, "
                "or --prefill-decode-instances"
            )

    def disaggregation(self, num_instances: int) -> "DisaggregationSettings | None":
        """The roles of a cluster's instances; None when all compute prompts and answers. Raises EngineError."""
        if not self.num_pooled:
            return None
        # Most simulations have no pools, so their settings are imported here.

        pools = Pools(
            num_instances,
            self.prefill_instances,
            self.decode_instances,
            self.prefill_decode_instances,
            self.encode_instances,
        )
        transfer = TransferSettings(
            gb_per_s=self.pd_transfer_bandwidth,
            base_latency_ms=self.pd_transfer_base_latency,
            is_shared=self.pd_transfer_contention,
        )
        return DisaggregationSettings(
            pools=pools, decider=self.pd_decider, threshold_tokens=self.pd_prefix_threshold, transfer=transfer
        )

    @property
    def num_pooled(self) -> int:
        """Number of instances that have a role."""
        return self.prefill_instances + self.decode_instances + self.prefill_decode_instances + self.encode_instances


def pool_weights(text: str, flag: str) -> Weights | None:
    """Parse the scorers of one pool; None for empty text. Raises EngineError."""
    return parse_weights(text, flag) if text.strip() else None


def notes_on_pools(options: PoolOptions, num_instances: int) -> Iterator[str]:
    """Yield a line for each flag of pools and transfers that has no effect, and for instances that serve nothing."""
    if options.num_pooled and options.num_pooled < num_instances:
        yield (
            f"warning: {num_instances - options.num_pooled} of {num_instances} instances have no role and get no "
            f"requests: --prefill-instances, --decode-instances and the like add up to {options.num_pooled}"
        )
    if options.prefill_decode_instances and options.pd_decider == "never":
        yield (
            "--prefill-decode-instances compute the prompts of their own requests without --pd-decider; "
            "--pd-decider always may send a prompt to another one"
        )
    needed = ""
    if not options.num_pooled:
        needed = "--prefill-instances and --decode-instances"
    elif options.pd_decider == "never":
        needed = "--pd-decider"
        if options.prefill_instances:
            yield "--prefill-instances get no requests without --pd-decider; --pd-decider always sends them all prompts"
    elif options.pd_decider != "prefix-threshold" and options.pd_prefix_threshold != DEFAULT_THRESHOLD_TOKENS:
        yield "--pd-prefix-threshold has no effect without --pd-decider prefix-threshold"
    own = {setting.name for setting in options_of(PoolOptions)}
    transfers = ("pd_prefix_threshold", "pd_transfer_bandwidth", "pd_transfer_base_latency", "pd_transfer_contention")
    if needed:
        yield from ineffective_flags(options, dict.fromkeys(transfers if options.num_pooled else own, needed))
