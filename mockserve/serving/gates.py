"""Which routes a server has: vLLM registers some only for certain tasks, flags or environment variables."""

from enum import StrEnum

from mockserve.content.pooler import labels_of
from mockserve.options.environment import ServerEnvironment
from mockserve.options.serve import ServeOptions
from mockserve.options.server import RouteOptions, config_overrides, pooling_task_of, tasks_of


class Gate(StrEnum):
    """The condition of a route. The values are words for the documentation."""

    ALWAYS = ""
    GENERATION = "a model that generates"
    POOLING = "a pooling model"
    EMBED = "a model that embeds"
    TOKEN_EMBED = "a model that embeds tokens"
    CLASSIFY = "a model that classifies"
    SCORE = "a model that scores"
    TRANSCRIPTION = "a model that transcribes"
    REALTIME = "a model that transcribes in real time"
    TOKENIZER_INFO = "--enable-tokenizer-info-endpoint"
    SCALE_OUT = "--enable-scale-out or --tokens-only"
    TOKENS_ONLY = "--tokens-only"
    RUNTIME_LORA = "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
    DEV_MODE = "VLLM_SERVER_DEV_MODE=1"
    KV_TRANSFER = "--kv-transfer-config"
    STATE_CONTROL = "--enable-state-control"
    PLAYBACK_CONTROL = "--enable-playback-control"
    FAULT_CONTROL = "--enable-fault-control"
    CLUSTER = "several instances"
    INSTANCE_CONTROL = "--enable-instance-control"
    READY_ROUTE = "llm-d-inference-sim's settings"


def open_gates(options: ServeOptions, environment: ServerEnvironment) -> frozenset[Gate]:
    """The gates that these settings open."""
    routes = options.routes
    tasks = tasks_of(routes)
    facts = {
        Gate.ALWAYS: True,
        Gate.GENERATION: "generate" in tasks,
        Gate.POOLING: bool(tasks & {"embed", "classify", "token_embed", "token_classify"}),
        Gate.EMBED: "embed" in tasks,
        Gate.TOKEN_EMBED: pooling_task_of(routes) == "token_embed",
        Gate.CLASSIFY: "classify" in tasks,
        Gate.SCORE: _scores(routes),
        Gate.TRANSCRIPTION: "transcription" in tasks,
        Gate.REALTIME: "realtime" in tasks,
        Gate.TOKENIZER_INFO: routes.enable_tokenizer_info_endpoint,
        Gate.SCALE_OUT: routes.scales_out,
        Gate.TOKENS_ONLY: routes.tokens_only,
        Gate.RUNTIME_LORA: environment.allows_runtime_lora,
        Gate.DEV_MODE: environment.dev_mode,
        Gate.KV_TRANSFER: options.kv_sharing.transfer.is_on,
        Gate.STATE_CONTROL: routes.enable_state_control,
        Gate.PLAYBACK_CONTROL: options.playing_back.enable_playback_control,
        Gate.FAULT_CONTROL: options.faults.enable_fault_control,
        Gate.CLUSTER: options.serves_cluster,
        Gate.INSTANCE_CONTROL: options.instances.enable_instance_control,
        Gate.READY_ROUTE: options.process.offers_ready_route,
    }
    return frozenset(gate for gate, is_open in facts.items() if is_open)


def _scores(options: RouteOptions) -> bool:
    """A model that embeds compares vectors; one that classifies must have a single class."""
    task = pooling_task_of(options)
    return task in ("embed", "token_embed") or (task == "classify" and len(labels_of(config_overrides(options))) == 1)
