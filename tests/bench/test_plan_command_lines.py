"""Command lines of a plan, read back by `blis serve`: they carry every setting, and give the engine of the plan."""

from pathlib import Path
from typing import Any

import pytest

from blis_sim.bench.candidates import Candidate, Choices, Judgement, Targets, read_prices
from blis_sim.bench.capacity import CapacityQuery, Trial
from blis_sim.bench.plan_report import blis_arguments, served_name, serving_of, vllm_arguments
from blis_sim.bench.simulation_commands import simulation
from blis_sim.engine.cluster.options import ClusterOptions
from blis_sim.engine.deployment import resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.latency.confidence import Sureness
from blis_sim.options import options_from, options_of
from blis_sim.options.command_line import parse_command_line
from blis_sim.options.option import Setting, parse_value
from blis_sim.options.provenance import flag_words
from mockserve.command import rewritten
from mockserve.options.serve import ServeOptions

MODEL, EXPERTS = "qwen3-14b", "qwen3-30b-a3b"
SPECULATION = '{"method": "ngram", "num_speculative_tokens": 2}'

TEXTS: dict[str, Any] = {
    "cold_start": "45s",
    "kill": "60s:1",
    "hardware": "H200",
    "latency_model": "trained-physics",
    "dtype": "float16",
    "quantization": "fp8",
    "kv_cache_dtype": "fp8",
    "priority_base": "critical=4,batch=-1",
    "speculative_config": SPECULATION,
    "spec_method": "ngram",
    "admission_policy": "token-bucket",
    "routing_scorers": "queue-depth:2,kv-utilization:1",
    "prefill_hardware": "H200",
    "decode_hardware": "H200",
    "gateway_slo_targets": "critical=200000",
    "slo_deadlines": "critical=500",
    "collectives": "analytical",
    "spec_model": "qwen3-0.6b",
    "prefill_routing_scorers": "queue-depth:1",
    "decode_routing_scorers": "queue-depth:1",
}
"""Values of settings whose type alone does not say which values there are."""
LISTS = {"alpha_coeffs": (1.0, 2.0, 3.0), "beta_coeffs": (1.0,) * 10, "speculative_acceptance_rate": (0.5,)}
TOGETHER: dict[str, dict[str, Any]] = {
    "alpha_coeffs": {"beta_coeffs": LISTS["beta_coeffs"]},
    "beta_coeffs": {"alpha_coeffs": LISTS["alpha_coeffs"]},
    "spec_method": {"spec_tokens": 2},
    "spec_tokens": {"spec_method": "ngram"},
    "speculative_acceptance_rate": {"speculative_config": SPECULATION},
    "speculative_draft_time": {"speculative_config": SPECULATION},
    "speculative_seed": {"speculative_config": SPECULATION},
    "spec_model": {"spec_method": "draft_model", "spec_tokens": 2},
    "operators": {"latency_model": "operators"},
    "collectives": {"latency_model": "roofline"},
    "network_config": {"collectives": "ns3:command", "latency_model": "roofline"},
    "encode_instances": {"prefill_instances": 1, "decode_instances": 1, "num_instances": 3},
    "dp": {"model": EXPERTS},
    "moe_comm_backend": {"model": EXPERTS, "dp": 2},
    "moe_backend": {"model": EXPERTS, "dp": 1},
    "enable_expert_parallel": {"model": EXPERTS, "tp": 2},
    "enable_chunked_prefill": {"max_num_batched_tokens": 50_000},
    "max_num_active_seqs": {"max_num_seqs": 128},
    "cold_start": {"autoscaler": "nowhere.yaml"},
    "pd_decider": {"prefill_instances": 1, "decode_instances": 1},
    "prefill_instances": {"decode_instances": 2, "num_instances": 4},
    "decode_instances": {"prefill_instances": 2, "num_instances": 4},
}
"""Settings that a setting needs beside it."""
FILES = {
    *("model_config_folder", "hardware_config", "coefficients", "operators"),
    *("network_config", "policy_config", "autoscaler"),
}
"""Settings that name a file, of which the text of the flag is enough."""
NUMBERS: dict[str, Any] = {
    "gpu_memory_utilization": 0.8,
    "total_kv_blocks": 3000,
    "max_model_len": 4096,
    "max_num_scheduled_tokens": 4096,
    "kv_cache_memory_bytes": 20 * 2**30,
    "watermark": 0.05,
    "spec_tokens": 2,
    "block_size": 32,
}


def another_value(setting: Setting) -> Any:
    """A value of a setting that is not its default."""
    for known in (TEXTS, LISTS, NUMBERS):
        if setting.name in known:
            return known[setting.name]
    if setting.name in FILES:
        return "nowhere.json"
    if setting.kind is bool:
        return not setting.default
    if setting.option.choices:
        return next(each for each in setting.option.choices if each not in ("", setting.default))
    most = setting.option.bounds.at_most
    step = setting.kind(1 if setting.kind is int else 0.25)
    value = (setting.default or 0) + step
    if setting.name in ("tp", "pp", "prefill_tp", "decode_tp", "prefill_pp", "decode_pp", "dp"):
        return 2
    return value if most is None or value <= most else setting.default - step


def read_back(arguments: tuple[str, ...], *more: str) -> ServeOptions:
    """The options of `blis serve` with these arguments."""
    parsed = parse_command_line(ServeOptions, rewritten([*arguments, *more]), parse_value)
    return options_from(ServeOptions, **parsed.values)


def values_of(options: Any) -> dict[str, Any]:
    """The settings of a cluster or a deployment by name."""
    return {setting.name: setting.of(options) for setting in options_of(type(options))}


def cluster_with(setting: Setting) -> ClusterOptions:
    base: dict[str, Any] = {"model": MODEL, "hardware": "H100", "tp": 1}
    given = base | TOGETHER.get(setting.name, {}) | {setting.name: another_value(setting)}
    return options_from(ClusterOptions, **given)


CLUSTER = [each for each in options_of(ClusterOptions) if each.name != "model"]
INSTANCE = [each for each in options_of(DeploymentOptions) if each.name != "model" and each.name not in FILES]


@pytest.mark.parametrize("setting", CLUSTER, ids=lambda setting: setting.name)
def test_every_setting_of_a_plan_is_read_back_from_the_command_line_of_blis_serve(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = cluster_with(setting)
    words = blis_arguments(options)
    assert {*setting.spellings} & {*words}
    if setting.name == "policy_config":
        (tmp_path / "nowhere.json").write_text("{}")
    assert values_of(read_back(words).cluster) == values_of(options)


@pytest.mark.parametrize("setting", INSTANCE, ids=lambda setting: setting.name)
def test_the_command_line_of_vllm_gives_the_engine_of_the_plan_or_names_what_it_cannot_say(setting: Setting) -> None:
    options = cluster_with(setting).deployment
    found = vllm_arguments(options)
    assert found.arguments[0] == served_name(options.model)
    if found.without_flag:
        assert {*setting.spellings} & {*found.without_flag}
        return
    predicted = [word for name in PREDICTED for word in words_of(options, name)]
    served = read_back(found.arguments, *predicted).deployment
    assert resolve(served).config == resolve(options).config
    assert (served.tp, served.pp, served.dp) == (options.tp, options.pp, options.dp)


PREDICTED = (
    *("engine", "vllm_version", "hardware", "latency_model", "alpha_coeffs", "beta_coeffs", "collectives"),
    *("speculative_acceptance_rate", "speculative_draft_time", "speculative_seed", "moe_comm_backend"),
)
"""Settings of the prediction alone, which `blis serve` needs beside those of vLLM."""


def words_of(options: DeploymentOptions, name: str) -> list[str]:
    (setting,) = (each for each in options_of(DeploymentOptions) if each.name == name)
    value = setting.of(options)
    return [] if value == setting.default else flag_words(setting, value)


def test_settings_that_vllm_lacks_are_few_and_none_of_memory_parallelism_or_batches() -> None:
    lacking = {each.name for each in INSTANCE if vllm_arguments(cluster_with(each).deployment).without_flag}
    assert not lacking & {
        *("tp", "pp", "dp", "enable_expert_parallel", "total_kv_blocks", "block_size", "gpu_memory_utilization"),
        *("kv_cache_dtype", "quantization", "dtype", "max_num_seqs", "max_num_batched_tokens", "max_model_len"),
        *("cpu_offload_gb", "kv_offloading_size", "kv_cpu_blocks", "watermark", "performance_mode"),
        *("speculative_config", "enable_prefix_caching", "async_scheduling", "moe_comm_backend", "enforce_eager"),
        *("scheduler_reserve_full_isl", "prefill_schedule_interval", "long_prefill_token_threshold"),
    }


def test_blocks_in_cpu_memory_are_as_many_for_vllm() -> None:
    options = DeploymentOptions(model=MODEL, hardware="H100", tp=2, kv_cpu_blocks=1234)
    served = read_back(vllm_arguments(options).arguments, "--hardware", "H100").deployment
    offloads = [resolve(each).config.offload for each in (options, served)]
    assert offloads[0] is not None
    assert offloads[0] == offloads[1]
    assert offloads[0].num_blocks == 1234


def test_a_context_beyond_the_kv_cache_is_lowered_so_that_vllm_starts() -> None:
    """DeepSeek-V3 on four B200 has less KV cache than its context window takes."""
    simulated = simulation("run")
    settings: dict[str, Any] = {"model": "deepseek-ai/DeepSeek-V3", "hardware": "B200", "tp": 4, "pp": 1}
    candidate = Candidate(
        gpu="B200",
        settings=settings,
        gpus_per_instance=(4,),
        busy_instances=(1.0,),
        price_per_gpu_hour=4.0,
        label="tp 4",
        sureness=Sureness("fitted", {}),
    )
    query = CapacityQuery(
        simulation=simulated,
        settings=settings,
        choices=Choices(
            gpus=["B200"],
            tps=[4],
            pps=[1],
            dps=[1],
            quantizations=[""],
            kv_cache_dtypes=[""],
            speculative_configs=[""],
            batched_tokens=[None],
            shapes=["aggregated"],
        ),
        prices=read_prices(None),
        targets=Targets({"ttft_p99_ms": 1.0}),
        most_gpus=8,
    )
    serving = serving_of(query, Trial(candidate, (1,), Judgement({"ttft_p99_ms": 0.5}, "ttft_p99_ms")))
    fitting = str(resolve(DeploymentOptions(**settings)).config.max_model_len)
    for arguments in (serving.simulated.split(), serving.pools[0].arguments):
        assert arguments[arguments.index("--max-model-len") + 1] == fitting
