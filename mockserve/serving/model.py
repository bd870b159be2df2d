"""The served model: names, LoRA adapters, limits, planner, and the routes that its tasks enable."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from blis_sim.engine.deployment import Deployment
from blis_sim.engine.request import ExternalPrompt
from blis_sim.options import OptionError
from blis_sim.options.option import load_json
from mockserve.generation.writing import AnswerSettings
from mockserve.kv_events.setup import KVTransfer
from mockserve.metrics.counters import ToolParsing
from mockserve.options.environment import ServerEnvironment
from mockserve.options.serve import ServeOptions
from mockserve.options.server import RouteOptions, config_overrides, labels_of, pooling_task_of, tasks_of
from mockserve.protocol.errors import ApiError, internal_error, unknown_model
from mockserve.reply.call_style import ReasoningStyle
from mockserve.reply.frames import EventTemplates
from mockserve.reply.reply import PlannedChoices
from mockserve.serving.lifecycle import RequestQueue
from mockserve.serving.planner import Planner

PLAYBACK_FAMILY = "playback"
"""Name in `ROUTE_FAMILIES` of the routes of recorded replies."""


class RouteCondition(StrEnum):
    """Condition under which a route exists. The values are texts for the documentation."""

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
    """Return the conditions that hold under the settings."""
    routes = options.routes
    tasks = tasks_of(routes)
    facts = {
        RouteCondition.ALWAYS: True,
        RouteCondition.GENERATION: "generate" in tasks,
        RouteCondition.POOLING: bool(tasks & {"embed", "classify", "token_embed", "token_classify"}),
        RouteCondition.EMBED: "embed" in tasks,
        RouteCondition.TOKEN_EMBED: pooling_task_of(routes) == "token_embed",
        RouteCondition.CLASSIFY: "classify" in tasks,
        RouteCondition.SCORE: _model_scores(routes),
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


def _model_scores(options: RouteOptions) -> bool:
    """Whether the model scores: an embedding model compares vectors, a classifier must have a single class."""
    task = pooling_task_of(options)
    return task in ("embed", "token_embed") or (task == "classify" and len(labels_of(config_overrides(options))) == 1)


class Pooler(Protocol):
    """Makes vectors of prompts. The routes of pooling models know more of it."""

    def embedding(self, token_ids: Sequence[int], dimensions: int | None = None) -> Iterable[float]:
        """Return a vector of length 1 for a prompt, with the model's number of dimensions by default."""
        ...


@dataclass(frozen=True, slots=True)
class Adapter:
    """One adapter. `number` counts from 1 and stays when an adapter is loaded anew; `parent` is its base model.

    `base_model_name` is the base model that a setting names.
    """

    name: str
    path: str
    number: int
    parent: str
    base_model_name: str | None = None
    is_3d: bool = False

    def __repr__(self) -> str:
        """Return the text that vLLM logs."""
        return (
            f"LoRARequest(lora_name={self.name!r}, lora_int_id={self.number}, lora_path={self.path!r}, "
            f"base_model_name={self.base_model_name!r}, load_inplace=False, is_3d_lora_weight={self.is_3d})"
        )


class Adapters:
    """Loads and unloads adapters. Weights are not read: any path will do."""

    def __init__(self, base_names: Sequence[str], is_enabled: bool) -> None:
        self._base_names = base_names
        self._is_enabled = is_enabled
        self._loaded: dict[str, Adapter] = {}
        self._numbers = itertools.count(1)

    def __iter__(self) -> Iterator[Adapter]:
        """Adapters in the order in which they were loaded first."""
        return iter(self._loaded.values())

    def __contains__(self, name: str) -> bool:
        return name in self._loaded

    def get(self, name: str) -> Adapter | None:
        """Return the adapter with the name, or None."""
        return self._loaded.get(name)

    def load(
        self, name: str, path: str, replaces: bool = False, parent: str | None = None, is_3d: bool = False
    ) -> Adapter:
        """Load an adapter. Raises ApiError if the name is in use and `replaces` is false."""
        if not name or not path:
            raise _bad_input("Both 'lora_name' and 'lora_path' must be provided.")
        if name in self._base_names:
            raise _bad_input(f"The lora adapter '{name}' conflicts with a served base model.")
        _check_text(path)
        _check_text(name)
        known = self._loaded.get(name)
        if known is not None and not replaces:
            raise _bad_input(
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, "
                "set 'load_inplace' to True."
            )
        if not self._is_enabled:
            message = "Call to add_lora method failed: LoRA is not enabled. Use --enable-lora to enable LoRA."
            raise ApiError(message, status=500, kind="InternalServerError")
        number = known.number if known is not None else next(self._numbers)
        named = parent if parent in self._base_names and parent else None
        adapter = Adapter(name, path, number, named or self._base_names[0], named, is_3d)
        self._loaded[name] = adapter
        return adapter

    def unload(self, name: str) -> None:
        """Unload an adapter. Raises ApiError for an unknown name."""
        if not name:
            raise _bad_input("'lora_name' needs to be provided to unload a LoRA adapter.")
        if name not in self._loaded:
            message = f"The lora adapter '{name}' cannot be found."
            raise ApiError(message, status=404, kind="NotFoundError")
        del self._loaded[name]


def with_modules(adapters: Adapters, modules: Iterable[str]) -> Adapters:
    """Load the adapters of --lora-modules into `adapters`. Raises OptionError if an adapter cannot be loaded."""
    for module in _rejoined_modules(modules):
        name, path, parent = _parse_module(module)
        try:
            adapters.load(name, path, parent=parent)
        except ApiError as error:
            raise OptionError(f"--lora-modules {module}: {error.message}") from error
    return adapters


def _rejoined_modules(modules: Iterable[str]) -> Iterator[str]:
    """Yield the modules, rejoining JSON objects that were split at their commas."""
    pending = ""
    for module in modules:
        pending = f"{pending},{module}" if pending else module
        if not pending.lstrip().startswith("{") or pending.rstrip().endswith("}"):
            yield pending
            pending = ""
    if pending:
        yield pending


def _parse_module(module: str) -> tuple[str, str, str | None]:
    if module.lstrip().startswith("{"):
        try:
            found = load_json(module)
        except ValueError as error:
            raise OptionError(f"--lora-modules must be name=path or a JSON object, got {module!r}") from error
        if isinstance(found.get("name"), str) and isinstance(found.get("path"), str):
            return found["name"], found["path"], found.get("base_model_name")
        raise OptionError(f'--lora-modules as a JSON object must have "name" and "path", got {module!r}')
    name, has_path, path = module.partition("=")
    if not has_path:
        raise OptionError(f"--lora-modules must be name=path or a JSON object, got {module!r}")
    return name, path, None


def _check_text(text: str) -> None:
    """Raise ApiError for text that has no UTF-8 encoding: vLLM cannot send it to its engine."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise internal_error(str(error)) from None


def _bad_input(message: str) -> ApiError:
    return ApiError(message, kind="InvalidUserInput")


@dataclass(slots=True)
class ServedModel:
    """The properties of the served model that planning of replies reads."""

    names: Sequence[str]
    """Names that requests may use; the first one is in replies."""
    root: str
    """The name or folder that was given as the model."""
    fingerprint: str
    options: ServeOptions
    deployment: Deployment
    block_size_tokens: int
    planner: Planner
    answers: AnswerSettings
    reasoning_style: ReasoningStyle
    queue: RequestQueue
    adapters: Adapters
    pooler: Pooler | None
    """The pooler; None for a model that generates only."""
    tool_parsing: ToolParsing | None
    transfer: KVTransfer | None = None
    templates: EventTemplates = field(default_factory=EventTemplates)
    weight_version: str = "default"
    has_reset_weights: bool = False
    """Whether POST /weight_checker has set all weights to zero since the last update."""

    def external_prompt(self, params: Mapping[str, Any] | None, prompt_tokens: int) -> ExternalPrompt | None:
        """Return the part of a prompt that another instance computed, by the request's `kv_transfer_params`."""
        return None if self.transfer is None else self.transfer.incoming(params, prompt_tokens)

    def handover(self, params: Mapping[str, Any] | None, choices: PlannedChoices) -> dict[str, Any] | None:
        """Return the reply's `kv_transfer_params` for the instance that continues the request."""
        if self.transfer is None:
            return None
        first = choices[0]
        num_tokens = first.request.input_tokens + first.answer.num_tokens - 1
        return self.transfer.outgoing(params, num_tokens, first.request.id)

    def check_model(self, name: str) -> Adapter | None:
        """Return the adapter with the name; None for the base model. Raises ApiError for an unknown, non-empty name."""
        adapter = self.adapters.get(name)
        if name and adapter is None and name not in self.names:
            raise unknown_model(name, self.names)
        return adapter

    def reply_name(self, adapter: Adapter | None) -> str:
        """Return the model name of a reply, whichever served name the request has."""
        return self.names[0] if adapter is None else adapter.name
