"""The settings of `blis serve`: the served model, the simulated deployment, and the server."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from blis_sim.engine.cluster.options import MAX_INSTANCES, ClusterOptions
from blis_sim.engine.cluster.policies import has_cluster
from blis_sim.engine.deployment import is_known
from blis_sim.engine.deployment_options import MODEL_NAMES, DeploymentOptions
from blis_sim.engine.latency.catalogue import has_model, model_entry
from blis_sim.engine.lora import LoraOptions
from blis_sim.engine.offload_file import OffloadFileOptions
from blis_sim.options import ExclusionError, OptionError, StartError, check_options, option, section, with_settings
from blis_sim.options.files import read_text
from blis_sim.options.option import load_model_json
from mockserve.options.content import ContentOptions, PictureOptions, PlaybackOptions
from mockserve.options.engine_features import (
    KV_EVENTS_FLAG,
    KV_TRANSFER_FLAG,
    KVSharingOptions,
    QueueOptions,
    TimingOptions,
)
from mockserve.options.environment import ServerEnvironment
from mockserve.options.faults import FaultOptions
from mockserve.options.server import (
    InstanceOptions,
    NetworkOptions,
    ObservabilityOptions,
    ProcessOptions,
    ReplyOptions,
    RouteOptions,
)

# What the class of a model implies.


def implied_routes(options: DeploymentOptions) -> Mapping[str, Any]:
    """Return the settings of routes that the model's class implies; of a model without a config its name does."""
    model = options.model
    if not is_known(options):
        return next((routes for word, routes in _ROUTES_BY_WORD.items() if word in model.lower()), {})
    if any(each in _SPEECH_CLASSES for each in classes_of(options)):
        return _SPEECH
    conversion = pooling_conversion(model)
    return {"runner": "pooling", "convert": conversion} if conversion else {}


def classes_of(options: DeploymentOptions) -> list[str]:
    """Return the classes that the model's config names; none without a config."""
    config = folder_config(options.model_config_folder or options.model)
    if config is None and has_model(options.model):
        config = model_entry(options.model).checkpoint.config
    classes = (config or {}).get("architectures")
    return list(map(str, classes)) if isinstance(classes, list) else []


_SPEECH_CLASSES = ("WhisperForConditionalGeneration",)
_SPEECH: Mapping[str, Any] = {"task": ("transcription",)}
_EMBEDDING: Mapping[str, Any] = {"runner": "pooling", "convert": "embed"}
_RERANKING: Mapping[str, Any] = {"runner": "pooling", "convert": "classify"}
_ROUTES_BY_WORD: Mapping[str, Mapping[str, Any]] = {
    "whisper": _SPEECH,
    "rerank": _RERANKING,
    "cross-encoder": _RERANKING,
    "embed": _EMBEDDING,
    "bge-": _EMBEDDING,
    "e5-": _EMBEDDING,
    "gte-": _EMBEDDING,
    "minilm": _EMBEDDING,
    "sentence-transformers/": _EMBEDDING,
}
"""Words in the names of models, and what they are served for."""


def folder_config(model: str) -> Mapping[str, Any] | None:
    """Return the object in a model folder's `config.json`; None without such a file."""
    try:
        config = load_model_json(read_text(Path(model) / "config.json"))
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) else None


def pooling_conversion(model: str) -> str:
    """Return the default pooling conversion of a model, by its class name: embed, classify, or empty."""
    config = folder_config(model)
    if config is None:
        if not has_model(model):
            return ""
        entry = model_entry(model)
        if entry.pooling:
            return entry.pooling
        config = entry.checkpoint.config
    elif _has_pooling_module(model):
        return "embed"
    classes = config.get("architectures")
    for name in classes if isinstance(classes, list) else ():
        for suffix, conversion in _CONVERSIONS:
            if str(name).endswith(suffix):
                return conversion
    return ""


def _has_pooling_module(model: str) -> bool:
    """Whether the folder belongs to sentence-transformers, which list their modules in a file."""
    try:
        modules = load_model_json(read_text(Path(model) / "modules.json"))
    except (OSError, ValueError):
        return False
    found = modules if isinstance(modules, list) else []
    return any(isinstance(each, dict) and str(each.get("type")).endswith(".Pooling") for each in found)


def is_encoder(class_name: str) -> bool:
    """Whether vLLM has a model of this class that pools and cannot generate."""
    return class_name.startswith(_ENCODERS) and not class_name.endswith(_GENERATING)


_ENCODERS = ("Bert", "CLIP", "Gte", "ModernBert", "NomicBert", "Roberta", "Siglip", "XLMRoberta")
_GENERATING = ("ForCausalLM", "ForConditionalGeneration", "ChatModel", "LMHeadModel")
_CLASSIFYING = (
    *("ForSequenceClassification", "ForTokenClassification", "ForAudioClassification", "ForImageClassification"),
    *("ForVideoClassification", "ClassificationModel"),
)
_CONVERSIONS = (
    *((suffix, "") for suffix in _GENERATING),
    *((suffix, "classify") for suffix in _CLASSIFYING),
    *((suffix, "embed") for suffix in ("ForTextEncoding", "ForRewardModeling", "Model")),
)
"""Suffixes of class names in vLLM's order, with their pooling conversions."""

# The settings of `blis serve`: the simulated deployment, checks of a model folder, and the server.

QUANTIZATION_METHODS = (
    *("awq", "auto_awq", "fp8", "fbgemm_fp8", "fp_quant", "modelopt", "modelopt_fp4", "modelopt_mxfp8"),
    *("modelopt_mixed", "auto_gptq", "gptq", "gptq_marlin", "awq_marlin", "humming", "compressed-tensors"),
    *("experts_int8", "quark", "moe_wna16", "torchao", "inc", "mxfp4", "gpt_oss_mxfp4", "deepseek_v4_fp8", "online"),
    *("fp8_per_tensor", "fp8_per_block", "fp8_per_channel", "int8_per_channel_weight_only", "nvfp4_per_token"),
    *("mxfp8",),
)
QUANTIZATION_KEYS = ("quantization_config", "compression_config")
HEADS_DIVIDE_HIDDEN_SIZE = frozenset(
    {
        *("arcee", "aria_text", "cwm", "deepseek_v2", "eurobert", "gemma2", "gemma3_text", "hrm_text", "hyperclovax"),
        *("jais2", "llama", "minicpm3", "vaultgemma"),
    }
)
"""Model types whose hidden size must be a multiple of the number of heads."""


def folder_problems(model: str) -> Iterator[str]:
    """Yield vLLM's reasons not to start with a model folder; nothing for a model of the catalogue."""
    config = folder_config(model)
    if config is None:
        return
    if "model_type" not in config:
        yield f"Unrecognized model in {model}. Should have a `model_type` key in its config.json."
    yield from _heads(config)
    for key in QUANTIZATION_KEYS:
        settings = config.get(key)
        method = settings.get("quant_method") if isinstance(settings, dict) else None
        if isinstance(method, str) and method.lower() not in QUANTIZATION_METHODS:
            yield unknown_quantization(method.lower())
    if config.get("max_position_embeddings") == 0:
        yield "max_model_len must be a positive integer, got int: 0. Example: max_model_len=2048"


def unknown_quantization(method: str) -> str:
    """Return vLLM's message for an unknown quantization method."""
    return f"Unknown quantization method: {method}. Must be one of {list(QUANTIZATION_METHODS)}."


def _heads(config: Mapping[str, Any]) -> Iterator[str]:
    size, heads = config.get("hidden_size"), config.get("num_attention_heads")
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in HEADS_DIVIDE_HIDDEN_SIZE or not isinstance(size, int):
        return
    if isinstance(heads, int) and heads > 0 and size % heads:
        yield f"The hidden size ({size}) is not a multiple of the number of attention heads ({heads})."


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedDeploymentOptions(DeploymentOptions):
    """The simulated deployment, with a separate engine for each data-parallel rank."""

    model: str = option("", "Another way to give MODEL.", suggested=MODEL_NAMES, heading="Model and GPU")
    dp: int = option(
        1,
        "Data-parallel ranks: engines of their own behind one endpoint, which shares requests out as vLLM does.",
        flags=("--dp", "--data-parallel-size"),
        at_least=1,
        at_most=MAX_INSTANCES,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedClusterOptions(ClusterOptions):
    """The simulated cluster behind the server."""

    deployment: ServedDeploymentOptions = section(ServedDeploymentOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Settings of `blis serve`. The model is an argument, as in vLLM, or --model."""

    cluster: ServedClusterOptions = section(ServedClusterOptions)
    instances: InstanceOptions = section(InstanceOptions)
    content: ContentOptions = section(ContentOptions)
    pictures: PictureOptions = section(PictureOptions)
    network: NetworkOptions = section(NetworkOptions)
    lora: LoraOptions = section(LoraOptions)
    queue: QueueOptions = section(QueueOptions)
    kv_sharing: KVSharingOptions = section(KVSharingOptions)
    offload: OffloadFileOptions = section(OffloadFileOptions)
    faults: FaultOptions = section(FaultOptions)
    timing: TimingOptions = section(TimingOptions)
    playing_back: PlaybackOptions = section(PlaybackOptions)
    process: ProcessOptions = section(ProcessOptions)
    replies: ReplyOptions = section(ReplyOptions)
    routes: RouteOptions = section(RouteOptions)
    observability: ObservabilityOptions = section(ObservabilityOptions)
    model_argument: str = option(
        "",
        "Model to serve: a name of the catalogue, with or without its organisation, "
        "or a local folder with a Hugging Face config.json.",
        positional=True,
        suggested=MODEL_NAMES,
        metavar="MODEL",
    )
    speed: float = option(
        1.0,
        "Simulated seconds per real second; max lets no time pass but what the engine takes.",
        above=0,
        infinity="max",
        heading="Serving",
    )
    served_model_name: tuple[str, ...] = option((), "Names clients may use; replies carry the first. Default: MODEL.")
    enable_server_load_tracking: bool = option(False, "Let GET /load count the requests being answered.")
    lenient_start: bool = option(
        False,
        "Start with a warning where vLLM would refuse to start. It does so for values of --kv-cache-dtype and "
        "--quantization that are not vLLM's or do not fit the model folder. It does so for a context beyond the "
        "model's or beyond the KV cache, and fewer batched tokens than sequences. Others are a "
        "--long-prefill-token-threshold beyond the context, and --collect-detailed-traces without "
        "--otlp-traces-endpoint. So are --enable-expert-parallel of a model without experts, and parsers whose tokens "
        "the tokenizer lacks.",
    )
    fits_max_model_len: bool = option(
        False, "Cut the context to what the KV cache holds: --max-model-len auto.", hidden=True
    )
    num_redundant_experts: int = option(
        0, "Copies of experts in --eplb-config, which need --enable-eplb.", hidden=True, at_least=0
    )
    accepted_without_effect: tuple[str, ...] = option(
        (), "Flags of vLLM that were given and mean nothing here; named at start.", hidden=True
    )

    def __post_init__(self) -> None:
        check_options(self)
        self._take_model_argument()
        self._take_architecture()
        self.instances.check_ports(self.cluster.num_instances)
        self._check_endpoints()
        self._check_engine()
        if self.replies.enable_per_request_metrics and self.observability.disable_log_stats:
            raise StartError(
                "Error: --enable-per-request-metrics requires engine statistics logging; remove --disable-log-stats "
                "to enable per-request metrics."
            )
        check_cluster(self)
        if math.isinf(self.speed) and (self.deployment.dp > 1 or self.serves_cluster):
            raise OptionError("--speed max works with one engine: no --data-parallel-size and no cluster of instances")

    @property
    def deployment(self) -> ServedDeploymentOptions:
        """The deployment of one instance of the cluster."""
        return self.cluster.deployment

    @property
    def model_names(self) -> tuple[str, ...]:
        """The model names that requests may use, in the user's spelling."""
        return self.served_model_name or (self.deployment.model,)

    @property
    def has_multiprocess_metrics(self) -> bool:
        """Whether the metrics page has the form of several API servers. In vLLM each data-parallel rank has one."""
        network = self.network
        if network.api_server_count is None:
            return self.deployment.dp > 1 and not self.serves_cluster
        return network.num_api_servers > 1

    @property
    def serves_cluster(self) -> bool:
        """Whether the server needs a router in front of its engines. Raises EngineError."""
        instances = self.instances
        return instances.enable_instance_control or instances.instance_ports is not None or has_cluster(self.cluster)

    @property
    def endpoints(self) -> "list[ServeOptions]":
        """The options of each server of the process, which differ in the port."""
        ports = self.instances.endpoint_ports(self.network.port)
        if len(ports) == 1 and ports[0] == self.network.port:
            return [self]
        return [with_settings(self, port=port, ports="", count=None, is_endpoint=True) for port in ports]

    def _check_endpoints(self) -> None:
        """Raise OptionError for settings that several servers in one process cannot have separately."""
        flag = "--ports" if self.instances.ports else "--count" if self.instances.count is not None else ""
        self.instances.endpoint_ports(self.network.port)
        conflict = {
            "--api-server-count": self.network.num_api_servers > 1,
            "--uds": bool(self.network.uds),
            "--instance-ports": self.instances.instance_ports is not None,
            "--kv-events-config": self.kv_sharing.events.publishes,
        }
        for other, is_given in conflict.items():
            if flag and is_given:
                raise ExclusionError(flag, other, "")

    def _take_model_argument(self) -> None:
        """Use MODEL as --model. Raises OptionError if both are given and differ, or neither is given."""
        model, argument = self.deployment.model, self.model_argument
        if model and argument and model != argument:
            raise OptionError(f"MODEL and --model must agree, got {argument!r} and {model!r}")
        if not model and not argument:
            raise OptionError("MODEL must be given, such as qwen/qwen3-14b")
        object.__setattr__(self, "cluster", with_settings(self.cluster, model=model or argument))
        object.__setattr__(self, "model_argument", "")

    def _take_architecture(self) -> None:
        """Select the tasks of the model's class, unless a flag selects one."""
        routes = self.routes
        if routes.runner == "auto" and routes.convert in ("auto", "none") and not routes.task:
            object.__setattr__(self, "routes", replace(routes, **implied_routes(self.deployment)))

    def _check_engine(self) -> None:
        """Raise OptionError for settings that require vLLM's engine."""
        calculator = self.timing.latency_calculator
        for flag, is_given in (
            (KV_TRANSFER_FLAG, self.kv_sharing.transfer.is_on),
            (KV_EVENTS_FLAG, self.kv_sharing.events.publishes),
            ("--enable-lora", self.lora.enable_lora),
            (f"--latency-calculator {calculator}", self.timing.sets_times),
        ):
            if is_given and self.deployment.engine != "vllm":
                raise OptionError(f"{flag} needs --engine vllm")


def check_cluster(options: "ServeOptions") -> None:
    """Raise OptionError for settings that conflict with a router."""
    if options.serves_cluster:
        for setting in _router_conflicts(options):
            raise OptionError(f"{setting} cannot be used with {_cause(options)}")


def _router_conflicts(options: "ServeOptions") -> Iterator[str]:
    facts = {
        "--api-server-count": options.network.num_api_servers > 1,
        "--kv-transfer-config": options.kv_sharing.transfer.is_on,
    }
    yield from (setting for setting, is_set in facts.items() if is_set)
    if options.instances.instance_ports is not None and options.network.uds:
        yield "--uds"


def _cause(options: "ServeOptions") -> str:
    if options.cluster.num_instances > 1:
        return f"--num-instances {options.cluster.num_instances}"
    if options.instances.instance_ports is not None:
        return "--instance-ports"
    return "--enable-instance-control" if options.instances.enable_instance_control else "a router in front"


def check_processes(options: "ServeOptions", environment: ServerEnvironment) -> None:
    """Raise OptionError for settings that conflict with several API server processes."""
    if options.network.num_api_servers > 1:
        for setting in _process_conflicts(options, environment):
            raise OptionError(f"--api-server-count must be 1 with {setting}, got {options.network.num_api_servers}")


def _process_conflicts(options: "ServeOptions", environment: ServerEnvironment) -> Iterator[str]:
    facts = {
        "--uds": bool(options.network.uds),
        "--speed max": math.isinf(options.speed),
        "--playback": bool(options.playing_back.playback),
        "--enable-state-control": options.routes.enable_state_control,
        "--enable-playback-control": options.playing_back.enable_playback_control,
        "--enable-scale-out": options.routes.enable_scale_out,
        "--tokens-only": options.routes.tokens_only,
        "--kv-transfer-config": options.kv_sharing.transfer.is_on,
        "--kv-events-config": options.kv_sharing.events.publishes,
        "VLLM_SERVER_DEV_MODE": environment.dev_mode,
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": environment.allows_runtime_lora,
        "VLLM_ENABLE_RESPONSES_API_STORE": environment.stores_responses,
    }
    return (setting for setting, is_set in facts.items() if is_set)
