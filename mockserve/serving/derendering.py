"""Texts and token ids of another server as replies of a server with parsers, whole or chunk by chunk."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from mockserve.generation.answer import END, START, Delta, Kind, apply_stops
from mockserve.generation.tokenizer import Split, Tokenizer
from mockserve.generation.tool_calls import new_parts, read_answer
from mockserve.protocol.bodies import (
    Candidate,
    Ending,
    ScoredToken,
    StopReason,
    Usage,
    chat_logprobs,
    completion_logprobs,
)
from mockserve.protocol.completions import CHUNK, ChatRequest, ToolCall, parse_chat, parse_completion, whole_message
from mockserve.protocol.errors import ApiError
from mockserve.protocol.generate import (
    DerenderStreamState,
    GenerateLogProb,
    GenerateLogProbsContent,
    GenerateTokensStreamChoice,
    GenerateTokensStreamResponse,
)
from mockserve.protocol.sampling import SamplingParams
from mockserve.reply.call_style import CallStyle, call_id, call_style
from mockserve.serving.model import ServedModel

# Conversion of texts and token ids to the reply of a server with parsers.

LOOKBACK_TOKENS = 6
"""Number of preceding tokens that the text of a token may depend on: its space, or the beginning of its character."""
UNREADABLE = "\ufffd"
LARGEST_TOKEN_ID = 2**32 - 1
"""Largest id that a tokenizer can represent."""
CHARACTER_TOKENS = 4
"""Maximum number of tokens of one character."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DerenderedChoice:
    """One choice of a generating server. `scored` is None without log-probabilities."""

    index: int
    token_ids: Sequence[int]
    ending: Ending | None
    scored: Sequence[ScoredToken] | None

    @property
    def has_ended_by_itself(self) -> bool:
        return self.ending is not None and self.ending.finish_reason == "stop"


def read_choice(given: GenerateTokensStreamChoice, tokenizer: Tokenizer) -> DerenderedChoice:
    """Convert a choice of a body."""
    content = None if given.logprobs is None else given.logprobs.content
    return DerenderedChoice(
        index=given.index,
        token_ids=given.token_ids or (),
        ending=None if given.finish_reason is None else Ending(given.finish_reason, given.stop_reason),
        scored=None if content is None else _scored_tokens(content, tokenizer),
    )


def readable_ids(
    choice: DerenderedChoice, sampling: SamplingParams, eos_token_id: int
) -> tuple[Sequence[int], StopReason]:
    """Return the ids without the stop token, and the stop reason, which is the token if the request lists it."""
    ending, ids = choice.ending, choice.token_ids
    if ending is None or not ids or not choice.has_ended_by_itself or isinstance(ending.stop_reason, str):
        return ids, None if ending is None else ending.stop_reason
    reason, last = ending.stop_reason, ids[-1]
    if reason is None and not sampling.ignore_eos and last == eos_token_id:
        is_stopped = True
    elif reason is None:
        is_stopped = last in sampling.stop_token_ids
        reason = last if is_stopped else None
    else:
        is_stopped = last == reason
    return (ids[:-1] if is_stopped and not sampling.include_stop_str_in_output else ids), reason


def continued_text(tokenizer: Tokenizer, prompt: Sequence[int], ids: Sequence[int], hides_special: bool) -> str:
    """Return the text that ids add to a prompt."""
    seen = prompt[-LOOKBACK_TOKENS:]
    before = tokenizer.decode(seen, hides_special)
    text = tokenizer.decode([*seen, *ids], hides_special)
    return text[len(before) :] if text.startswith(before) else tokenizer.decode(ids, hides_special)


def readable_text(tokenizer: Tokenizer, prompt: Sequence[int], ids: Sequence[int], hides_special: bool) -> str:
    """Return the text that ids add to a prompt, without an incomplete character at the end.

    An id beyond the maximum of tokenizers has no text.
    """
    ids = [each for each in ids if 0 <= each <= LARGEST_TOKEN_ID]
    for num_left in range(CHARACTER_TOKENS):
        text = continued_text(tokenizer, prompt, ids[: len(ids) - num_left], hides_special)
        if not text.endswith(UNREADABLE):
            return text
    return continued_text(tokenizer, prompt, ids, hides_special)


def cut_text(
    text: str, choice: DerenderedChoice, sampling: SamplingParams, reason: StopReason
) -> tuple[str, StopReason]:
    """Return the text up to the stop string that ended it, and the stop reason."""
    given = None if choice.ending is None else choice.ending.stop_reason
    stops = (given,) if isinstance(given, str) else sampling.stop
    if not stops or isinstance(given, int) or not choice.has_ended_by_itself:
        return text, reason
    limits = SamplingParams(stop=stops, include_stop_str_in_output=sampling.include_stop_str_in_output)
    found = apply_stops(Split([0], [text]), Ending("stop", reason), limits)
    return "".join(found.texts), found.ending.stop_reason


def check_lengths(
    max_model_len: int, choices: Sequence[DerenderedChoice], prompts: Sequence[Sequence[int] | None]
) -> None:
    """Raise ApiError for more tokens than a context has."""
    for choice in choices:
        if len(choice.token_ids) > max_model_len:
            number = len(choice.token_ids)
            message = f"token_ids length ({number}) in choice {choice.index} exceeds max_model_len ({max_model_len})."
            raise ApiError(message)
    for prompt in prompts:
        if prompt is not None and len(prompt) > max_model_len:
            raise ApiError(f"prompt_token_ids length ({len(prompt)}) exceeds max_model_len ({max_model_len}).")


def _scored_tokens(content: Sequence[GenerateLogProbsContent], tokenizer: Tokenizer) -> list[ScoredToken]:
    found: list[ScoredToken] = []
    before: list[int] = []
    for each in content:
        tops = [_read_candidate(top, tokenizer, before) for top in each.top_logprobs]
        found.append(ScoredToken(_read_candidate(each, tokenizer, before), tops))
        before = [*before, each.token_id][-LOOKBACK_TOKENS:]
    return found


def _read_candidate(given: GenerateLogProb, tokenizer: Tokenizer, before: Sequence[int]) -> Candidate:
    token_id = given.token_id
    if not 0 <= token_id <= LARGEST_TOKEN_ID:
        raise ApiError(f"number too {'small' if token_id < 0 else 'large'} to fit in target type")
    text = tokenizer.decode([token_id])
    if text.endswith(UNREADABLE):  # part of a character, which the last of its tokens brings
        whole = tokenizer.decode([*before, token_id])
        text = "" if whole.endswith(UNREADABLE) else whole[len(tokenizer.decode(before).rstrip(UNREADABLE)) :]
    return Candidate(token_id, text, given.logprob, given.rank or 0)


class TextReader(NamedTuple):
    """Reads the choices of one completion request."""

    model: ServedModel
    sampling: SamplingParams
    shows_ids: bool
    prompt: Sequence[int]

    def text(self, choice: DerenderedChoice) -> tuple[str, Ending]:
        """Return the text of a whole choice, and its stop reason."""
        ids, reason = readable_ids(choice, self.sampling, self.model.planner.tokenizer.eos_token_id)
        text, reason = cut_text(self._decoded(ids), choice, self.sampling, reason)
        return text, Ending("stop" if choice.ending is None else choice.ending.finish_reason, reason)

    def delta(self, choice: DerenderedChoice, earlier: Sequence[int]) -> str:
        """Return the text that the tokens of a chunk add to earlier ones."""
        ids, _ = readable_ids(choice, self.sampling, self.model.planner.tokenizer.eos_token_id)
        tokenizer, hides_special = self.model.planner.tokenizer, self.sampling.skip_special_tokens
        before = readable_text(tokenizer, self.prompt, earlier, hides_special)
        return readable_text(tokenizer, self.prompt, [*earlier, *ids], hides_special)[len(before) :]

    def logprobs(self, choice: DerenderedChoice, text_offset: int) -> dict[str, Any] | None:
        """Return the log-probabilities of a choice whose text begins at `text_offset`."""
        if choice.scored is None:
            return None
        requested = self.sampling.num_logprobs
        found = completion_logprobs(choice.scored, None if requested is None else requested + 1, False, text_offset)
        tops = zip(choice.scored, found["top_logprobs"], strict=True)
        return {**found, "top_logprobs": [shown if each.shown else None for each, shown in tops]}

    def token_ids(self, choice: DerenderedChoice) -> list[int] | None:
        """Return the ids of a choice, if they are requested."""
        return list(choice.token_ids) if self.shows_ids else None

    def _decoded(self, ids: Sequence[int]) -> str:
        return continued_text(self.model.planner.tokenizer, self.prompt, ids, self.sampling.skip_special_tokens)


def text_reader(model: ServedModel, given: dict[str, Any] | None, prompt: Sequence[int]) -> TextReader:
    """Return the reader of choices for a request. Raises ApiError for a completion request that is refused."""
    api_request = parse_completion(given or {"prompt": " "})
    return TextReader(model, api_request.sampling, api_request.response_options.token_ids, prompt)


class ChatReader(NamedTuple):
    """Reads the choices of one chat request."""

    model: ServedModel
    api_request: ChatRequest
    has_parser: bool
    has_calls: bool
    forces_calls: bool
    names_function: bool
    prompt: Sequence[int]

    @property
    def _style(self) -> CallStyle:
        return call_style(self.model.options.content.tools.tool_call_parser)

    @property
    def _hides_details(self) -> bool:
        """Whether ids and log-probabilities would reveal hidden reasoning."""
        return self.has_parser and not self.api_request.includes_reasoning

    def message(self, choice: DerenderedChoice) -> tuple[dict[str, Any], Ending]:
        """Return a whole choice as a message, and its stop reason."""
        tokenizer, sampling = self.model.planner.tokenizer, self.api_request.sampling
        ids, reason = readable_ids(choice, sampling, tokenizer.eos_token_id)
        text = continued_text(tokenizer, self.prompt, ids, self._hides_special)
        text, reason = cut_text(text, choice, sampling, reason)
        found = self._read(text, is_whole=True) if self.has_parser else [Delta(Kind.CONTENT, text)]
        calls = [
            ToolCall(
                self.call_id(each.text, each.call, False),
                each.text,
                _text_of_kind(found, Kind.TOOL_ARGUMENTS, each.call),
            )
            for each in found
            if each.kind is Kind.TOOL_NAME
        ]
        reasoning = _text_of_kind(found, Kind.REASONING) if self.api_request.includes_reasoning else ""
        content = _text_of_kind(found, Kind.CONTENT) or (None if self.has_parser and not self.forces_calls else "")
        message = whole_message("assistant", content, reasoning or None, calls)
        without_reason = "tool_calls" if calls and not self.names_function else "stop"
        return message, Ending(self.finish_reason(choice, bool(calls)) or without_reason, reason)

    def delta(self, choice: DerenderedChoice, earlier: Sequence[int]) -> list[Delta]:
        """Return the text that the tokens of a chunk add to earlier ones."""
        tokenizer = self.model.planner.tokenizer
        ids, _ = readable_ids(choice, self.api_request.sampling, tokenizer.eos_token_id)
        before = self._read_ids(earlier)
        return [each for each in new_parts(before, self._read_ids([*earlier, *ids])) if self._is_shown(each)]

    def finish_reason(self, choice: DerenderedChoice, has_calls: bool) -> str | None:
        """Return the finish reason of a choice, if it has ended."""
        if choice.ending is None:
            return None
        calls = has_calls and choice.has_ended_by_itself and not self.names_function
        return "tool_calls" if calls else choice.ending.finish_reason

    def logprobs(self, choice: DerenderedChoice) -> dict[str, Any] | None:
        """Return the log-probabilities of a choice, with the requested number of candidates."""
        if choice.scored is None or self._hides_details:
            return None
        return chat_logprobs(choice.scored, self.api_request.sampling.num_logprobs, as_ids=False)

    def token_ids(self, choice: DerenderedChoice) -> list[int] | None:
        """Return the ids of a choice, if they are requested."""
        return (
            list(choice.token_ids) if self.api_request.response_options.token_ids and not self._hides_details else None
        )

    def call_id(self, name: str, call: int, is_stream: bool) -> str:
        """Return a new id for a call."""
        num_earlier = sum(len(each.get("tool_calls") or ()) for each in self.api_request.messages)
        return call_id(self._style.ids, name, call, num_earlier, is_stream)

    @property
    def _hides_special(self) -> bool:
        """Whether special tokens are hidden; a parser needs them."""
        return not self.has_parser and self.api_request.sampling.skip_special_tokens

    def _read_ids(self, ids: Sequence[int]) -> list[Delta]:
        text = readable_text(self.model.planner.tokenizer, self.prompt, ids, self._hides_special)
        if not self.has_parser:
            return [Delta(Kind.CONTENT, text)] if text else []
        return self._read(text, is_whole=False)

    def _read(self, text: str, is_whole: bool) -> list[Delta]:
        # What the prompt has ended is known to a stream only.
        has_reasoning = self.model.options.content.reasoning.reasoning_parser is not None and (
            is_whole or not self._prompt_ends_reasoning
        )
        return read_answer(text, has_reasoning, self.has_calls, is_whole)

    @property
    def _prompt_ends_reasoning(self) -> bool:
        """Whether the prompt has ended the reasoning already."""
        start, end = (self.model.planner.tokenizer.marker_id(each) for each in (START, END))
        return next((each for each in reversed(self.prompt) if each in (start, end)), start) == end

    def _is_shown(self, delta: Delta) -> bool:
        return delta.kind is not Kind.REASONING or self.api_request.includes_reasoning


def chat_reader(model: ServedModel, given: dict[str, Any] | None, prompt: Sequence[int]) -> ChatReader:
    """Return the reader of choices for a chat. Raises ApiError for a chat request that is refused."""
    options = model.options
    body = {"messages": [{"role": "user", "content": ""}]} if given is None else given
    api_request = parse_chat(body, makes_prompt=False)
    choice = body.get("tool_choice", "auto")
    has_tools = bool(body.get("tools")) and choice not in (None, "none")
    return ChatReader(
        model=model,
        api_request=api_request,
        has_parser=options.content.parses_answers and given is not None,
        has_calls=options.content.tools.calls_tools and has_tools,
        forces_calls=has_tools and choice != "auto",
        names_function=isinstance(choice, Mapping),
        prompt=prompt,
    )


def _text_of_kind(found: Sequence[Delta], kind: Kind, call: int | None = None) -> str:
    return "".join(each.text for each in found if each.kind is kind and call in (None, each.call))


# Stream chunks from token ids of another server, with the state that the client passes between them.

CONTEXT_TOKENS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """The state of one choice in vLLM's fields, without the decoder's window, which is not needed here."""

    token_ids: tuple[int, ...] = ()
    chunk_lengths: tuple[int, ...] = ()
    role_sent: bool = False
    text_offset: int = 0
    call_ids: tuple[str, ...] = ()

    @classmethod
    def read(cls, given: DerenderStreamState | None) -> "StreamState":
        """Convert the state in the reply to the preceding chunk; None for the first chunk."""
        if given is None:
            return cls()
        return cls(
            token_ids=tuple(given.output_token_ids),
            chunk_lengths=tuple(given.output_chunk_lens),
            role_sent=given.role_sent,
            text_offset=given.logprob_text_offset,
            call_ids=tuple(given.last_tool_call_ids),
        )

    def after(self, choice: DerenderedChoice) -> "StreamState":
        """Return the state with the tokens of one more chunk."""
        if not choice.token_ids:
            return self
        lengths = (*self.chunk_lengths, len(choice.token_ids))
        return replace(self, token_ids=(*self.token_ids, *choice.token_ids), chunk_lengths=lengths)

    def shown(self) -> dict[str, Any]:
        return {
            "prev_tokens": [],
            "prefix_offset": 0,
            "read_offset": 0,
            "role_sent": self.role_sent,
            "logprob_context_token_ids": list(self.token_ids[-CONTEXT_TOKENS:]),
            "logprob_text_offset": self.text_offset,
            "output_token_ids": list(self.token_ids),
            "output_chunk_lens": list(self.chunk_lengths),
            "tools_streamed": bool(self.call_ids),
            "last_tool_call_ids": list(self.call_ids),
        }


def chat_chunk(
    head: Mapping[str, Any],
    reader: ChatReader,
    choice: DerenderedChoice | None,
    state: StreamState,
    generated: GenerateTokensStreamResponse,
) -> dict[str, Any]:
    """Return one chunk of a chat stream, and the state after it; without a choice the chunk has only the usage."""
    shown: list[dict[str, Any]] = []
    if choice is not None:
        delta, state = _chat_delta(reader, choice, state)
        ids = reader.token_ids(choice)
        shown.append(
            {
                "index": choice.index,
                "delta": delta,
                "logprobs": reader.logprobs(choice),
                "finish_reason": reader.finish_reason(choice, bool(state.call_ids)),
                "stop_reason": None if choice.ending is None else choice.ending.stop_reason,
                "token_ids": ids,
                "weight_versions": None,
            }
        )
        state = state.after(choice)
    of_prompt = {
        "prompt_token_ids": generated.prompt_token_ids if reader.api_request.response_options.token_ids else None,
        "prompt_text": None,
    }
    return {"chunk": _chunk_around(head, CHUNK, shown, generated, of_prompt), "stream_state": state.shown()}


def completion_chunk(
    head: Mapping[str, Any],
    reader: TextReader,
    choice: DerenderedChoice | None,
    state: StreamState,
    generated: GenerateTokensStreamResponse,
) -> dict[str, Any]:
    """Return one chunk of a completion stream, and the state after it."""
    shown: list[dict[str, Any]] = []
    if choice is not None:
        text = reader.delta(choice, state.token_ids)
        ending = choice.ending
        shown.append(
            {
                "index": choice.index,
                "text": text,
                "logprobs": reader.logprobs(choice, state.text_offset),
                "finish_reason": None if ending is None else ending.finish_reason,
                "stop_reason": None if ending is None else ending.stop_reason,
                "prompt_token_ids": None,
                "token_ids": reader.token_ids(choice),
                "weight_versions": None,
            }
        )
        state = replace(state.after(choice), text_offset=state.text_offset + len(text))
    return {"chunk": _chunk_around(head, "text_completion", shown, generated, {}), "stream_state": state.shown()}


def _chunk_around(
    head: Mapping[str, Any],
    kind: str,
    choices: Sequence[Mapping[str, Any]],
    generated: GenerateTokensStreamResponse,
    of_prompt: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the chunk around choices, in vLLM's order of fields."""
    return {
        "id": head["id"],
        "object": kind,
        "created": head["created"],
        "model": head["model"],
        "choices": choices,
        "usage": _chunk_usage(generated, head["prompt_tokens"]),
        "system_fingerprint": None,
        **of_prompt,
        "metrics": generated.metrics and generated.metrics.model_dump(),
        "kv_transfer_params": None,
    }


def _chat_delta(reader: ChatReader, choice: DerenderedChoice, state: StreamState) -> tuple[dict[str, Any], StreamState]:
    """Return the delta of a chunk, with all its nulls; calls keep their first ids."""
    found = reader.delta(choice, state.token_ids)
    delta: dict[str, Any] = {
        "role": None if state.role_sent else "assistant",
        "content": _text_or_none(found, Kind.CONTENT),
        "reasoning": _text_or_none(found, Kind.REASONING),
    }
    call_ids = list(state.call_ids)
    calls: dict[int, dict[str, Any]] = {}
    for each in found:
        if each.kind not in (Kind.TOOL_NAME, Kind.TOOL_ARGUMENTS):
            continue
        function: dict[str, Any] = {"name": None, "arguments": None}
        blank = {"id": None, "type": None, "index": each.call, "function": function}
        call = calls.setdefault(each.call, blank)
        if each.kind is Kind.TOOL_NAME:
            call_ids.append(reader.call_id(each.text, each.call, is_stream=True))
            call |= {"id": call_ids[-1], "type": "function"}
            call["function"]["name"] = each.text
        else:
            call["function"]["arguments"] = each.text
    if calls:
        delta["tool_calls"] = list(calls.values())
    return delta, replace(state, role_sent=True, call_ids=tuple(call_ids))


def _text_or_none(found: list[Delta], kind: Kind) -> str | None:
    return "".join(each.text for each in found if each.kind is kind) or None


def _chunk_usage(generated: GenerateTokensStreamResponse, prompt_tokens: int | None) -> dict[str, Any] | None:
    """Return the usage of a generated chunk; the request's prompt tokens override the chunk's."""
    given = generated.usage
    if given is None:
        return None
    counted = given.prompt_tokens if prompt_tokens is None else prompt_tokens
    return Usage(counted, given.completion_tokens or 0).full()
