"""Bodies of the derender routes: token ids of another server to convert to a reply, whole or chunk by chunk."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mockserve.protocol.errors import ApiError, Problem, bad_fields
from mockserve.protocol.reading.containers import ListOf, MapOf, Named, Nullable, Record, ValidatedType
from mockserve.protocol.reading.types import (
    LARGEST_INT64,
    SMALLEST_INT64,
    Anything,
    FieldType,
    Flag,
    Integer,
    Number,
    OneOf,
    Text,
    as_integer,
)
from mockserve.protocol.refusals import refuse_chat_contradictions, refuse_completion_contradictions


@dataclass(frozen=True, slots=True)
class BoolLiteral:
    """A boolean literal."""

    value: bool

    def problems(self, value: Any, location: str) -> list[Problem]:
        if value is self.value:
            return []
        return [
            Problem("literal_error", location, f"Input should be {self.value}", value, {"expected": str(self.value)})
        ]

    def schema(self) -> dict[str, Any]:
        return {"const": self.value}


MAX_CONTEXT_TOKENS = 4
"""Number of tokens of a chunk that are context for the log-probabilities of the next chunk."""

MAX_WINDOW_TOKENS = 1024

_IDS: FieldType = Nullable(ListOf(Integer(at_least=0)))
_COUNT: FieldType = Nullable(Integer())
_MAP: FieldType = Nullable(MapOf(Anything()))
_USAGE: FieldType = Nullable(
    Record(
        {
            "prompt_tokens": Integer(),
            "total_tokens": Integer(),
            "completion_tokens": _COUNT,
            "prompt_tokens_details": Nullable(
                Record(
                    {
                        "cached_tokens": _COUNT,
                        "created_cache_tokens": _COUNT,
                        "multimodal_tokens": Nullable(MapOf(Integer())),
                    }
                )
            ),
            "completion_tokens_details": Nullable(Record({"reasoning_tokens": Integer()})),
        }
    )
)
_CHAT: FieldType = Nullable(Record({"messages": Anything()}, ("messages",)))
_COMPLETION: FieldType = Nullable(Record({}))
_SCORE: dict[str, FieldType] = {"token_id": Integer(), "logprob": Number(), "rank": _COUNT}
_SCORED: FieldType = Record(
    {**_SCORE, "top_logprobs": ListOf(Record(_SCORE, ("token_id", "logprob")))}, ("token_id", "logprob")
)
_OUTPUT_IDS: FieldType = Nullable(ListOf(Integer()))


def _negative_ids(token_ids: list[Any] | None) -> str | None:
    """Return an error message for negative token ids in a checked whole choice; a chunk may have negative ids."""
    has_any = any(as_integer(each) < 0 for each in token_ids or ())
    return "token_ids must not contain negative values" if has_any else None


def _generated(token_ids: FieldType) -> FieldType:
    choice = Record(
        {
            "index": Integer(),
            "finish_reason": Nullable(Text()),
            "stop_reason": Anything(),
            "token_ids": token_ids,
            "logprobs": Nullable(Record({"content": Nullable(ListOf(_SCORED))})),
        },
        ("index",),
    )
    return Record(
        {
            "request_id": Text(),
            "prompt_token_ids": _IDS,
            "kv_transfer_params": _MAP,
            "metrics": _MAP,
            "usage": _USAGE,
            "output_mode": OneOf(("tokens",)),
            "choices": ListOf(choice),
        },
        ("choices",),
    )


def _long_window(tokens: list[Any]) -> str | None:
    """Return an error message for the window of an incremental decoder if it has more than a few tokens."""
    too_long = len(tokens) > MAX_WINDOW_TOKENS
    return f"prev_tokens length ({len(tokens)}) exceeds maximum ({MAX_WINDOW_TOKENS})" if too_long else None


def _length_mismatch(state: Mapping[str, Any]) -> str | None:
    """Return an error message for chunk lengths that do not add up to the tokens of a checked state."""
    total = sum(as_integer(each) for each in state.get("output_chunk_lens", ()))
    length = len(state.get("output_token_ids", ()))
    if total == length:
        return None
    found = f"got sum={total}, len(output_token_ids)={length}"
    return f"output_chunk_lens must sum to len(output_token_ids) ({found})"


_GENERATED = _generated(ValidatedType(_OUTPUT_IDS, _negative_ids))
_STATE: FieldType = Nullable(
    ValidatedType(
        Record(
            {
                "prev_tokens": ValidatedType(ListOf(Text()), _long_window),
                "prefix_offset": Integer(at_least=0),
                "read_offset": Integer(at_least=0),
                "role_sent": Flag(),
                "logprob_context_token_ids": ListOf(Integer(), at_most=MAX_CONTEXT_TOKENS),
                "logprob_text_offset": Integer(at_least=0),
                "output_token_ids": ListOf(Integer()),
                "output_chunk_lens": ListOf(Integer(above=0)),
                "tools_streamed": Flag(),
                "last_tool_call_ids": ListOf(Text()),
            }
        ),
        _length_mismatch,
    )
)
CHAT_WHOLE = Record(
    {
        "stream": BoolLiteral(False),
        "model": Nullable(Text()),
        "generate_response": _GENERATED,
        "prompt_tokens": _COUNT,
        "prompt_token_ids": _IDS,
        "chat_request": _CHAT,
    },
    ("generate_response",),
    ignores_unknown=True,
)
COMPLETION_WHOLE = Record(
    {
        "stream": BoolLiteral(False),
        "model": Nullable(Text()),
        "generate_responses": ListOf(_GENERATED),
        "prompt_tokens": Nullable(ListOf(Integer())),
        "prompt_token_ids": Nullable(ListOf(_IDS)),
        "completion_request": _COMPLETION,
    },
    ("generate_responses",),
    ignores_unknown=True,
)
_CHUNK: dict[str, FieldType] = {
    "stream": BoolLiteral(True),
    "model": Nullable(Text()),
    "generate_chunk": _generated(_OUTPUT_IDS),
    "stream_state": _STATE,
    "prompt_tokens": _COUNT,
    "prompt_token_ids": _IDS,
}
_CHUNK_FIELDS = ("stream", "generate_chunk")
CHAT_CHUNK = Record({**_CHUNK, "chat_request": _CHAT}, _CHUNK_FIELDS, ignores_unknown=True)
COMPLETION_CHUNK = Record({**_CHUNK, "completion_request": _COMPLETION}, _CHUNK_FIELDS, ignores_unknown=True)
_INTEGER_FIELDS = frozenset({"prompt_tokens", "prompt_token_ids", "token_ids", "output_token_ids", "output_chunk_lens"})
_FIELDS_WITH_INTEGERS = frozenset(
    {"generate_response", "generate_responses", "generate_chunk", "choices", "stream_state"}
)


def is_chunk_of_chat(body: dict[str, Any]) -> bool:
    """Whether a chat body is one chunk of a stream. Raises ApiError for a body of neither form.

    Integers sent as strings or floats are replaced by integers in `body`.
    """
    if isinstance(body.get("chat_request"), dict):
        refuse_chat_contradictions(body["chat_request"])
    whole = Named("DerenderChatRequest", CHAT_WHOLE)
    return _is_chunk(body, whole, Named("DerenderChatStreamRequest", CHAT_CHUNK))


def is_chunk_of_completion(body: dict[str, Any]) -> bool:
    """Whether a completion body is one chunk of a stream. Raises ApiError for a body of neither form.

    Integers sent as strings or floats are replaced by integers in `body`.
    """
    if isinstance(body.get("completion_request"), dict):
        refuse_completion_contradictions(body["completion_request"])
    is_chunk = _is_chunk(body, COMPLETION_WHOLE, Named("DerenderCompletionStreamRequest", COMPLETION_CHUNK))
    if not is_chunk:
        _check_lengths(body)
    return is_chunk


def _is_chunk(body: dict[str, Any], whole: FieldType, chunk: FieldType) -> bool:
    wrong_whole = whole.problems(body, "body")
    wrong_chunk = chunk.problems(body, "body") if wrong_whole else []
    if wrong_chunk:
        raise bad_fields([*wrong_whole, *wrong_chunk])
    # Chunks are decoded token by token, which takes any integer for an id.
    _convert_integers(body, is_chunk=bool(wrong_whole))
    return bool(wrong_whole)


def _convert_integers(value: Any, is_chunk: bool) -> None:
    """Replace values that `Integer` accepts by integers, in the integer fields of a checked body."""
    if isinstance(value, list):
        for each in value:
            _convert_integers(each, is_chunk)
    elif isinstance(value, dict):
        for name in value.keys() & _INTEGER_FIELDS:
            value[name] = _integers(value[name], is_id=not is_chunk and name != "prompt_tokens")
        for name in value.keys() & _FIELDS_WITH_INTEGERS:
            _convert_integers(value[name], is_chunk)


def _integers(value: Any, is_id: bool) -> Any:
    if value is None:
        return None
    if isinstance(value, list):
        return [_integers(each, is_id) for each in value]
    if type(value) is not int and Integer().problems(value, ""):
        return value  # in a field that a body of this form does not have
    number = as_integer(value)
    if is_id and not SMALLEST_INT64 <= number <= LARGEST_INT64:
        raise ApiError("Python int too large to convert to C long")
    return number


def _check_lengths(body: Mapping[str, Any]) -> None:
    expected = len(body["generate_responses"])
    for name in ("prompt_tokens", "prompt_token_ids"):
        given = body.get(name)
        if given is not None and len(given) != expected:
            message = f"{name} length ({len(given)}) must equal generate_responses length ({expected})"
            context = {"error": ValueError(message)}
            raise bad_fields([Problem("value_error", "body", f"Value error, {message}", body, context)])
