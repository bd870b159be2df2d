"""The settings of `blis serve` that decide which routes there are and what they know: vLLM's own names."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blis_sim.options import OptionError, check_options, option
from blis_sim.options.json_text import load_json

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
