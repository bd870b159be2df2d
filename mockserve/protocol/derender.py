"""Bodies of the derender routes: token ids that came from elsewhere, to be made a reply, whole or chunk by chunk."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mockserve.protocol.errors import Problem, bad_fields
from mockserve.protocol.reading.containers import ListOf, MapOf, Named, Nullable, Record
from mockserve.protocol.reading.types import Anything, FieldType, Integer, Number, OneOf, Text


@dataclass(frozen=True, slots=True)
class Constant:
    """One of two truth values."""

    value: bool

    def problems(self, value: Any, location: str) -> list[Problem]:
        if value is self.value:
            return []
        return [
            Problem("literal_error", location, f"Input should be {self.value}", value, {"expected": str(self.value)})
        ]

    def schema(self) -> dict[str, Any]:
        return {"const": self.value}


_IDS: FieldType = Nullable(ListOf(Integer(at_least=0)))
_COUNT: FieldType = Nullable(Integer())
_MAP: FieldType = Nullable(MapOf(Anything()))
_SCORE: dict[str, FieldType] = {"token_id": Integer(), "logprob": Number(), "rank": _COUNT}
_SCORED: FieldType = Record(
    {**_SCORE, "top_logprobs": ListOf(Record(_SCORE, ("token_id", "logprob")))}, ("token_id", "logprob")
)
_CHOICE: FieldType = Record(
    {
        "index": Integer(),
        "finish_reason": Nullable(Text()),
        "stop_reason": Anything(),
        "token_ids": Nullable(ListOf(Integer())),
        "logprobs": Nullable(Record({"content": Nullable(ListOf(_SCORED))})),
    },
    ("index",),
)
_GENERATED: FieldType = Record(
    {
        "request_id": Text(),
        "prompt_token_ids": _IDS,
        "kv_transfer_params": _MAP,
        "metrics": _MAP,
        "usage": _MAP,
        "output_mode": OneOf(("tokens",)),
        "choices": ListOf(_CHOICE),
    },
    ("choices",),
)
_STATE: FieldType = Nullable(
    Record(
        {
            "output_token_ids": ListOf(Integer(at_least=0)),
            "output_chunk_lens": ListOf(Integer(at_least=1)),
            "last_tool_call_ids": ListOf(Text()),
        }
    )
)
CHAT_WHOLE = Record(
    {
        "stream": Constant(False),
        "model": Nullable(Text()),
        "generate_response": _GENERATED,
        "prompt_tokens": _COUNT,
        "prompt_token_ids": _IDS,
        "chat_request": _MAP,
    },
    ("generate_response",),
)
COMPLETION_WHOLE = Record(
    {
        "stream": Constant(False),
        "model": Nullable(Text()),
        "generate_responses": ListOf(_GENERATED),
        "prompt_tokens": Nullable(ListOf(Integer())),
        "prompt_token_ids": Nullable(ListOf(_IDS)),
        "completion_request": _MAP,
    },
    ("generate_responses",),
)
_CHUNK: dict[str, FieldType] = {
    "stream": Constant(True),
    "model": Nullable(Text()),
    "generate_chunk": _GENERATED,
    "stream_state": _STATE,
    "prompt_tokens": _COUNT,
    "prompt_token_ids": _IDS,
}
CHAT_CHUNK = Record({**_CHUNK, "chat_request": _MAP}, ("stream", "generate_chunk"))
COMPLETION_CHUNK = Record({**_CHUNK, "completion_request": _MAP}, ("stream", "generate_chunk"))


def is_chunk_of_chat(body: Mapping[str, Any]) -> bool:
    """Whether a chat body is one chunk of a stream. Raises ApiError for a body of neither form."""
    whole = Named("DerenderChatRequest", CHAT_WHOLE)
    return _is_chunk(body, whole, Named("DerenderChatStreamRequest", CHAT_CHUNK))


def is_chunk_of_completion(body: Mapping[str, Any]) -> bool:
    """The same for completions."""
    is_chunk = _is_chunk(body, COMPLETION_WHOLE, Named("DerenderCompletionStreamRequest", COMPLETION_CHUNK))
    if not is_chunk:
        _check_lengths(body)
    return is_chunk


def _is_chunk(body: Mapping[str, Any], whole: FieldType, chunk: FieldType) -> bool:
    wrong_whole = whole.problems(body, "body")
    if not wrong_whole:
        return False
    wrong_chunk = chunk.problems(body, "body")
    if wrong_chunk:
        raise bad_fields([*wrong_whole, *wrong_chunk])
    return True


def _check_lengths(body: Mapping[str, Any]) -> None:
    expected = len(body["generate_responses"])
    for name in ("prompt_tokens", "prompt_token_ids"):
        given = body.get(name)
        if given is not None and len(given) != expected:
            message = f"{name} length ({len(given)}) must equal generate_responses length ({expected})"
            context = {"error": ValueError(message)}
            raise bad_fields([Problem("value_error", "body", f"Value error, {message}", body, context)])
