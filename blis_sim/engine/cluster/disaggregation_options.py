"""The flags of prefill/decode disaggregation: pools of instances, the decider, and transfers of KV blocks."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blis_sim.engine.cluster.weights import Weights, parse_weights
from blis_sim.engine.engine_defaults import AUTO
from blis_sim.engine.latency.registry import LATENCY_MODELS
from blis_sim.options import OptionError, check_options, ineffective_flags, names_in, option, options_of
from blis_sim.options.limits import LONGEST_BASE_LATENCY_MS, SLOWEST_GB_PER_S

if TYPE_CHECKING:
    from blis_sim.engine.cluster.disaggregation import DisaggregationSettings

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
        from blis_sim.engine.cluster.disaggregation import DisaggregationSettings, Pools, TransferSettings

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
