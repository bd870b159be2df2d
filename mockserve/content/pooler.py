"""What a pooling model is and makes of prompts: vectors, classes, scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blis_sim.engine.model_spec import ModelSpec
from blis_sim.options import OptionError
from blis_sim.options.text import load_json
from mockserve.content.vectors import VectorSource, probabilities
from mockserve.options.routes import RouteOptions, config_overrides, pooling_task_of, tasks_of
from mockserve.protocol.errors import ApiError, bad_value
from mockserve.protocol.pooling.bodies import Vector


@dataclass(frozen=True, slots=True)
class Pooler:
    """The pooling side of one model. `labels` are the names of classes by their number."""

    task: str
    tasks: tuple[str, ...]
    source: VectorSource
    labels: Mapping[int, str]
    is_matryoshka: bool
    matryoshka_dimensions: tuple[int, ...]
    architecture: str
    """The name of the model's class."""

    def check_task(self, task: str | None) -> None:
        """Raise ApiError for a task that the model does not have, or that was not chosen at start."""
        if task is None or task == self.task:
            return
        if task not in self.tasks:
            raise bad_value(f"Unsupported task: {task!r} Supported tasks: {list(self.tasks)}", "task")
        raise bad_value(f"Try switching the model's pooling_task via --pooler-config.task {task}.", "task")

    def check_dimensions(self, dimensions: int | None, model_name: str) -> None:
        """Raise ApiError for a vector size that the model cannot give."""
        if dimensions is None:
            return
        model, size = f"Model {model_name!r}", self.source.num_dimensions
        if not self.is_matryoshka:
            raise ApiError(
                f"{model} does not support Matryoshka embeddings; dimensions must be unset "
                f"(received dimensions={dimensions})."
            )
        if not 1 <= dimensions <= size:
            raise ApiError(f"{model} only supports dimensions in range [1, {size}], got {dimensions}.")
        allowed = self.matryoshka_dimensions
        if allowed and dimensions not in allowed:
            raise ApiError(f"{model} only supports Matryoshka dimensions {list(allowed)}, got {dimensions}.")

    def embedding(self, token_ids: Sequence[int], dimensions: int | None = None) -> Vector:
        """A prompt's vector, or the beginning of it, scaled to length 1."""
        vector = self.source.of_text(token_ids)
        if dimensions is None:
            return vector
        shorter: Vector = vector[:dimensions]
        length = float((shorter @ shorter) ** 0.5)
        return shorter / length if length else shorter

    def classes(self, token_ids: Sequence[int], use_activation: bool) -> Vector:
        """A prompt's probabilities of the classes, or what they are made of."""
        logits = self.source.logits(self.source.of_text(token_ids), len(self.labels))
        return probabilities(logits) if use_activation else logits

    def pooled(self, token_ids: Sequence[int], use_activation: bool) -> Vector:
        """What the model's own task makes of a prompt."""
        if self.task == "classify":
            return self.classes(token_ids, use_activation)
        if self.task == "token_embed":
            return self.source.of_tokens(token_ids)
        if self.task == "token_classify":
            rows = self.source.of_tokens(token_ids)
            logits: Vector = (rows @ self.source.of_tokens([-1 - each for each in self.labels]).T).astype(rows.dtype)
            return logits
        return self.embedding(token_ids)


def new_pooler(options: RouteOptions, model: ModelSpec, folder: str, seed: int) -> Pooler | None:
    """The pooling side of a model, if it has one; `folder` may hold its config.json.

    Raises OptionError for --hf-overrides that make no sense.
    """
    task = pooling_task_of(options)
    if task is None:
        return None
    overrides = config_overrides(options)
    size = _positive(overrides, "hidden_size", model.hidden_size)
    allowed = overrides.get("matryoshka_dimensions") or []
    if not isinstance(allowed, list) or not all(isinstance(each, int) for each in allowed):
        raise OptionError(f"--hf-overrides: matryoshka_dimensions must be a list of sizes, got {allowed!r}")
    return Pooler(
        task=task,
        tasks=tuple(sorted(tasks_of(options))),
        source=VectorSource(size, seed),
        labels=labels_of(overrides),
        is_matryoshka=bool(allowed or overrides.get("is_matryoshka")),
        matryoshka_dimensions=tuple(allowed),
        architecture=_architecture(folder),
    )


def _architecture(model: str) -> str:
    """Return what the config.json of a model folder calls the model's class, if there is one."""
    try:
        found = load_json((Path(model) / "config.json").read_text(encoding="utf-8"))["architectures"][0]
    except (OSError, ValueError, TypeError, LookupError):
        return "a text model"
    return str(found)


def labels_of(overrides: Mapping[str, Any]) -> Mapping[int, str]:
    """The names of the classes: `id2label`, else as many as `num_labels`, of which there is one by default."""
    named = overrides.get("id2label")
    if named is None:
        return {number: f"LABEL_{number}" for number in range(_positive(overrides, "num_labels", 1))}
    try:
        labels = {int(number): str(label) for number, label in named.items()}
    except (AttributeError, ValueError):
        labels = {}
    if sorted(labels) != list(range(len(labels))) or not labels:
        raise OptionError(f"--hf-overrides: id2label must map 0, 1, ... to names, got {named!r}")
    return labels


def _positive(overrides: Mapping[str, Any], name: str, default: int) -> int:
    value = overrides.get(name, default)
    if not isinstance(value, int) or value < 1:
        raise OptionError(f"--hf-overrides: {name} must be a number of at least 1, got {value!r}")
    return value
