"""Chat messages made of token ids that came from elsewhere, whole or as what a chunk adds."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mockserve.content.answer import Delta, Kind
from mockserve.content.reading import added, read_answer
from mockserve.content.thinking import END, START
from mockserve.planning.derendering import GivenChoice, continued_text, cut_text, readable_ids, readable_text
from mockserve.protocol.bodies import Ending
from mockserve.protocol.completions.bodies import ToolCall, whole_message
from mockserve.protocol.completions.chat import ChatRequest, parse_chat
from mockserve.protocol.logprob_shapes import chat_logprobs
from mockserve.replies.call_style import CallStyle, call_id, call_style
from mockserve.serving.service import Service


class ChatReader(NamedTuple):
    """Reads the choices of one chat request."""

    service: Service
    asked: ChatRequest
    has_parser: bool
    has_calls: bool
    forces_calls: bool
    names_function: bool
    prompt: Sequence[int]

    @property
    def _style(self) -> CallStyle:
        return call_style(self.service.options.tool_call_parser)

    @property
    def _hides_details(self) -> bool:
        """Whether ids and log-probabilities would show the reasoning that is hidden."""
        return self.has_parser and not self.asked.includes_reasoning

    def message(self, choice: GivenChoice) -> tuple[dict[str, Any], Ending]:
        """A whole choice as a message, and why it ended."""
        tokenizer, sampling = self.service.planner.tokenizer, self.asked.sampling
        ids, reason = readable_ids(choice, sampling, tokenizer.eos_token_id)
        text = continued_text(tokenizer, self.prompt, ids, self._hides_special)
        text, reason = cut_text(text, choice, sampling, reason)
        found = self._read(text, is_whole=True) if self.has_parser else [Delta(Kind.CONTENT, text)]
        calls = [
            ToolCall(self.call_id(each.text, each.call, False), each.text, _text(found, Kind.TOOL_ARGUMENTS, each.call))
            for each in found
            if each.kind is Kind.TOOL_NAME
        ]
        reasoning = _text(found, Kind.REASONING) if self.asked.includes_reasoning else ""
        content = _text(found, Kind.CONTENT) or (None if self.has_parser and not self.forces_calls else "")
        message = whole_message("assistant", content, reasoning or None, calls)
        without_reason = "tool_calls" if calls and not self.names_function else "stop"
        return message, Ending(self.finish_reason(choice, bool(calls)) or without_reason, reason)

    def delta(self, choice: GivenChoice, earlier: Sequence[int]) -> list[Delta]:
        """What the tokens of a chunk add to those that came before."""
        tokenizer = self.service.planner.tokenizer
        ids, _ = readable_ids(choice, self.asked.sampling, tokenizer.eos_token_id)
        before = self._read_ids(earlier)
        return [each for each in added(before, self._read_ids([*earlier, *ids])) if self._is_shown(each)]

    def finish_reason(self, choice: GivenChoice, has_calls: bool) -> str | None:
        """Why a choice ended, if it has."""
        if choice.ending is None:
            return None
        calls = has_calls and choice.has_ended_by_itself and not self.names_function
        return "tool_calls" if calls else choice.ending.finish_reason

    def logprobs(self, choice: GivenChoice) -> dict[str, Any] | None:
        """The log-probabilities of a choice, with as many candidates as were asked for."""
        if choice.scored is None or self._hides_details:
            return None
        return chat_logprobs(choice.scored, self.asked.sampling.num_logprobs, as_ids=False)

    def token_ids(self, choice: GivenChoice) -> list[int] | None:
        """The ids of a choice, if they are to be shown."""
        return list(choice.token_ids) if self.asked.wanted.token_ids and not self._hides_details else None

    def call_id(self, name: str, call: int, is_stream: bool) -> str:
        """A new id for a call."""
        num_earlier = sum(len(each.get("tool_calls") or ()) for each in self.asked.messages)
        return call_id(self._style.ids, name, call, num_earlier, is_stream)

    @property
    def _hides_special(self) -> bool:
        """Whether special tokens stay out; a parser needs to see them."""
        return not self.has_parser and self.asked.sampling.skip_special_tokens

    def _read_ids(self, ids: Sequence[int]) -> list[Delta]:
        text = readable_text(self.service.planner.tokenizer, self.prompt, ids, self._hides_special)
        if not self.has_parser:
            return [Delta(Kind.CONTENT, text)] if text else []
        return self._read(text, is_whole=False)

    def _read(self, text: str, is_whole: bool) -> list[Delta]:
        # What the prompt has ended is known to a stream only.
        has_reasoning = self.service.options.reasoning_parser is not None and (is_whole or not self._has_reasoned)
        return read_answer(text, has_reasoning, self.has_calls, is_whole)

    @property
    def _has_reasoned(self) -> bool:
        """Whether the prompt has ended the reasoning already."""
        start, end = (self.service.planner.tokenizer.marker_id(each) for each in (START, END))
        return next((each for each in reversed(self.prompt) if each in (start, end)), start) == end

    def _is_shown(self, delta: Delta) -> bool:
        return delta.kind is not Kind.REASONING or self.asked.includes_reasoning


def chat_reader(service: Service, body: Mapping[str, Any], prompt: Sequence[int]) -> ChatReader:
    """What reads the choices of a checked body. Raises ApiError for a chat request that is refused."""
    given = body.get("chat_request")
    options = service.options
    plain = {"messages": [{"role": "user", "content": ""}]}
    asked = parse_chat(dict(given or plain))
    choice = (given or {}).get("tool_choice", "auto")
    has_tools = bool((given or {}).get("tools")) and choice not in (None, "none")
    return ChatReader(
        service=service,
        asked=asked,
        has_parser=options.parses_answers and given is not None,
        has_calls=options.calls_tools and has_tools,
        forces_calls=has_tools and choice != "auto",
        names_function=isinstance(choice, Mapping),
        prompt=prompt,
    )


def _text(found: Sequence[Delta], kind: Kind, call: int | None = None) -> str:
    return "".join(each.text for each in found if each.kind is kind and call in (None, each.call))
