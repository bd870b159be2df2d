"""Stream chunks from token ids of another server, with the state that the client passes between them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mockserve.generation.answer import Delta, Kind
from mockserve.planning.derendering import ChatReader, DerenderedChoice, TextReader
from mockserve.protocol.bodies import Usage
from mockserve.protocol.completions.bodies import CHUNK
from mockserve.protocol.reading.types import as_flag, as_integer

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
    def read(cls, given: Mapping[str, Any] | None) -> "StreamState":
        """Parse the state in the reply to the preceding chunk; None for the first chunk."""
        given = given or {}
        return cls(
            token_ids=tuple(given.get("output_token_ids") or ()),
            chunk_lengths=tuple(given.get("output_chunk_lens") or ()),
            role_sent=as_flag(given.get("role_sent", False)),
            text_offset=as_integer(given.get("logprob_text_offset", 0)),
            call_ids=tuple(given.get("last_tool_call_ids") or ()),
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
    generated: Mapping[str, Any],
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
        "prompt_token_ids": generated.get("prompt_token_ids")
        if reader.api_request.response_options.token_ids
        else None,
        "prompt_text": None,
    }
    return {"chunk": _chunk(head, CHUNK, shown, generated, of_prompt), "stream_state": state.shown()}


def completion_chunk(
    head: Mapping[str, Any],
    reader: TextReader,
    choice: DerenderedChoice | None,
    state: StreamState,
    generated: Mapping[str, Any],
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
    return {"chunk": _chunk(head, "text_completion", shown, generated, {}), "stream_state": state.shown()}


def _chunk(
    head: Mapping[str, Any],
    kind: str,
    choices: Sequence[Mapping[str, Any]],
    generated: Mapping[str, Any],
    of_prompt: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the chunk around choices, in vLLM's order of fields."""
    return {
        "id": head["id"],
        "object": kind,
        "created": head["created"],
        "model": head["model"],
        "choices": choices,
        "usage": _usage(generated, head["prompt_tokens"]),
        "system_fingerprint": None,
        **of_prompt,
        "metrics": generated.get("metrics"),
        "kv_transfer_params": None,
    }


def _chat_delta(reader: ChatReader, choice: DerenderedChoice, state: StreamState) -> tuple[dict[str, Any], StreamState]:
    """Return the delta of a chunk, with all its nulls; calls keep their first ids."""
    found = reader.delta(choice, state.token_ids)
    delta: dict[str, Any] = {
        "role": None if state.role_sent else "assistant",
        "content": _text(found, Kind.CONTENT),
        "reasoning": _text(found, Kind.REASONING),
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


def _text(found: list[Delta], kind: Kind) -> str | None:
    return "".join(each.text for each in found if each.kind is kind) or None


def _usage(generated: Mapping[str, Any], prompt_tokens: int | None) -> dict[str, Any] | None:
    """Return the usage of a generated chunk; the request's prompt tokens override the chunk's."""
    given = generated.get("usage")
    if given is None:
        return None
    counted = as_integer(given.get("prompt_tokens", 0)) if prompt_tokens is None else prompt_tokens
    return Usage(counted, as_integer(given.get("completion_tokens") or 0)).full()
