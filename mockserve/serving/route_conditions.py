"""Which routes a server has: vLLM registers some only for certain tasks, flags or environment variables."""

from enum import StrEnum

from mockserve.generation.pooler import labels_of
from mockserve.options.environment import ServerEnvironment
from mockserve.options.serve import ServeOptions
from mockserve.options.server import RouteOptions, config_overrides, pooling_task_of, tasks_of


class RouteCondition(StrEnum):
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


def open_conditions(options: ServeOptions, environment: ServerEnvironment) -> frozenset[RouteCondition]:
    """The gates that these settings open."""
    routes = options.routes
    tasks = tasks_of(routes)
    facts = {
        RouteCondition.ALWAYS: True,
        RouteCondition.GENERATION: "generate" in tasks,
        RouteCondition.POOLING: bool(tasks & {"embed", "classify", "token_embed", "token_classify"}),
        RouteCondition.EMBED: "embed" in tasks,
        RouteCondition.TOKEN_EMBED: pooling_task_of(routes) == "token_embed",
        RouteCondition.CLASSIFY: "classify" in tasks,
        RouteCondition.SCORE: _scores(routes),
        RouteCondition.TRANSCRIPTION: "transcription" in tasks,
        RouteCondition.REALTIME: "realtime" in tasks,
        RouteCondition.TOKENIZER_INFO: routes.enable_tokenizer_info_endpoint,
        RouteCondition.SCALE_OUT: routes.scales_out,
        RouteCondition.TOKENS_ONLY: routes.tokens_only,
        RouteCondition.RUNTIME_LORA: environment.allows_runtime_lora,
        RouteCondition.DEV_MODE: environment.dev_mode,
        RouteCondition.KV_TRANSFER: options.kv_sharing.transfer.is_on,
        RouteCondition.STATE_CONTROL: routes.enable_state_control,
        RouteCondition.PLAYBACK_CONTROL: options.playing_back.enable_playback_control,
        RouteCondition.FAULT_CONTROL: options.faults.enable_fault_control,
        RouteCondition.CLUSTER: options.serves_cluster,
        RouteCondition.INSTANCE_CONTROL: options.instances.enable_instance_control,
        RouteCondition.READY_ROUTE: options.process.offers_ready_route,
    }
    return frozenset(condition for condition, is_open in facts.items() if is_open)


def _scores(options: RouteOptions) -> bool:
    """A model that embeds compares vectors; one that classifies must have a single class."""
    task = pooling_task_of(options)
    return task in ("embed", "token_embed") or (task == "classify" and len(labels_of(config_overrides(options))) == 1)
