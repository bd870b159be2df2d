"""The tokens of one chat choice as content, reasoning and tool calls."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from mockserve.generation.answer import Answer, Delta, Kind
from mockserve.generation.tool_calls import calls_in_reply
from mockserve.protocol.bodies import Choice, Ending, Piece, chat_logprobs
from mockserve.protocol.completions import (
    ToolCall,
    content_delta,
    merge_deltas,
    reasoning_delta,
    tool_arguments_delta,
    tool_name_delta,
    whole_message,
)
from mockserve.reply.call_style import (
    EMPTY_OBJECT,
    NO_REASONING,
    CallStyle,
    Deltas,
    LaterPart,
    NoArguments,
    NullContent,
    ReasoningStyle,
    arrange_deltas,
    call_id,
    with_reasoning_marks,
    without_fillings,
)
from mockserve.reply.choice_writer import NewScorer, scored_tokens
from mockserve.reply.reply import NewTextPiece, ParsingCounter, PlannedChoice, PlannedPrompt


class ChatShape(NamedTuple):
    """The requested form of chat choices. `num_top` of None includes every scored candidate.

    `empty_content` is the content of a message that has none beside reasoning or tool calls. `parsing` counts uses of
    the parser of tool calls. `num_earlier_calls` is the number of calls in the conversation so far.
    """

    role: str = "assistant"
    new_scorer: NewScorer | None = None
    num_top: int | None = 0
    tokens_as_ids: bool = False
    tokens_have_bytes: bool = True
    shows_token_ids: bool = False
    includes_reasoning: bool = True
    empty_content: str | None = None
    parsing: ParsingCounter | None = None
    calls: CallStyle = CallStyle()
    reasoning: ReasoningStyle = NO_REASONING
    num_earlier_calls: int = 0

    def text_pieces(self, choice: PlannedChoice) -> NewTextPiece | None:
        """Return what makes the pieces of a choice whose tokens add only their text; None for other choices."""
        answer = choice.answer
        if answer.deltas is not None or self.new_scorer is not None or self.shows_token_ids:
            return None
        return None if self.calls.begin_mark and self.calls.may_hold(answer.texts) else _text_piece

    def writer(self, prompt: PlannedPrompt, choice: PlannedChoice) -> "ChatWriter":
        """The writer of one choice."""
        return ChatWriter(self, prompt, choice)


def _text_piece(text: str) -> Piece:
    return Piece(delta=content_delta(text))


class ChatWriter:
    """Writes one choice."""

    def __init__(self, shape: ChatShape, prompt: PlannedPrompt, choice: PlannedChoice) -> None:
        self._shape = shape
        self._prompt = prompt
        self._choice = choice
        self._answer = choice.answer
        deltas = choice.answer.deltas
        if deltas is None and shape.calls.begin_mark and shape.calls.may_hold(choice.answer.texts):
            deltas = [(Delta(Kind.CONTENT, text),) if text else () for text in choice.answer.texts]
        self._deltas = None if deltas is None else self._arranged(deltas)
        # What is hidden must not show through ids and log-probabilities either.
        hides = choice.answer.deltas is not None and not shape.includes_reasoning
        self._scorer = shape.new_scorer(choice) if shape.new_scorer is not None and not hides else None
        self._shows_ids = shape.shows_token_ids and not hides

    def _arranged(self, deltas: Deltas) -> list[tuple[Delta, ...]]:
        token_deltas = arrange_deltas(deltas, self._shape.calls, self._answer.cut is not None)
        reasoning = self._shape.reasoning
        if not self._shape.includes_reasoning:
            return without_fillings(token_deltas)
        return with_reasoning_marks(token_deltas, reasoning.begin, reasoning.end)

    def single_delta(self, place: int) -> Delta | None:
        deltas = self._deltas
        if deltas is None or self._scorer is not None or self._shows_ids or len(deltas[place]) != 1:
            return None
        (found,) = deltas[place]
        # The name of a function comes with an id, of which there is a new one each time.
        is_usual = found.kind not in (Kind.TOOL_NAME, Kind.NOTHING)
        return found if is_usual and self._is_shown(found) else None

    def single_delta_piece(self, single_delta: Delta) -> Piece:
        return Piece(delta=self._object(single_delta))

    def piece(self, first: int, last: int) -> Piece | None:
        delta = self._delta(first, last)
        if delta is None and self._scorer is None and not self._shows_ids:
            return None
        return self._piece({} if delta is None else delta, first, last)

    def last_piece(self, first: int, last: int) -> Piece:
        if self._shape.parsing is not None:
            self._shape.parsing.streamed(self._answer, self._deltas, last)
        delta = self._delta(first, last) if last else {}
        if self._answer.cut is not None and delta is not None and delta.get("tool_calls"):
            delta = _with_arguments(delta, self._shape.calls.cut_at_name)
        if delta is None:
            # Reasoning that simply stops ends with an empty part of it; everything else ends with nothing.
            delta = (
                reasoning_delta("") if self._shape.includes_reasoning and _ends_within_reasoning(self._answer) else {}
            )
        return self._piece(delta, first, last)

    def choice(self, num_tokens: int, ending: Ending) -> Choice:
        message = self._message(num_tokens)
        if self._shape.parsing is not None:
            self._shape.parsing.whole(has_call="tool_calls" in message)
        parses_calls = "tool_calls" in message and ending.finish_reason == "stop"
        return Choice(
            content=message,
            ending=(self._answer.streamed_ending or ending) if parses_calls else ending,
            num_tokens=num_tokens,
            token_ids=self._answer.token_ids[:num_tokens] if self._shows_ids else None,
            logprobs=self._logprobs(0, num_tokens),
            prompt_output=self._prompt.prompt_output,
        )

    def _piece(self, delta: dict[str, Any], first: int, last: int) -> Piece:
        return Piece(
            delta=delta,
            token_ids=self._answer.token_ids[first:last] if self._shows_ids else None,
            logprobs=self._logprobs(first, last),
        )

    def _delta(self, first: int, last: int) -> dict[str, Any] | None:
        deltas = self._deltas
        if deltas is None:
            return content_delta("".join(self._answer.texts[first:last]))
        shown = [self._object(each) for token in deltas[first:last] for each in token if self._is_shown(each)]
        return merge_deltas(shown) if shown else None

    def _is_shown(self, delta: Delta) -> bool:
        if delta.kind is Kind.REASONING:
            return self._shape.includes_reasoning
        return delta.kind is not Kind.MARKUP

    def _object(self, delta: Delta) -> dict[str, Any]:
        found = self._shown(delta)
        # What is hidden is there as a null, in its place.
        return found if self._shape.includes_reasoning else merge_deltas([found, {"reasoning": None}])

    def _shown(self, delta: Delta) -> dict[str, Any]:
        style = self._shape.reasoning
        if delta.kind is Kind.REASONING:
            found = reasoning_delta(delta.text)
            return {"content": None, **found} if style.null_content else found
        if delta.kind is Kind.CONTENT:
            found = content_delta(delta.text)
            return {**found, "reasoning": None} if style.null_reasoning else found
        if delta.kind is Kind.NOTHING:
            return {"content": None}
        found = self._shown_call(delta)
        null = self._shape.calls.null_content
        has_content = null is NullContent.ALWAYS or (null is NullContent.NAME and delta.kind is Kind.TOOL_NAME)
        return {"content": None, **found} if has_content else found

    def _shown_call(self, delta: Delta) -> dict[str, Any]:
        style = self._shape.calls
        if delta.kind is Kind.TOOL_NAME:
            arguments = "" if style.names_have_arguments else None
            call_id = self._call_id(delta.text, delta.call, is_stream=True)
            return tool_name_delta(delta.call, call_id, delta.text, arguments)
        return tool_arguments_delta(
            delta.call, delta.text, style.part is LaterPart.NULL_NAME, style.part is LaterPart.NULL_ID
        )

    def _call_id(self, name: str, call: int, is_stream: bool) -> str:
        shape = self._shape
        return call_id(shape.calls.ids, name, call, shape.num_earlier_calls, is_stream)

    def _arguments(self, flat_deltas: Sequence[Delta]) -> str:
        text = _text_of_kind(flat_deltas, Kind.TOOL_ARGUMENTS)
        return "" if text == EMPTY_OBJECT and self._shape.calls.no_arguments is NoArguments.EMPTY else text

    def _message(self, num_tokens: int) -> dict[str, Any]:
        deltas = self._answer.deltas
        if deltas is None:
            return whole_message(self._shape.role, "".join(self._answer.texts[:num_tokens]), None, ())
        flat_deltas = [each for token in deltas[:num_tokens] for each in token]
        reasoning = _text_of_kind(flat_deltas, Kind.REASONING) if self._shape.includes_reasoning else ""
        cut = self._answer.cut
        names = {each.call: each.text for each in flat_deltas if each.kind is Kind.TOOL_NAME}
        calls = [
            ToolCall(
                self._call_id(name, call, is_stream=False),
                name,
                self._arguments([each for each in flat_deltas if each.call == call]),
            )
            for call, name in names.items()
        ]
        if cut is not None:
            found = calls_in_reply(self._shape.calls.cut, [(each.name, each.arguments) for each in calls], cut)
            if found is None:
                return whole_message(self._shape.role, cut.text or None, reasoning or None, ())
            calls = [replace(each, arguments=arguments) for each, (_, arguments) in zip(calls, found, strict=False)]
            return whole_message(self._shape.role, self._shape.empty_content, reasoning or None, calls)
        has_other_output = bool(calls) or any(each.kind is Kind.REASONING for each in flat_deltas)
        content = _text_of_kind(flat_deltas, Kind.CONTENT) or (self._shape.empty_content if has_other_output else "")
        return whole_message(self._shape.role, content, reasoning or None, calls)

    def _logprobs(self, first: int, last: int) -> dict[str, Any] | None:
        if self._scorer is None:
            return None
        tokens = scored_tokens(self._scorer, self._choice, first, last)
        shape = self._shape
        return chat_logprobs(tokens, shape.num_top, shape.tokens_as_ids, shape.tokens_have_bytes)


def _with_arguments(delta: dict[str, Any], arguments: str) -> dict[str, Any]:
    """Return a delta whose last call has `arguments` if it has none yet."""
    *earlier, last = delta["tool_calls"]
    function = last["function"]
    if function.get("name") is None or function.get("arguments"):
        return delta
    return {**delta, "tool_calls": [*earlier, {**last, "function": {**function, "arguments": arguments}}]}


def _ends_within_reasoning(answer: Answer) -> bool:
    """Whether the answer ends with the end marker within the reasoning."""
    kinds = {each.kind for token in answer.deltas or () for each in token}
    return kinds == {Kind.REASONING} and not answer.token_texts[-1]


def _text_of_kind(flat_deltas: Sequence[Delta], kind: Kind) -> str:
    return "".join(each.text for each in flat_deltas if each.kind is kind)
