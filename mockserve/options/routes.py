"""The settings of `blis serve` that decide which routes there are and what replies report: vLLM's own names."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blis_sim.options import OptionError, check_options, option
from blis_sim.options.text import load_json


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyOptions:
    """Flags with vLLM's names and meanings, and one of our own for media."""

    enable_prompt_tokens_details: bool = option(
        False, "Report how many tokens of a prompt were cached.", heading="Replies"
    )
    enable_force_include_usage: bool = option(False, "Put token counts into every chunk of every stream.")
    enable_per_request_metrics: bool = option(False, "Report each request's own latencies in its reply.")
    return_tokens_as_token_ids: bool = option(False, "Name tokens by their ids wherever log-probabilities are shown.")
    max_logprobs: int = option(20, "Most log-probabilities per token a request may ask for; -1 is all.", at_least=-1)
    stream_interval: int = option(1, "Tokens that a chunk of a stream waits for, after the first.", at_least=1)
    sse_keep_alive_interval: int = option(
        0, "Seconds after which a quiet stream of chat or completions gets a comment; 0 for never.", at_least=0
    )
    tokens_per_medium: int = option(
        0, "Prompt tokens that each picture or recording counts; with 0 the model takes text only.", at_least=0
    )

    def __post_init__(self) -> None:
        check_options(self)


POOLING_TASKS = ("embed", "classify", "token_embed", "token_classify")
"""In the order in which vLLM prefers one where a model has several."""
TASKS = ("generate", "transcription", *POOLING_TASKS)
GENERATING_TASKS = frozenset({"generate", "transcription"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteOptions:
    """What the served model can do, and which further interfaces the server offers."""

    runner: str = option(
        "auto",
        "What the model is run for; pooling replaces the generating routes by those of embeddings and the like.",
        choices=("auto", "generate", "pooling", "draft"),
        heading="Tasks and routes",
    )
    convert: str = option(
        "auto", "What a pooling model gives: vectors (embed) or classes (classify).",
        choices=("auto", "none", "embed", "classify"),
    )  # fmt: skip
    task: tuple[str, ...] = option(
        (), "What the model can do, if not what --runner and --convert imply; a model may have several.", choices=TASKS
    )
    hf_overrides: str = option(
        "",
        "JSON object over the model's config.json. Of a pooling model are read: hidden_size, num_labels, id2label, "
        "is_matryoshka, matryoshka_dimensions.",
    )
    enable_scale_out: bool = option(False, "Answer the token-in, token-out routes and those that render prompts.")
    tokens_only: bool = option(False, "Serve token ids only: --enable-scale-out, and POST /abort_requests.")
    enable_tokenizer_info_endpoint: bool = option(False, "Answer GET /tokenizer_info.")
    lora_modules: tuple[str, ...] = option(
        (), 'Adapters to serve from the start: name=path, or a JSON object with "name", "path", "base_model_name".'
    )

    def __post_init__(self) -> None:
        check_options(self)
        config_overrides(self)  # reading them checks them

    @property
    def scales_out(self) -> bool:
        """Whether token ids go in and come out."""
        return self.enable_scale_out or self.tokens_only


def tasks_of(options: RouteOptions) -> frozenset[str]:
    """What the served model can do."""
    if options.task:
        return frozenset(options.task)
    if options.runner == "pooling" or (options.runner == "auto" and options.convert in ("embed", "classify")):
        return frozenset({"classify" if options.convert == "classify" else "embed"})
    return frozenset({"generate"})


def pooling_task_of(options: RouteOptions) -> str | None:
    """The one pooling task a server has; None for a model that does not pool."""
    tasks = tasks_of(options)
    return next((task for task in POOLING_TASKS if task in tasks), None)


def config_overrides(options: RouteOptions) -> Mapping[str, Any]:
    """What --hf-overrides says. Raises OptionError when it is no JSON object."""
    if not options.hf_overrides:
        return {}
    try:
        found = load_json(options.hf_overrides)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise OptionError(f"--hf-overrides must be a JSON object, got {options.hf_overrides!r}")
    return found
