"""Results of a pooling model for prompts: classes, scores, and vectors that are closer the more tokens texts share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blis_sim.engine.specs import ModelSpec
from blis_sim.options import OptionError
from blis_sim.wings.pooling.replies import Vector
from mockserve.options.serve import folder_config
from mockserve.options.server import (
    RouteOptions,
    config_overrides,
    labels_of,
    pooling_task_of,
    positive_override,
    tasks_of,
)
from mockserve.protocol.errors import ApiError, bad_value

POSITIONS_PER_TOKEN = 16
SHARPNESS = 8.0
"""Factor from a difference in similarity to a probability."""

_ODD_MULTIPLIERS = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


@dataclass(frozen=True, slots=True)
class VectorSource:
    """Deterministic vectors of `num_dimensions` numbers, which depend on the seed."""

    num_dimensions: int
    seed: int = 0

    def of_text(self, token_ids: Sequence[int]) -> Vector:
        """One vector of length 1 for a whole prompt. Cost: O(tokens + dimensions)."""
        vector = self._sums(np.zeros(len(token_ids), np.int64), token_ids, 1)[0]
        found: Vector = (vector / np.linalg.norm(vector)).astype(np.float32)
        return found

    def of_tokens(self, token_ids: Sequence[int]) -> Vector:
        """One row of length 1 for each token."""
        rows = self._sums(np.arange(len(token_ids)), token_ids, len(token_ids))
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        found: Vector = (rows / norms).astype(np.float32)
        return found

    def logits(self, vector: Vector, num_labels: int) -> Vector:
        """Return the score of a text for each class, before it becomes a probability."""
        directions = self.of_tokens([-1 - label for label in range(num_labels)])
        found: Vector = (SHARPNESS * (directions @ vector)).astype(np.float32)
        return found

    def _sums(self, rows: npt.NDArray[np.int64], token_ids: Sequence[int], num_rows: int) -> npt.NDArray[np.float64]:
        """Row `rows[i]` of the result has token i among its terms."""
        first, second, third = map(np.uint64, _ODD_MULTIPLIERS)
        ordinals = np.arange(1, POSITIONS_PER_TOKEN + 1, dtype=np.uint64)
        start = np.uint64(self.seed % 2**64)
        with np.errstate(over="ignore"):
            mixed = (np.array(token_ids, np.int64).view(np.uint64)[:, None] + start) * first + ordinals * second
            mixed = (mixed ^ (mixed >> np.uint64(30))) * second
            mixed = (mixed ^ (mixed >> np.uint64(27))) * third
        hashes: npt.NDArray[np.uint64] = mixed ^ (mixed >> np.uint64(31))
        positions = (hashes >> np.uint64(1)) % np.uint64(self.num_dimensions)
        signs = np.where(hashes & np.uint64(1), 1.0, -1.0)
        cells = rows[:, None] * self.num_dimensions + positions.astype(np.int64)
        counted = np.bincount(cells.ravel(), signs.ravel(), num_rows * self.num_dimensions)
        sums: npt.NDArray[np.float64] = np.asarray(counted, np.float64)
        # Signs may cancel out; a faint first number keeps every length above 0.
        found = sums.reshape(num_rows, self.num_dimensions)
        found[:, 0] += 1e-3
        return found


def similarity(first: Vector, second: Vector) -> float:
    """The cosine of the angle between two texts, from -1 to 1."""
    return float(np.clip(first @ second, -1, 1))


def best_match_sum(query: Vector, document: Vector) -> float:
    """Late interaction: for each token of the query the most similar one of the document, summed."""
    return float((query @ document.T).max(axis=1).sum())


def relevance(first: Vector, second: Vector) -> float:
    """Return the relevance of a pair as from a cross-encoder, from 0 to 1."""
    return float(1 / (1 + np.exp(-SHARPNESS * (similarity(first, second) - 0.25))))


def probabilities(logits: Vector) -> Vector:
    """Return probabilities: several classes share one, a single class has its own."""
    if len(logits) == 1:
        found: Vector = (1 / (1 + np.exp(-logits))).astype(np.float32)
        return found
    powers = np.exp(logits - logits.max())
    shares: Vector = (powers / powers.sum()).astype(np.float32)
    return shares


@dataclass(frozen=True, slots=True)
class Pooler:
    """Pooling of one model. `labels` are the names of classes by their number."""

    task: str
    tasks: tuple[str, ...]
    source: VectorSource
    labels: Mapping[int, str]
    is_matryoshka: bool
    matryoshka_dimensions: tuple[int, ...]
    architecture: str
    """The name of the model's class."""

    def check_task(self, task: str | None) -> None:
        """Raise ApiError for a task that the model lacks, or that the server was not started with."""
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
        """Return a prompt's class probabilities, or the logits without `use_activation`."""
        logits = self.source.logits(self.source.of_text(token_ids), len(self.labels))
        return probabilities(logits) if use_activation else logits

    def pooled(self, token_ids: Sequence[int], use_activation: bool) -> Vector:
        """Return the result of the model's own task for a prompt."""
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
    """Create the pooler of a model, if the model pools; `folder` may contain its config.json.

    Raises OptionError for invalid --hf-overrides.
    """
    task = pooling_task_of(options)
    if task is None:
        return None
    overrides = config_overrides(options)
    size = positive_override(overrides, "hidden_size", model.hidden_size)
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
    """Return the class name from the config.json of a model folder, if there is one."""
    classes = (folder_config(model) or {}).get("architectures")
    return str(classes[0]) if isinstance(classes, list) and classes else "a text model"
