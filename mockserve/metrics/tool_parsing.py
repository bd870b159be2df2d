"""How often a parser of tool calls would have been used, as vLLM counts that: once per whole choice, else per event."""

import time
from dataclasses import dataclass, field
from itertools import product

from prometheus_client.core import CounterMetricFamily, Metric

MODES = ("streaming", "non_streaming")
OUTCOMES = ("tool_call", "no_tool_call")
REQUEST_TYPES = ("chat_completions", "responses", "other")
CHAT, RESPONSES, _OTHER = REQUEST_TYPES


def _nothing_yet() -> dict[tuple[str, str, str], int]:
    return dict.fromkeys(product(MODES, OUTCOMES, REQUEST_TYPES), 0)


@dataclass(slots=True)
class ToolParsing:
    """Counts by mode, outcome and type of request."""

    counts: dict[tuple[str, str, str], int] = field(default_factory=_nothing_yet)
    created: float = field(default_factory=time.time)

    def used(self, request_type: str, num_with_call: int, num_without: int, is_stream: bool) -> None:
        """The parser was used so often: `num_with_call` times it found something of a call."""
        mode = MODES[0] if is_stream else MODES[1]
        for outcome, number in zip(OUTCOMES, (num_with_call, num_without), strict=True):
            self.counts[mode, outcome, request_type] += number

    def add(self, other: "ToolParsing") -> None:
        """Count what another has counted, too."""
        self.created = min(self.created, other.created)
        for key, number in other.counts.items():
            self.counts[key] += number

    def family(self, model_name: str) -> Metric:
        """The counters, for prometheus_client."""
        metric = CounterMetricFamily(
            "vllm:tool_call_parser_invocations",
            "Total number of ToolParser invocations. "
            "Non-streaming increments once per choice; streaming increments once per delta.",
            labels=["model_name", "mode", "outcome", "request_type"],
        )
        for (mode, outcome, request_type), number in self.counts.items():
            metric.add_metric([model_name, mode, outcome, request_type], number, created=self.created)
        return metric
