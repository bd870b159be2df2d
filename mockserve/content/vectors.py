"""Made-up vectors that behave: texts that share tokens are close, the same text always has the same vector.

Each token is a few signed positions drawn from a hash of its id; a text is the sum of its tokens, scaled to length 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mockserve.protocol.pooling.bodies import Vector

POSITIONS_PER_TOKEN = 16
SHARPNESS = 8.0
"""How far a difference in similarity moves a probability."""

_ODD_MULTIPLIERS = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


@dataclass(frozen=True, slots=True)
class VectorSource:
    """Vectors of `num_dimensions` numbers; another seed gives other ones."""

    num_dimensions: int
    seed: int = 0

    def of_text(self, token_ids: Sequence[int]) -> Vector:
        """One vector of length 1 for a whole prompt. Cost: O(tokens + dimensions)."""
        return _unit(self._sums(np.zeros(len(token_ids), np.int64), token_ids, 1)[0])

    def of_tokens(self, token_ids: Sequence[int]) -> Vector:
        """One row of length 1 for each token."""
        rows = self._sums(np.arange(len(token_ids)), token_ids, len(token_ids))
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        found: Vector = (rows / norms).astype(np.float32)
        return found

    def logits(self, vector: Vector, num_labels: int) -> Vector:
        """How much a text is of each class, before it becomes a probability."""
        directions = self.of_tokens([-1 - label for label in range(num_labels)])
        found: Vector = (SHARPNESS * (directions @ vector)).astype(np.float32)
        return found

    def _sums(self, rows: npt.NDArray[np.int64], token_ids: Sequence[int], num_rows: int) -> npt.NDArray[np.float64]:
        """Row `rows[i]` of the result has token i among its terms."""
        hashes = _hashes(np.array(token_ids, np.int64).view(np.uint64), self.seed)
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
    """What a cross-encoder would say of a pair, from 0 to 1."""
    return float(1 / (1 + np.exp(-SHARPNESS * (similarity(first, second) - 0.25))))


def probabilities(logits: Vector) -> Vector:
    """Of several classes one holds; a single one holds or not."""
    if len(logits) == 1:
        found: Vector = (1 / (1 + np.exp(-logits))).astype(np.float32)
        return found
    powers = np.exp(logits - logits.max())
    shares: Vector = (powers / powers.sum()).astype(np.float32)
    return shares


def _unit(vector: npt.NDArray[np.float64]) -> Vector:
    found: Vector = (vector / np.linalg.norm(vector)).astype(np.float32)
    return found


def _hashes(numbers: npt.NDArray[np.uint64], seed: int) -> npt.NDArray[np.uint64]:
    """`POSITIONS_PER_TOKEN` well-mixed hashes for each number."""
    first, second, third = map(np.uint64, _ODD_MULTIPLIERS)
    ordinals = np.arange(1, POSITIONS_PER_TOKEN + 1, dtype=np.uint64)
    start = np.uint64(seed % 2**64)
    with np.errstate(over="ignore"):
        mixed = (numbers[:, None] + start) * first + ordinals * second
        mixed = (mixed ^ (mixed >> np.uint64(30))) * second
        mixed = (mixed ^ (mixed >> np.uint64(27))) * third
    found: npt.NDArray[np.uint64] = mixed ^ (mixed >> np.uint64(31))
    return found
