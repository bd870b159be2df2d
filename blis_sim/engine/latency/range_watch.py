"""Notices when a learned latency model is asked about batches or prompts unlike those it was learned from."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.latency.wrapped import WrappedLatency
from blis_sim.engine.units import Micros

WATCHED: Mapping[str, str] = {
    "num_tokens": "tokens in a step",
    "decode_requests": "decoding requests in a step",
    "decode_context_tokens": "context tokens of the decoding requests in a step",
}
"""Fields of `BatchShape` whose largest value is known from the recordings, with what they count."""
NEARLY_SEEN = 1.1
"""Prompts so many times longer than the longest recorded, or shorter than the shortest, are nothing to mention."""


@dataclass(slots=True)
class RangeWatch(WrappedLatency):
    """`model`, with the largest batches and the shortest and longest prompts that it was asked about. `seen` has the
    largest batches of the recordings, `seen_prompts` the tokens of their shortest and longest prompts. `origin` names
    the coefficients for people, `learned_for` the deployment that was recorded.

    Contexts that grow while many steps are taken at once are noticed at the next call.
    """

    seen: Mapping[str, int]
    seen_prompts: tuple[int, int] | None = None
    origin: str = "--coefficients"
    learned_for: str = ""
    _asked: dict[str, int] = field(default_factory=lambda: dict.fromkeys(WATCHED, 0))
    _asked_prompts: tuple[int, int] | None = None

    def exceeded(self) -> list[str]:
        """What went beyond the recordings, one line each."""
        batches = [
            f"up to {self._asked[name]:,} {what}, the coefficients have seen up to {self.seen[name]:,}"
            for name, what in WATCHED.items()
            if name in self.seen and self._asked[name] > self.seen[name]
        ]
        return batches + self._exceeded_by_prompts()

    def _exceeded_by_prompts(self) -> list[str]:
        if self.seen_prompts is None or self._asked_prompts is None:
            return []
        (least, most), (shortest, longest) = self.seen_prompts, self._asked_prompts
        if shortest * NEARLY_SEEN >= least and longest <= most * NEARLY_SEEN:
            return []
        return [f"prompts of {shortest:,} to {longest:,} tokens, the coefficients have seen {least:,} to {most:,}"]

    def step_time(self, shape: BatchShape) -> Micros:
        asked = self._asked
        num_tokens = shape.prefill_tokens + shape.decode_requests
        if num_tokens > asked["num_tokens"]:
            asked["num_tokens"] = num_tokens
        if shape.decode_requests > asked["decode_requests"]:
            asked["decode_requests"] = shape.decode_requests
        if shape.decode_context_tokens > asked["decode_context_tokens"]:
            asked["decode_context_tokens"] = shape.decode_context_tokens
        return self.model.step_time(shape)

    def queueing_time(self, input_tokens: int) -> Micros:
        shortest, longest = self._asked_prompts or (input_tokens, input_tokens)
        if not shortest <= input_tokens <= longest or self._asked_prompts is None:
            self._asked_prompts = min(shortest, input_tokens), max(longest, input_tokens)
        return self.model.queueing_time(input_tokens)
