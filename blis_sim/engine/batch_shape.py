"""The input of a latency model: sums over the batch of a step, never the requests themselves."""

from collections.abc import Callable
from dataclasses import dataclass
from math import floor
from typing import NamedTuple

from blis_sim.engine.units import Micros


class BatchShape(NamedTuple):
    """Exact integer sums over the sequences that compute at least one token in a step.

    A prefill sequence has `t` new tokens, context `c` (tokens computed before this step) and prompt length `s`. A
    decode sequence has context `c` and one new token. All contexts are as they stand before the step.
    """

    prefill_requests: int = 0
    prefill_tokens: int = 0
    """sum of t"""
    prefill_tokens_squared: int = 0
    """sum of t*t"""
    prefill_context_tokens: int = 0
    """sum of c over prefills"""
    prefill_context_work: int = 0
    """sum of t*c"""
    prefill_prompt_work: int = 0
    """sum of t*s"""
    decode_requests: int = 0
    decode_context_tokens: int = 0
    """sum of c over decodes"""
    recent_prefill_tokens: int = 0
    """Prefill tokens of earlier steps, halved every 20 ms. Set for steps with prefills in vLLM's scheduling."""
    draft_tokens: int = 0
    """The prefill tokens that are drafts to verify: they come behind a sequence's own token, and all are sampled."""

    @property
    def num_requests(self) -> int:
        """Sequences that compute in this step."""
        return self.prefill_requests + self.decode_requests

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return self.prefill_tokens + self.decode_requests

    @property
    def num_sampled(self) -> int:
        """Tokens whose logits are computed: the last one of each sequence, and all drafts."""
        return self.prefill_requests + self.decode_requests + self.draft_tokens


new_shape: Callable[[type[BatchShape], tuple[int, ...]], BatchShape] = tuple.__new__
"""Create a shape, whose class comes first, from all of its figures, in order, at a third of the cost."""


def decodes(num_sequences: int, context_tokens: int) -> BatchShape:
    """Return the shape of a decode-only step."""
    return BatchShape(0, 0, 0, 0, 0, 0, num_sequences, context_tokens)


HALF_LIFE_US = 20_000
"""Prompt tokens count half as much after this. Measured on an H100: a prompt of 1,000 tokens takes 3.5 ms longer right
after another one, 1.6 ms longer 23 ms after it."""


@dataclass(slots=True)
class RecentPrompts:
    """Prompt tokens of the steps so far, decaying with time: a GPU heated by a prompt is slower at the next one."""

    _tokens: float = 0.0
    _at: Micros = 0

    def with_recent(self, shape: BatchShape, at: Micros) -> BatchShape:
        """Return `shape`, of a step with prompts that starts at `at`, with the recent prompt tokens of that instant."""
        recent = self.tokens_at(at)
        return BatchShape._make((*shape[:8], recent, shape.draft_tokens)) if recent else shape

    def tokens_at(self, at: Micros) -> int:
        """Return the recent prompt tokens at `at`."""
        tokens: float = self._tokens * 0.5 ** ((at - self._at) / HALF_LIFE_US)
        return floor(tokens)

    def add(self, tokens: int, ends_at: Micros) -> None:
        """Count the prompt tokens of a step that ends at `ends_at`."""
        self._tokens = self._tokens * 0.5 ** ((ends_at - self._at) / HALF_LIFE_US) + tokens
        self._at = ends_at
