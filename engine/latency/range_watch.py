"""Notices when a learned latency model is asked about batches unlike those it was learned from."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.batch_shape import BatchShape
from engine.latency.wrapped import WrappedLatency
from engine.units import Micros

WATCHED: Mapping[str, str] = {
    "num_tokens": "tokens in a step",
    "decode_requests": "decoding requests in a step",
    "decode_context_tokens": "context tokens of the decoding requests in a step",
}
"""Fields of `BatchShape` whose largest value is known from the recordings, with what they count."""


@dataclass(slots=True)
class RangeWatch(WrappedLatency):
    """`model`, with the largest batches that it was asked about. `seen` has the largest of the recordings.

    Contexts that grow while many steps are taken at once are noticed at the next call.
    """

    seen: Mapping[str, int]
    _asked: dict[str, int] = field(default_factory=lambda: dict.fromkeys(WATCHED, 0))

    def exceeded(self) -> list[str]:
        """What went beyond the recordings, one line each."""
        return [
            f"up to {self._asked[name]:,} {what}, the coefficients have seen up to {self.seen[name]:,}"
            for name, what in WATCHED.items()
            if name in self.seen and self._asked[name] > self.seen[name]
        ]

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
