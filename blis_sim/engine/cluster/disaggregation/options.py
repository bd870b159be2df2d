"""The flags of a cluster in which prompts and answers can be computed on different instances."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blis_sim.engine.cluster.disaggregation.transfer import LONGEST_BASE_LATENCY_MS, SLOWEST_GB_PER_S, TransferSettings
from blis_sim.engine.cluster.scorer_weights import Weights, parse_weights
from blis_sim.engine.engine_defaults import AUTO
from blis_sim.engine.latency.registry import LATENCY_MODELS
from blis_sim.options import OptionError, check_options, ineffective_flags, names_in, option, options_of

if TYPE_CHECKING:
    from blis_sim.engine.cluster.disaggregation.settings import DisaggregationSettings

DEFAULT_THRESHOLD_TOKENS = 16
_LATENCY_MODELS = ("", AUTO, *LATENCY_MODELS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """Which instances compute prompts, which answer."""

    prefill_instances: int = option(
        0,
        "Instances that only compute prompts, the first ones; of those in pools the others follow.",
        at_least=0,
        heading="Instances for prefill and for decode",
    )
    decode_instances: int = option(0, "Instances that answer, after them.", at_least=0)
    prefill_decode_instances: int = option(0, "Instances that do both, after those.", at_least=0)
    encode_instances: int = option(
        0, "Instances set apart for encoders, after those. Encoding takes no time.", at_least=0
    )
    pd_decider: str = option(
        "never",
        "Which prompts are computed on another instance than the answer: none, all, or those of which the decode "
        "instance has too little in its KV cache.",
        choices=names_in("blis_sim.engine.cluster.disaggregation.deciders", "DECIDERS"),
    )
    pd_prefix_threshold: int = option(
        DEFAULT_THRESHOLD_TOKENS,
        "Most tokens of a prompt that --pd-decider prefix-threshold lets the decode instance compute.",
        at_least=0,
    )
    pd_transfer_bandwidth: float = option(
        25.0,
        "GB per second at which KV blocks come from a prefill instance to a decode instance.",
        at_least=SLOWEST_GB_PER_S,
    )
    pd_transfer_base_latency: float = option(
        0.05, "Milliseconds that each transfer takes on top.", at_least=0, at_most=LONGEST_BASE_LATENCY_MS
    )
    pd_transfer_contention: bool = option(False, "Let transfers that begin while others are under way share that.")
    prefill_routing_scorers: str = option(
        "",
        "Scorers that choose the prefill instance, as in --routing-scorers (default: as --routing-policy says).",
        metavar="SCORER:WEIGHT,...",
    )
    decode_routing_scorers: str = option(
        "", "Scorers that choose the decode instance, likewise.", metavar="SCORER:WEIGHT,..."
    )
    prefill_tp: int = option(0, "--tp of prefill instances, if another.", at_least=0)
    prefill_hardware: str = option("", "--hardware of prefill instances, if another.")
    prefill_latency_model: str = option(
        "", "--latency-model of prefill instances, if another.", choices=_LATENCY_MODELS
    )
    prefill_max_model_len: int = option(0, "--max-model-len of prefill instances, if another.", at_least=0)
    decode_tp: int = option(0, "--tp of decode instances, if another.", at_least=0)
    decode_hardware: str = option("", "--hardware of decode instances, if another.")
    decode_latency_model: str = option("", "--latency-model of decode instances, if another.", choices=_LATENCY_MODELS)
    decode_max_model_len: int = option(0, "--max-model-len of decode instances, if another.", at_least=0)

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
        # What separates prompts from answers is imported where something does.
        from blis_sim.engine.cluster.disaggregation.pools import Pools
        from blis_sim.engine.cluster.disaggregation.settings import DisaggregationSettings

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
        """Instances that have a role."""
        return self.prefill_instances + self.decode_instances + self.prefill_decode_instances + self.encode_instances


def pool_weights(text: str, flag: str) -> Weights | None:
    """The scorers of one pool; None when it has none of its own. Raises EngineError."""
    return parse_weights(text, flag) if text.strip() else None


def pool_flags_without_effect(options: PoolOptions) -> Iterator[str]:
    """What was said about pools or transfers that there are not, in a line each."""
    needed = ""
    if not options.num_pooled:
        needed = "--prefill-instances and --decode-instances"
    elif options.pd_decider == "never":
        needed = "--pd-decider"
        if options.prefill_instances:
            yield "instances of --prefill-instances get nothing to do without --pd-decider"
    elif options.pd_decider != "prefix-threshold" and options.pd_prefix_threshold != DEFAULT_THRESHOLD_TOKENS:
        yield "--pd-prefix-threshold has no effect without --pd-decider prefix-threshold"
    own = {setting.name for setting in options_of(PoolOptions)}
    transfers = ("pd_prefix_threshold", "pd_transfer_bandwidth", "pd_transfer_base_latency", "pd_transfer_contention")
    if needed:
        yield from ineffective_flags(options, dict.fromkeys(transfers if options.num_pooled else own, needed))
