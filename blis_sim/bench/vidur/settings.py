"""The configuration of Vidur and SimAI: nested groups of settings with their names, order and defaults, as flags.

A setting is a flag of the name of its group and its own: `--replica_config_device`. A group with a choice of kinds has
a flag that ends with `_type`. Facts: vidur/config/config.py.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from blis_sim.options import OptionError, check_options, option


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its name, its default and type, and the values allowed."""

    name: str
    default: Any
    type: Any
    choices: tuple[str, ...] = ()
    at_least: float | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """Settings with one prefix. `name` is what its kind is called in `config.json`, where there are several kinds."""

    prefix: str
    settings: tuple[Setting, ...]
    name: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """Kinds of a group, one of which is chosen by the flag `--{flag}`."""

    flag: str
    default: str
    kinds: dict[str, Group] = field(default_factory=dict)


def _text(name: str, default: str | None = None) -> Setting:
    return Setting(name, default, str if default is not None else str | None)


def _whole(name: str, default: int | None = None, at_least: int = 0) -> Setting:
    return Setting(name, default, int if default is not None else int | None, at_least=at_least)


def _number(name: str, default: float | None = None) -> Setting:
    return Setting(name, default, float if default is not None else float | None, at_least=0)


def _switch(name: str, default: bool) -> Setting:
    return Setting(name, default, bool)


def _list(name: str, *default: int) -> Setting:
    return Setting(name, default, tuple[int, ...])


def _kinds(
    prefix_end: str, kinds: dict[str, tuple[Setting, ...]], prefixes: dict[str, str] | None = None
) -> dict[str, Group]:
    return {
        name: Group(f"{(prefixes or {}).get(name, name)}_{prefix_end}", settings, name)
        for name, settings in kinds.items()
    }


MAIN = Group("", (_whole("seed", 42), _text("log_level", "info"), _whole("time_limit", 0)))
SIMAI_REPLICA = (
    _whole("pd_p2p_comm_bandwidth", 800, at_least=1),
    _whole("nvlink_bandwidth", 1600, at_least=1),
    _whole("rdma_bandwidth", 800, at_least=1),
    _text("pd_p2p_comm_dtype", "float16"),
    _number("pd_node_ratio", 1.0),
    _whole("expert_model_parallel_size", None, at_least=1),
    _whole("prefill_tensor_parallel_size", None, at_least=1),
    _whole("prefill_num_pipeline_stages", None, at_least=1),
    _whole("decode_tensor_parallel_size", None, at_least=1),
    _whole("decode_num_pipeline_stages", None, at_least=1),
    _whole("num_prefill_replicas", None, at_least=1),
)
"""The settings of a replica that SimAI adds: links in Gbit/s, and separate replicas for prompts and for decodes."""
CLUSTER = Group("cluster_config", (_whole("num_replicas", 1, at_least=1),))
REPLICA = Group(
    "replica_config",
    (
        _text("model_name", "meta-llama/Llama-2-7b-hf"),
        _number("memory_margin_fraction", 0.1),
        _whole("num_pipeline_stages", 1, at_least=1),
        _whole("tensor_parallel_size", 1, at_least=1),
        _text("device", "a100"),
        _text("network_device", "a100_pairwise_nvlink"),
        *SIMAI_REPLICA,
    ),
)
GLOBAL_SCHEDULER = Choice(
    "global_scheduler_config_type",
    "round_robin",
    _kinds("global_scheduler_config", {"random": (), "round_robin": (), "lor": (), "split_wise": ()}),
)
_BLOCKS = (
    _whole("batch_size_cap", 128, at_least=1),
    _whole("block_size", 16, at_least=1),
    _number("watermark_blocks_fraction", 0.01),
    _whole("num_blocks", None, at_least=1),
)
_PROMPT_TOKENS = _whole("max_tokens_in_batch", 4096, at_least=1)
REPLICA_SCHEDULER = Choice(
    "replica_scheduler_config_type",
    "sarathi",
    _kinds(
        "scheduler_config",
        {
            "faster_transformer": _BLOCKS,
            "orca": _BLOCKS,
            "sarathi": (*_BLOCKS, _whole("chunk_size", 512, at_least=1)),
            "vllm": (*_BLOCKS, _PROMPT_TOKENS),
            "lightllm": (*_BLOCKS, _PROMPT_TOKENS, _whole("max_waiting_iters", 10, at_least=1)),
            "split_wise": (*_BLOCKS, _PROMPT_TOKENS),
        },
    ),
)
_SEED, _MAX_TOKENS = _whole("seed", 42), _whole("max_tokens", 4096, at_least=1)
_RATIO = _number("prefill_to_decode_ratio", 20.0)
LENGTHS = Choice(
    "length_generator_config_type",
    "fixed",
    _kinds(
        "request_length_generator_config",
        {
            "zipf": (
                _SEED,
                _MAX_TOKENS,
                _number("theta", 0.6),
                _switch("scramble", default=False),
                _whole("min_tokens", 1024, at_least=1),
                _RATIO,
            ),
            "uniform": (_SEED, _MAX_TOKENS, _whole("min_tokens", 1024, at_least=1), _RATIO),
            "trace": (
                _SEED,
                _MAX_TOKENS,
                _text("trace_file", "data/processed_traces/sharegpt_8k_filtered_stats_llama2_tokenizer.csv"),
                _number("prefill_scale_factor", 1.0),
                _number("decode_scale_factor", 1.0),
            ),
            "fixed": (
                _SEED,
                _MAX_TOKENS,
                _whole("prefill_tokens", 2048, at_least=1),
                _whole("decode_tokens", 512, at_least=1),
            ),
        },
    ),
)
INTERVALS = Choice(
    "interval_generator_config_type",
    "poisson",
    _kinds(
        "request_interval_generator_config",
        {
            "gamma": (_SEED, _number("qps", 0.2), _number("cv", 0.5)),
            "poisson": (_SEED, _number("qps", 0.5)),
            "static": (_SEED,),
            "trace": (
                _SEED,
                _text(
                    "trace_file", "data/processed_traces/AzureFunctionsInvocationTraceForTwoWeeksJan2021Processed.csv"
                ),
                _text("start_time", "1970-01-04 12:00:00"),
                _text("end_time", "1970-01-04 15:00:00"),
                _number("time_scale_factor", 1.0),
            ),
        },
    ),
)
REQUESTS = Choice(
    "request_generator_config_type",
    "synthetic",
    _kinds(
        "request_generator_config",
        {
            "synthetic": (_SEED, _whole("num_requests", 128, at_least=1), _number("duration")),
            "trace_replay": (
                _SEED,
                _text("trace_file", "data/processed_traces/splitwise_conv.csv"),
                _number("prefill_scale_factor", 1.0),
                _number("decode_scale_factor", 1.0),
                _number("time_scale_factor", 1.0),
                _MAX_TOKENS,
            ),
        },
        {"trace_replay": "trace"},
    ),
)
_PROFILES = "./data/profiling"
SIMAI_PREDICTOR = (
    _text("backend", "vidur"),
    _text("simai_dir", "../"),
    _text("simai_simulation_topo", "../example/topo"),
    _text("simai_simulation_config", "../astra-sim-alibabacloud/inputs/config/SimAI.conf"),
    _switch("aicb_force_bs1", default=False),
)
"""The settings of a predictor that SimAI adds."""
_PREDICTOR = (
    _text("compute_input_file", f"{_PROFILES}/compute/{{DEVICE}}/{{MODEL}}/mlp.csv"),
    _text("attention_input_file", f"{_PROFILES}/compute/{{DEVICE}}/{{MODEL}}/attention.csv"),
    _text("all_reduce_input_file", f"{_PROFILES}/network/{{NETWORK_DEVICE}}/all_reduce.csv"),
    _text("send_recv_input_file", f"{_PROFILES}/network/{{NETWORK_DEVICE}}/send_recv.csv"),
    _text("cpu_overhead_input_file", f"{_PROFILES}/cpu_overhead/{{NETWORK_DEVICE}}/{{MODEL}}/cpu_overheads.csv"),
    _whole("k_fold_cv_splits", 10),
    _switch("no_cache", default=False),
    _whole("kv_cache_prediction_granularity", 64),
    _whole("prediction_max_prefill_chunk_size", 4096),
    _whole("prediction_max_batch_size", 128),
    _whole("prediction_max_tokens_per_request", 4096),
    _number("attention_decode_batching_overhead_fraction", 0.1),
    _number("attention_prefill_batching_overhead_fraction", 0.1),
    _number("nccl_cpu_launch_overhead_ms", 0.02),
    _number("nccl_cpu_skew_overhead_per_device_ms", 0.0),
    Setting("num_training_job_threads", -1, int),
    _switch("skip_cpu_overhead_modeling", default=True),
    *SIMAI_PREDICTOR,
)
PREDICTOR = Choice(
    "execution_time_predictor_config_type",
    "random_forrest",
    _kinds(
        "execution_time_predictor_config",
        {
            "random_forrest": (
                *_PREDICTOR,
                _list("num_estimators", 250, 500, 750),
                _list("max_depth", 8, 16, 32),
                _list("min_samples_split", 2, 5, 10),
            ),
            "linear_regression": (
                *_PREDICTOR,
                _list("polynomial_degree", 1, 2, 3, 4, 5),
                Setting("polynomial_include_bias", ("True", "False"), tuple[str, ...]),
                Setting("polynomial_interaction_only", ("True", "False"), tuple[str, ...]),
                Setting("fit_intercept", ("True", "False"), tuple[str, ...]),
            ),
        },
        {"linear_regression": "linear_regression"},
    ),
)
METRICS = Group(
    "metrics_config",
    (
        _switch("write_metrics", default=True),
        _switch("write_json_trace", default=False),
        *(_text(f"wandb_{name}") for name in ("project", "group", "run_name", "sweep_id", "run_id")),
        _switch("enable_chrome_trace", default=True),
        _switch("save_table_to_wandb", default=False),
        _switch("store_plots", default=True),
        _switch("store_operation_metrics", default=False),
        _switch("store_token_completion_metrics", default=False),
        _switch("store_request_metrics", default=True),
        _switch("store_batch_metrics", default=True),
        _switch("store_utilization_metrics", default=True),
        _switch("keep_individual_batch_metrics", default=False),
        _whole("subsamples"),
        _whole("min_batch_index"),
        _whole("max_batch_index"),
        _text("output_dir", "simulator_output"),
        _text("cache_dir", "cache"),
    ),
)
GROUPS = (MAIN, CLUSTER, REPLICA, METRICS)
CHOICES = (GLOBAL_SCHEDULER, REPLICA_SCHEDULER, REQUESTS, INTERVALS, LENGTHS, PREDICTOR)


def setting_name(group: Group, setting: Setting) -> str:
    """Return the name under which a setting of a group stands on the command line."""
    return f"{group.prefix}_{setting.name}" if group.prefix else setting.name


COMPATIBLE = ("vidur", "simai")


def _fields() -> list[tuple[str, Any, Any]]:
    """Return the fields of the options: name, type and `option()` of each."""
    fields: list[tuple[str, Any, Any]] = []
    groups = [*GROUPS, *(group for choice in CHOICES for group in choice.kinds.values())]
    for choice in CHOICES:
        said = f"Kind of {choice.flag.removesuffix('_type')}."
        made = option(choice.default, said, flags=(f"--{choice.flag}",), choices=tuple(choice.kinds), heading="Kinds")
        fields.append((choice.flag, str, made))
    for group in groups:
        heading = group.prefix or "Simulation"
        for setting in group.settings:
            name = setting_name(group, setting)
            said = f"As Vidur's {setting.name} of {heading}."
            made = option(setting.default, said, flags=(f"--{name}",), at_least=setting.at_least, heading=heading)
            fields.append((name, setting.type, made))
    return fields


def _check(options: Any) -> None:
    check_options(options)
    for name in ("replica_config_memory_margin_fraction",):
        if getattr(options, name) >= 1:
            raise OptionError(f"--{name} must be below 1, got {getattr(options, name)}")


_OWN: list[tuple[str, Any, Any]] = [
    (
        "operators",
        str | None,
        option(
            None,
            "Times of the operators of a layer; without it those of ./data/profiling if there is such a folder, else "
            "steps of --latency-model kernels or fitted. A folder has Vidur's profiling tables, of which forest:DIR "
            "and polynomial:DIR learn; vidur-tables:PREFIX takes PREFIX_compute.csv, PREFIX_attn_decode.csv and "
            "PREFIX_attn_prefill.csv, gzipped or not; aicb:DIR takes the layers of models with experts that AICB "
            "measured.",
            metavar="SOURCE",
            heading="Beside Vidur's flags",
        ),
    ),
    (
        "compat",
        str,
        option(
            "",
            "Program whose results are to be equal to the last digit, its errors included; without it they are "
            "corrected.",
            choices=("", *COMPATIBLE),
        ),
    ),
]

VidurOptions = dataclasses.make_dataclass(
    "VidurOptions", [*_OWN, *_fields()], frozen=True, slots=True, kw_only=True, namespace={"__post_init__": _check}
)


def is_original(options: Any) -> bool:
    """Return whether results are to be those of an original, its errors included."""
    return options.compat in COMPATIBLE


def chosen(options: Any, choice: Choice) -> Group:
    """Return the kind that was chosen."""
    return choice.kinds[getattr(options, choice.flag)]


def values_of(options: Any, group: Group) -> dict[str, Any]:
    """Return the values of the settings of a group by their names in it."""
    return {each.name: getattr(options, setting_name(group, each)) for each in group.settings}


def rewritten(arguments: list[str]) -> list[str]:
    """Return a command line of Vidur in our syntax: lists, which it separates by spaces, with commas."""
    lists = {f"--{name}" for name, kind, _ in _fields() if kind not in (str, int, float, bool) and "tuple" in str(kind)}
    found: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        found.append(word)
        if word in lists:
            values: list[str] = []
            while rest and not rest[0].startswith("--"):
                values.append(rest.pop(0))
            found.append(",".join(values))
    return found
