"""Times that are set instead of simulated: from flags in milliseconds to the engine's configuration."""

from blis_sim.engine.latency.request_timing import RequestTiming
from blis_sim.options import options_from
from mockserve.options.serve import ServeOptions


def test_every_set_time_comes_to_the_engine_in_microseconds() -> None:
    options = options_from(
        ServeOptions,
        model="m",
        latency_calculator="per-token",
        time_to_first_token_ms=1.0,
        time_to_first_token_std_dev_ms=0.1,
        inter_token_latency_ms=2.0,
        inter_token_latency_std_dev_ms=0.2,
        prefill_overhead_ms=3.0,
        prefill_time_per_token_ms=4.0,
        prefill_time_std_dev_ms=0.4,
        kv_cache_transfer_latency_ms=5.0,
        kv_cache_transfer_latency_std_dev_ms=0.5,
        kv_cache_transfer_time_per_token_ms=6.0,
        kv_cache_transfer_time_std_dev_ms=0.6,
        time_factor_under_load=7.0,
    )
    assert options.timing.request_timing(num_slots=8, seed=9) == RequestTiming(
        first_token_us=1000,
        first_token_std_us=100,
        token_gap_us=2000,
        token_gap_std_us=200,
        per_token=True,
        prefill_overhead_us=3000,
        prefill_per_token_us=4000,
        prefill_std_us=400,
        transfer_us=5000,
        transfer_std_us=500,
        transfer_per_token_us=6000,
        transfer_per_token_std_us=600,
        load_factor=7,
        num_slots=8,
        seed=9,
    )


def test_without_set_times_the_engine_finds_them() -> None:
    assert options_from(ServeOptions, model="m").timing.request_timing(num_slots=8, seed=9) is None
