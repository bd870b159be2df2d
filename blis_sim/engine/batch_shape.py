"""What a latency model sees of a step: sums over the batch, never the requests themselves."""

from typing import NamedTuple


class BatchShape(NamedTuple):
    """Exact integer sums over the sequences that compute at least one token in a step.

    For a prefill sequence with `t` new tokens, context `c` (tokens computed before this step) and prompt length `s`;
    for a decode sequence with context `c` and one new token. All contexts are as they stand before the step.
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
    """Of steps before, halved every 20 ms. Told of steps with prefills in vLLM's scheduling."""

    @property
    def num_requests(self) -> int:
        """Sequences that compute in this step."""
        return self.prefill_requests + self.decode_requests

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return self.prefill_tokens + self.decode_requests


def decodes(num_sequences: int, context_tokens: int) -> BatchShape:
    """The shape of a step in which everyone decodes."""
    return BatchShape(0, 0, 0, 0, 0, 0, num_sequences, context_tokens)
