"""The settings of `blis serve` that set latencies outright, instead of letting the simulated engine find them."""

from dataclasses import dataclass

from blis_sim.engine.latency.request_timing import RequestTiming
from blis_sim.options import OptionError, check_options, option, options_of

CALCULATORS = ("engine", "constant", "per-token")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingOptions:
    """Times of requests, in milliseconds. Requests then run in --max-num-seqs slots, each on a clock of its own."""

    latency_calculator: str = option(
        "engine",
        "Where latencies come from: the simulated engine, set times, or set times with a first token by prompt length.",
        choices=CALCULATORS,
        heading="Set times instead of an engine's",
    )
    time_to_first_token_ms: float = option(0.0, "Set time to the first token.", at_least=0)
    time_to_first_token_std_dev_ms: float = option(0.0, "Its standard deviation.", at_least=0)
    inter_token_latency_ms: float = option(0.0, "Set time between tokens.", at_least=0)
    inter_token_latency_std_dev_ms: float = option(0.0, "Its standard deviation.", at_least=0)
    prefill_overhead_ms: float = option(0.0, "Part of the time to the first token that is always there.", at_least=0)
    prefill_time_per_token_ms: float = option(0.0, "What each prompt token that is not cached adds to it.", at_least=0)
    prefill_time_std_dev_ms: float = option(0.0, "Standard deviation of the two together.", at_least=0)
    kv_cache_transfer_latency_ms: float = option(
        0.0, "Time to the first token of a prompt computed by another instance.", at_least=0
    )
    kv_cache_transfer_latency_std_dev_ms: float = option(0.0, "Its standard deviation.", at_least=0)
    kv_cache_transfer_time_per_token_ms: float = option(0.0, "The same by prompt length.", at_least=0)
    kv_cache_transfer_time_std_dev_ms: float = option(0.0, "Its standard deviation.", at_least=0)
    time_factor_under_load: float = option(
        1.0, "How many times as long set times are with all slots in use as with one.", at_least=1
    )

    def __post_init__(self) -> None:
        check_options(self)
        if not self.sets_times:
            for setting in options_of(TimingOptions):
                if setting.of(self) != setting.default:
                    raise OptionError(f"{setting.label} needs --latency-calculator constant or per-token")

    @property
    def sets_times(self) -> bool:
        """Whether latencies are set outright; otherwise the engine finds them."""
        return self.latency_calculator != "engine"

    def request_timing(self, num_slots: int, seed: int) -> RequestTiming | None:
        """The set times of requests in `num_slots` slots, drawn by `seed`; None lets the engine find them."""
        if not self.sets_times:
            return None
        return RequestTiming(
            first_token_us=self.time_to_first_token_ms * 1000,
            first_token_std_us=self.time_to_first_token_std_dev_ms * 1000,
            token_gap_us=self.inter_token_latency_ms * 1000,
            token_gap_std_us=self.inter_token_latency_std_dev_ms * 1000,
            per_token=self.latency_calculator == "per-token",
            prefill_overhead_us=self.prefill_overhead_ms * 1000,
            prefill_per_token_us=self.prefill_time_per_token_ms * 1000,
            prefill_std_us=self.prefill_time_std_dev_ms * 1000,
            transfer_us=self.kv_cache_transfer_latency_ms * 1000,
            transfer_std_us=self.kv_cache_transfer_latency_std_dev_ms * 1000,
            transfer_per_token_us=self.kv_cache_transfer_time_per_token_ms * 1000,
            transfer_per_token_std_us=self.kv_cache_transfer_time_std_dev_ms * 1000,
            load_factor=self.time_factor_under_load,
            num_slots=num_slots,
            seed=seed,
        )
