"""Answers of our server, as the model of a genuine server has to write them for its parsers."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from workshop.vllm_oracle.wire_search.markup import (
    BEFORE_FORCED,
    CALLS,
    CHANNELS,
    FORCED_AS_JSON,
    FORCED_CALLS,
    THOUGHTS,
    Call,
    Thought,
    forced,
)

SEPARATE = frozenset({"hermes", "qwen3_json", "longcat"})
"""Parsers whose calls have a mark each, and none around all."""


class Parsers(NamedTuple):
    """The parsers of both servers, by name; an empty one is none."""

    tool: str = ""
    reasoning: str = ""

    @property
    def name(self) -> str:
        """Both names, or the one that there is."""
        return "+".join(each for each in self if each)

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that set the parsers in a genuine server."""
        return {"x-parsers": f"{self.tool},{self.reasoning}"}


class AnswerParts(NamedTuple):
    """An answer by its parts."""

    reasoning: str = ""
    content: str = ""
    calls: Sequence[Call] = ()

    def written(self, parsers: Parsers, choice: Any, has_grammar: bool = False) -> str:
        """The text of the model. `choice` is the request's choice of a tool; with `has_grammar` a grammar holds the
        answer although calls are up to the model.
        """
        if has_grammar and parsers.tool in CHANNELS and not parsers.reasoning:
            begin, end = CHANNELS[parsers.tool]
            return f"{begin}{self.content}{end}{self._calls(parsers.tool, choice)}"
        text = self.content + self._calls(parsers.tool, choice)
        if not parsers.reasoning:
            return text
        thought = THOUGHTS.get(parsers.reasoning, Thought())
        answer = f"{thought.answer}{self.content}{thought.end_of_answer}" if self.content else ""
        if not self.reasoning:
            return answer + self._calls(parsers.tool, choice)
        return f"{thought.begin}{self.reasoning}{thought.end}{answer}{self._calls(parsers.tool, choice)}"

    def _calls(self, parser: str, choice: Any) -> str:
        if not self.calls:
            return ""
        if choice in (None, "auto", "none"):
            return CALLS[parser](self.calls)
        if parser in FORCED_AS_JSON:
            return forced(self.calls, is_named=isinstance(choice, Mapping))
        # The grammar of calls that are forced has nothing between them.
        groups = [[each] for each in self.calls] if parser in SEPARATE else [self.calls]
        write = FORCED_CALLS.get(parser, CALLS[parser])
        return BEFORE_FORCED.get(parser, "") + "".join(write(each) for each in groups)


def read_chat(reply: Mapping[str, Any]) -> AnswerParts:
    """The answer of a whole chat reply."""
    message = reply["choices"][0]["message"]
    calls = [Call(each["function"]["name"], each["function"]["arguments"]) for each in message.get("tool_calls") or ()]
    return AnswerParts(message.get("reasoning") or "", message.get("content") or "", calls)
