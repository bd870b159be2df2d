"""From flags to an engine's configuration and latency model."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.deployment import Deployment, resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.fitted import Fitted
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.latency.roofline import Roofline
from blis_sim.engine.latency.trained_physics import TrainedPhysics
from blis_sim.engine.latency.wrapped import PeakWatch, RangeWatch
from blis_sim.engine.speculation import Speculation
from blis_sim.engine.speculation_options import SpeculationOptions
from blis_sim.options import BlisError, OptionError, check_options, option, options_from, options_of

NGRAM = '{"method": "ngram", "num_speculative_tokens": 2}'
SCOUT = "redhatai/llama-4-scout-17b-16e-instruct-fp8-dynamic"


def watched_model(deployment: Deployment) -> LatencyModel:
    """Return the latency model below a watch for steps that beat the peak rates of the GPU."""
    latency = deployment.latency
    return latency.model if isinstance(latency, PeakWatch) else latency


def test_a_model_name_is_enough() -> None:
    deployment = resolve(DeploymentOptions(model="Qwen/Qwen3-14B"))
    assert (deployment.gpu.name, deployment.tp, deployment.dp) == ("H100", 1, 1)
    assert deployment.config == EngineConfig(
        total_kv_blocks=17_676, max_model_len=40_960, max_num_seqs=1024, max_num_batched_tokens=8192
    )
    assert isinstance(deployment.latency, RangeWatch)
    assert isinstance(deployment.latency.model, Fitted)
    assert deployment.notes == ()


def test_blis_brings_defaults_of_its_own() -> None:
    deployment = resolve(DeploymentOptions(model="Qwen/Qwen3-14B", engine="blis"))
    assert deployment.config == EngineConfig(
        total_kv_blocks=15_909, max_model_len=40_960, max_num_seqs=256, max_num_batched_tokens=2048, engine="blis"
    )
    assert isinstance(watched_model(deployment), TrainedPhysics)


@pytest.mark.parametrize(
    ("given", "tokens", "seqs"),
    [
        ({"hardware": "B200"}, 16384, 1024),
        ({"hardware": "H200"}, 8192, 1024),
        ({"hardware": "A100-80"}, 2048, 256),
        ({"hardware": "L40S"}, 2048, 256),
        ({"max_num_seqs": 4, "max_model_len": 1000}, 4000, 4),
        ({"max_num_batched_tokens": 100}, 100, 100),
        ({"enable_chunked_prefill": False}, 40_960, 1024),
        ({"hardware": "L40S", "max_num_seqs": 3000}, 2048, 3000),
    ],
)
def test_limits_of_a_step_are_those_of_vllm_on_the_gpu(given: dict[str, Any], tokens: int, seqs: int) -> None:
    config = resolve(options_from(DeploymentOptions, model="qwen3-14b", tp=1, **given)).config
    assert (config.max_num_batched_tokens, config.max_num_seqs) == (tokens, seqs)


def test_a_scheduling_policy_stands_for_order_and_preemption() -> None:
    config = resolve(DeploymentOptions(model="qwen3-14b", scheduling_policy="priority")).config
    assert (config.scheduler, config.preemption_policy) == ("priority-fcfs", "priority")
    with pytest.raises(OptionError, match=r"^--scheduling-policy priority means --scheduler priority-fcfs, got sjf$"):
        DeploymentOptions(model="m", scheduling_policy="priority", scheduler="sjf")


def test_learned_step_times_carry_over_to_other_deployments_with_one_note() -> None:
    deployment = resolve(DeploymentOptions(model="llama-3.1-8b", hardware="H100", tp=1, latency_model="fitted"))
    assert deployment.latency_name == "fitted"
    (note,) = deployment.notes
    assert note.startswith("warning: the shipped coefficients were learned for qwen3-14b on H100 with tp 1, not for ")


def test_coefficients_given_on_the_command_line_are_those_of_trained_physics() -> None:
    deployment = resolve(DeploymentOptions(model="qwen3-14b", alpha_coeffs=(0,) * 3, beta_coeffs=(1.0,) * 7))
    assert isinstance(watched_model(deployment), TrainedPhysics)


def test_flags_win_over_the_catalogue() -> None:
    options = DeploymentOptions(
        model="qwen3-14b", hardware="a100-80", tp=2, latency_model="roofline", total_kv_blocks=700,
        block_size=32, max_num_seqs=8, max_num_batched_tokens=512, long_prefill_token_threshold=256,
        max_model_len=1100,
    )  # fmt: skip
    deployment = resolve(options)
    assert (deployment.gpu.name, deployment.tp) == ("A100-SXM", 2)
    assert isinstance(watched_model(deployment), Roofline)
    assert deployment.config == EngineConfig(
        total_kv_blocks=700, block_size_tokens=32, max_num_seqs=8, max_num_batched_tokens=512,
        long_prefill_token_threshold=256, max_model_len=1100,
    )  # fmt: skip


def test_hardware_alone_keeps_the_catalogues_tp() -> None:
    assert resolve(DeploymentOptions(model="mixtral-8x7b-v0.1", hardware="H200")).tp == 2


def test_given_coefficients_reach_the_latency_model() -> None:
    options = DeploymentOptions(model="qwen3-14b", alpha_coeffs=(9.0, 8.0, 7.0), beta_coeffs=(1.0,) * 7)
    latency = resolve(options).latency
    assert (latency.queueing_time(1), latency.post_decode_time, latency.output_token_time) == (9, 8, 7)


def test_a_context_window_larger_than_the_kv_cache_is_cut_with_a_note() -> None:
    deployment = resolve(DeploymentOptions(model=SCOUT))
    # One block is vLLM's own, and three of four groups of layers hold 8,192 tokens beside two batches.
    assert deployment.config.max_model_len == (45_959 - 1 - 3 * (8192 + 2 * 8192) // 16) * 16
    *_, note = deployment.notes
    assert note.startswith("the context window of llama-4-scout-17b-16e-instruct-fp8-dynamic, 10485760 tokens, is cut")


def test_a_max_model_len_larger_than_the_kv_cache_is_cut_with_a_note() -> None:
    deployment = resolve(DeploymentOptions(model="qwen3-14b", total_kv_blocks=11, max_model_len=161))
    assert deployment.config.max_model_len == 160
    assert deployment.notes == ("--max-model-len, 161 tokens, is cut to the 160 tokens that the KV cache holds",)


def test_one_kv_block_is_too_few_for_vllm_which_keeps_it() -> None:
    with pytest.raises(EngineError, match=r"--num-gpu-blocks-override must be at least 2 with --engine vllm"):
        resolve(DeploymentOptions(model="qwen3-14b", total_kv_blocks=1))
    assert resolve(DeploymentOptions(model="qwen3-14b", total_kv_blocks=1, engine="blis")).config.max_model_len == 16


def test_a_config_folder_that_is_not_there_gives_way_to_the_catalogue_with_a_note() -> None:
    options = DeploymentOptions(model="qwen3-14b", model_config_folder="model_configs/qwen3-14b")
    deployment = resolve(options)
    assert deployment.model.num_layers == 40
    assert deployment.notes == (
        "--model-config-folder model_configs/qwen3-14b does not exist, taking qwen3-14b from the catalogue",
    )


def test_a_config_folder_that_is_not_there_is_an_error_for_an_unknown_model() -> None:
    with pytest.raises(EngineError, match=r"^model_configs/rocket: no config\.json there$"):
        resolve(DeploymentOptions(model="rocket", model_config_folder="model_configs/rocket"))


def local_model(folder: Path, **keys: object) -> str:
    config = {
        "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128,
        "vocab_size": 100, "torch_dtype": "float16",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps({**config, **keys}))
    return str(folder)


def test_a_local_model_needs_hardware_and_tp(tmp_path: Path) -> None:
    model = local_model(tmp_path)
    with pytest.raises(EngineError, match=r"^--hardware and --tp must be given: the catalogue has no default for "):
        resolve(DeploymentOptions(model=model))
    with pytest.raises(EngineError, match=r"^--tp must be given"):
        resolve(DeploymentOptions(model=model, hardware="H100"))
    deployment = resolve(DeploymentOptions(model=model, hardware="H100", tp=1))
    assert (deployment.model.num_layers, deployment.config.max_model_len) == (2, 0)


def test_experts_that_cannot_be_counted_leave_the_kv_cache_practically_unlimited(tmp_path: Path) -> None:
    model = local_model(tmp_path, num_experts_per_tok=2)
    deployment = resolve(DeploymentOptions(model=model, hardware="H100", tp=1))
    assert deployment.config.total_kv_blocks == 1_000_000
    assert "assuming 1000000 KV blocks; give --num-gpu-blocks-override" in deployment.notes[1]


def test_a_hardware_file_describes_other_gpus(tmp_path: Path) -> None:
    file = tmp_path / "hardware_config.json"
    file.write_text(json.dumps({"T1": {"TFlopsPeak": 500, "BwPeakTBs": 2, "MemoryGiB": 80}}))
    options = DeploymentOptions(model="qwen3-14b", hardware="T1", hardware_config=str(file))
    assert resolve(options).gpu.bandwidth_tb_s == 2.0


def test_data_parallel_replicas_each_bring_their_kv_cache() -> None:
    deployment = resolve(DeploymentOptions(model="mixtral-8x7b-v0.1", dp=2, moe_comm_backend="pplx"))
    assert (deployment.dp, deployment.config.total_kv_blocks) == (2, 99_334)
    assert (deployment.latency_name, len(deployment.notes)) == ("kernels", 1)
    assert "kernel times were repaired" in deployment.notes[0]
    assert "sharing of the work" in deployment.sureness.unlike
    assert deployment.rank is not None
    assert deployment.rank.total_kv_blocks == 99_334 // 2


def test_scheduling_decides_how_kv_blocks_are_counted() -> None:
    blocks = {
        scheduling: resolve(
            DeploymentOptions(model="llama-3.1-70b-instruct", hardware="H100", tp=4, engine=scheduling)
        ).config.total_kv_blocks
        for scheduling in ("vllm", "blis")
    }
    assert blocks == {"vllm": 30_582, "blis": 121_801}


def test_more_gpus_than_kv_heads_are_refused_by_blis_alone() -> None:
    assert resolve(DeploymentOptions(model="llama-3.1-70b-instruct", hardware="H100", tp=16)).tp == 16
    with pytest.raises(EngineError, match=r"llama-3\.1-70b-instruct has 8 KV heads, which tp 16 does not divide"):
        resolve(DeploymentOptions(model="llama-3.1-70b-instruct", hardware="H100", tp=16, engine="blis"))


def test_a_communication_backend_without_data_parallelism_is_noted() -> None:
    deployment = resolve(DeploymentOptions(model="mixtral-8x7b-v0.1", moe_comm_backend="pplx"))
    assert deployment.notes[0] == "--moe-comm-backend pplx has no effect without --dp"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"alpha_coeffs": (1.0, 2.0, 3.0)}, "--alpha-coeffs needs --beta-coeffs"),
        ({"alpha_coeffs": (1e30,) * 3, "beta_coeffs": (1.0,) * 7}, "--alpha-coeffs must be at most 1e+12, got 1e+30"),
        ({"beta_coeffs": (1.0,) * 7}, "--beta-coeffs needs --alpha-coeffs"),
        (
            {"alpha_coeffs": (1.0,) * 3, "beta_coeffs": (1.0,) * 7, "latency_model": "roofline"},
            "--alpha-coeffs and --beta-coeffs cannot be used with --latency-model roofline",
        ),
        ({"alpha_coeffs": (1.0,), "beta_coeffs": (-1.0,)}, "--beta-coeffs must be at least 0, got -1.0"),
        (
            {"latency_model": "oracle"},
            "--latency-model must be one of auto, trained-physics, roofline, blackbox, fitted, kernels, operators, "
            "adaptive-toy, got 'oracle'",
        ),
        ({"tp": -1}, "--tp must be at least 0, got -1"),
        ({"gpu_memory_utilization": 1.5}, "--gpu-memory-utilization must be at most 1, got 1.5"),
        ({"gpu_memory_utilization": 0.0}, "--gpu-memory-utilization must be above 0, got 0.0"),
        ({"max_num_seqs": 0}, "--max-num-seqs must be at least 1, got 0"),
        ({"total_kv_blocks": 0}, "--num-gpu-blocks-override must be at least 1, got 0"),
        (
            {"engine": "slurm"},
            "--engine must be one of vllm, blis, adaptive, adaptive-fifo, faster-transformer, lightllm, orca, sarathi, "
            "splitwise, vidur-vllm, got 'slurm'",
        ),
        (
            {"speculative_config": "{}"},
            "--speculative-config: method must be one of ngram, ngram_gpu, eagle, eagle3, mtp, "
            "draft_model, suffix, dflash, dspark, medusa, got ''",
        ),
        (
            {"spec_method": "ngram", "spec_tokens": 2, "engine": "blis"},
            "speculative decoding needs --engine vllm, got blis",
        ),
        ({"speculative_acceptance_rate": (0.5,)}, "--speculative-acceptance-rate needs --speculative-config"),
        ({"speculative_draft_time": 9}, "--speculative-draft-time needs --speculative-config"),
        ({"speculative_seed": 9}, "--speculative-seed needs --speculative-config"),
        (
            {"speculative_config": NGRAM, "speculative_acceptance_rate": (0.5, 2.0)},
            "--speculative-acceptance-rate must be at most 1, got 2.0",
        ),
    ],
)
def test_flags_out_of_bounds_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError) as refusal:
        options_from(DeploymentOptions, **{"model": "qwen3-14b", **given})
    assert str(refusal.value) == message


def test_a_blank_name_of_a_model_is_refused() -> None:
    with pytest.raises(OptionError, match=r"^--model must name a model, got an empty string$"):
        resolve(DeploymentOptions(model=" "))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"engine": "blis", "dp": 2}, "dp must be 1 for a model without experts such as qwen3-14b, got 2"),
        ({"tp": 3}, "qwen3-14b has 40 attention heads, which tp 3 does not divide"),
        ({"alpha_coeffs": (1.0,) * 3, "beta_coeffs": (1.0,) * 3}, "beta_coeffs must have 7 to 11 values, got 3"),
        ({"hardware": "L5"}, "GPU 'L5' is not in the catalogue"),
        (
            {"model": "llama-3.1-70b-instruct", "tp": 1},
            "llama-3.1-70b-instruct leaves no room for a KV cache on 1 H100",
        ),
    ],
)
def test_deployment_settings_that_do_not_fit_together_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(EngineError) as refusal:
        resolve(options_from(DeploymentOptions, **{"model": "qwen3-14b", **given}))
    assert str(refusal.value).startswith(message)


def test_speculative_decoding_reaches_the_engine_with_a_note_of_what_is_accepted() -> None:
    drafts = SpeculationOptions(
        speculative_config=NGRAM,
        speculative_acceptance_rate=(0.8, 0.25),
        speculative_draft_time=50,
        speculative_seed=3,
    )
    options = DeploymentOptions(model="qwen3-14b", drafts=drafts)
    deployment = resolve(options)
    assert deployment.config.speculation == Speculation(
        method="ngram", num_tokens=2, acceptance_rates=(0.8, 0.25), draft_time_us=50, seed=3
    )
    assert deployment.notes == (
        "ngram drafts 2 tokens, each accepted with a chance of 0.8, 0.25 when those before it are",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MoreOptions(DeploymentOptions):
    seed: int = option(42, "Random numbers.", at_least=0)

    def __post_init__(self) -> None:
        DeploymentOptions.__post_init__(self)
        check_options(self)


def test_a_command_adds_settings_of_its_own() -> None:
    options = MoreOptions(model="qwen3-14b", seed=7)
    assert resolve(dataclasses.replace(options, tp=2)).tp == 2
    assert [setting.name for setting in options_of(MoreOptions)][-1] == "seed"
    with pytest.raises(BlisError, match="--seed must be at least 0, got -1"):
        MoreOptions(model="qwen3-14b", seed=-1)


def test_settings_keep_the_names_other_tools_use() -> None:
    flags = {flag for setting in options_of(DeploymentOptions) for flag in setting.flags}
    assert {
        "--max-num-seqs", "--max-num-running-reqs", "--max-num-batched-tokens", "--max-num-scheduled-tokens",
        "--total-kv-blocks", "--num-gpu-blocks-override", "--block-size-in-tokens", "--block-size", "--tp",
    } <= flags  # fmt: skip


def test_prompts_that_may_not_be_split_must_fit_the_token_budget() -> None:
    with pytest.raises(EngineError, match="must be at least the longest context, 4096, with --no-enable-chunked-prefi"):
        resolve(
            DeploymentOptions(
                model="qwen3-14b", max_model_len=4096, enable_chunked_prefill=False, max_num_batched_tokens=2048
            )
        )
    options = DeploymentOptions(
        model="qwen3-14b", max_model_len=4096, enable_chunked_prefill=False, max_num_batched_tokens=4096
    )
    assert not resolve(options).config.enable_chunked_prefill


def test_a_budget_too_small_for_drafts_is_refused() -> None:
    drafts: dict[str, Any] = {"model": "qwen3-14b", "spec_method": "ngram", "spec_tokens": 4}
    assert resolve(options_from(DeploymentOptions, **drafts, max_num_batched_tokens=5)).config.speculation is not None
    with pytest.raises(EngineError, match="--max-num-batched-tokens must be at least 5 with 4 drafts of ngram"):
        resolve(options_from(DeploymentOptions, **drafts, max_num_batched_tokens=4))
