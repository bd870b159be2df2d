"""What a parser of tool calls would be used for, counted from the answers that are made without one."""

from collections.abc import Sequence
from typing import NamedTuple

from mockserve.content.answer import Answer, Delta, Kind
from mockserve.metrics.tool_parsing import ToolParsing
from mockserve.replies.call_style import CALL_KINDS


class ParsingCounter(NamedTuple):
    """Counts for the choices of one request; `after_reasoning`: the parser gets what follows the mark that ends it."""

    metrics: ToolParsing
    request_type: str
    after_reasoning: bool

    def whole(self, has_call: bool) -> None:
        """A whole choice was parsed in one go."""
        self.metrics.used(self.request_type, int(has_call), int(not has_call), is_stream=False)

    def streamed(self, answer: Answer, num_tokens: int) -> None:
        """The first `num_tokens` tokens of a choice were parsed one by one."""
        deltas = list(answer.deltas or ())[:num_tokens]
        if self.after_reasoning:
            deltas = deltas[_end_of_reasoning(deltas) :]
        num_with_call = sum(any(each.kind in CALL_KINDS for each in found) for found in deltas)
        self.metrics.used(self.request_type, num_with_call, len(deltas) - num_with_call, is_stream=True)


def _end_of_reasoning(deltas: Sequence[Sequence[Delta]]) -> int:
    """The place of the token that ends the reasoning, which is the first one after it; the number of all without."""
    places = [place for place, found in enumerate(deltas) if any(each.kind is Kind.REASONING for each in found)]
    return places[-1] + 1 if places else 0
