"""What became of each request of a benchmark, in the terms of `vllm bench serve`. Seconds throughout."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from observe.clock import Nanos
from observe.dispatch import Sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One request. The answer ends with its last token; gaps are those between events that carry tokens.

    A request is a success when it was answered in full and at least one token came. `queue_s` is how long the client
    held it back, which is in none of the latencies.
    """

    is_success: bool
    error: str
    prompt_tokens: int
    output_tokens: int
    text: str
    start_s: float
    """When it was sent, by a clock of no meaning."""
    ttft_s: float
    gaps_s: Sequence[float]
    latency_s: float
    queue_s: float

    @property
    def tpot_s(self) -> float:
        """The time per output token behind the first one, 0 with fewer than two."""
        return (self.latency_s - self.ttft_s) / (self.output_tokens - 1) if self.output_tokens > 1 else 0.0


def answer_of(sent: Sent) -> Answer:
    """The answer to a request that has ended."""
    outcome = sent.outcome
    times = outcome.token_times
    is_ok = outcome.status == "ok"
    counted = outcome.reply.prompt_tokens
    planned = sent.prepared.planned
    error = outcome.error_message if not is_ok else "" if times else "no event of the answer carried a token"
    return Answer(
        is_success=is_ok and bool(times),
        error=error,
        prompt_tokens=planned.prefix_tokens + planned.input_tokens if counted is None else counted,
        output_tokens=outcome.output_tokens if is_ok and times else 0,
        text=outcome.reply.said,
        start_s=outcome.sent / 1e9,
        ttft_s=_seconds(outcome.sent, times[0]) if times else 0.0,
        gaps_s=[_seconds(earlier, later) for earlier, later in pairwise(times)],
        latency_s=_seconds(outcome.sent, times[-1]) if times else 0.0,
        queue_s=_seconds(sent.due, outcome.sent),
    )


def _seconds(start: Nanos, end: Nanos) -> float:
    return (end - start) / 1e9
