"""Parts of all bodies: requests as pydantic models with errors in vLLM's words, and usage, choices and events of
replies.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Protocol, TypeAlias, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    RootModel,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from mockserve.protocol.errors import MAX_LISTED_PROBLEMS, ApiError, Problem, bad_fields, sanitized
from mockserve.protocol.json_text import EncodedItems, JsonBlocks, json_array, json_array_of_blocks

# Bodies of requests as pydantic models: their bases, how one is read, and pydantic's errors in vLLM's words.

T = TypeVar("T")
BodyT = TypeVar("BodyT", bound=BaseModel)

PIECE_ITEMS = 256
"""Number of items that are read at once; other threads may run between pieces of a long list or object."""

_UNLISTED = "unlisted"
"""Type of an error that stands for many: all errors of a long list would take hundreds of megabytes."""


class RequestObject(BaseModel):
    """An object of a body. Fields that it does not know are ignored."""

    model_config = ConfigDict(defer_build=True, protected_namespaces=())


class OpenObject(RequestObject):
    """An object of a body that keeps fields that it does not know. The names of these fields must be text."""

    model_config = ConfigDict(extra="allow")


if TYPE_CHECKING:
    _Rooted = RootModel[Any]
else:
    _Rooted = RootModel  # with parameters it would be built here, which takes milliseconds


class BodyOfOneKind(_Rooted):
    """A body of one of several types, which is its `root`."""

    model_config = ConfigDict(defer_build=True)


def in_pieces(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Validate a list or an object piece by piece."""
    if not isinstance(value, list | dict) or len(value) <= PIECE_ITEMS:
        return validate(value)
    found: Any = type(value)()
    errors: list[InitErrorDetails] = []
    num_errors = 0
    for begin, piece in _pieces(value):
        try:
            valid = validate(piece)
        except ValidationError as error:
            listed = error_details(error, begin)
            num_errors += sum(map(_number_of, listed))
            errors += listed[: MAX_LISTED_PROBLEMS - len(errors)]
        else:
            found = found.__iadd__(valid) if isinstance(value, list) else found.__ior__(valid)
    if not errors:
        return found
    if num_errors > len(errors):
        errors.append(_others(num_errors - len(errors)))
    raise ValidationError.from_exception_data("", errors)


def _pieces(value: list[Any] | dict[str, Any]) -> Iterator[tuple[int, Any]]:
    """Yield the parts of a list or an object, each with the number that its positions lack."""
    if isinstance(value, list):
        for begin in range(0, len(value), PIECE_ITEMS):
            yield begin, value[begin : begin + PIECE_ITEMS]
        return
    items = iter(value.items())
    while piece := dict(islice(items, PIECE_ITEMS)):
        yield 0, piece


def error_details(error: ValidationError, begin: int = 0) -> list[InitErrorDetails]:
    """Return the errors of a list that is a part of a list from `begin` on, or of any value, to raise them again."""
    return [_moved(each, begin) for each in error.errors(include_url=False)]


def _moved(error: Any, begin: int) -> InitErrorDetails:
    first, *others = error["loc"] or (None,)
    place = () if first is None else (first + begin if isinstance(first, int) else first, *others)
    kind, context = error["type"], error.get("ctx")
    if kind == _UNLISTED:
        return InitErrorDetails(type=PydanticCustomError(_UNLISTED, "errors", context), input=None)
    found = InitErrorDetails(type=kind, loc=place, input=error["input"])
    return found if context is None else InitErrorDetails(**found, ctx=context)


def _number_of(error: InitErrorDetails) -> int:
    kind = error["type"]
    return 1 if isinstance(kind, str) else (kind.context or {})["count"]


def __log_extra_fields__(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:  # noqa: N807  (as in vLLM)
    return validate(value)


UNNAMED = WrapValidator(__log_extra_fields__)
"""Annotates one of several types whose place in errors names this function of vLLM in place of the type."""

Items: TypeAlias = Annotated[list[T], WrapValidator(in_pieces)]
"""A list of any length; no piece of it blocks other threads for long."""

Entries: TypeAlias = Annotated[dict[str, T], WrapValidator(in_pieces)]
"""An object with any keys and values of one type."""


def set_fields(body: BaseModel) -> dict[str, Any]:
    """Return the fields that a body has, with the values of their types."""
    values, others = vars(body), body.model_extra or {}
    return {name: values[name] if name in values else others[name] for name in body.model_fields_set}


def with_numbers(body: Mapping[str, Any], request: BaseModel) -> dict[str, Any]:
    """Return the body of a request with numbers and flags as they were read."""
    return {**body, **{name: each for name, each in set_fields(request).items() if isinstance(each, int | float)}}


def read_as(kind: type[BodyT], body: Any, shows_body: bool = True) -> BodyT:
    """Return the body as `kind`. Raises ApiError with every error of it, in vLLM's words.

    Without `shows_body` errors about missing fields do not show the number of those that are there.
    """
    try:
        return kind.model_validate(body, from_attributes=True)
    except ValidationError as error:
        problems, num_others = problems_of(error)
        if not shows_body:
            problems = [replace(each, found=None) if each.kind == "missing" else each for each in problems]
        refused = bad_fields(problems, num_others)
    raise refused  # outside of the handler, so that it does not hold the body


def refusal(error: ValidationError, prefix: str = "body") -> ApiError:
    """Return pydantic's errors of a body, or of the part of one that is at `prefix`, in vLLM's form."""
    return bad_fields(*problems_of(error, prefix))


def problems_of(error: ValidationError, prefix: str = "body") -> tuple[list[Problem], int]:
    """Return the first errors of a body, and the number of others."""
    problems: list[Problem] = []
    num_unlisted = 0
    for each in error.errors(include_url=False):
        context = each.get("ctx")
        if each["type"] == _UNLISTED:
            num_unlisted += (context or {})["count"]
        elif len(problems) == MAX_LISTED_PROBLEMS:
            num_unlisted += 1
        else:
            place = location(each["loc"], prefix)
            problems.append(Problem(each["type"], place, each["msg"], each["input"], context))
    return problems, num_unlisted


@cache
def adapter_of(form: Any) -> TypeAdapter[Any]:
    """Return what validates lists of one value of a type that is no model, whose objects may have further fields."""
    return TypeAdapter(list[form], config=ConfigDict(extra="allow"))


def errors_of(form: Any, value: Any, *place: int | str) -> ValidationError | None:
    """Return the errors of a value at `place` that does not have the `form`."""
    try:
        adapter_of(form).validate_python([value], from_attributes=True)
    except ValidationError as error:
        found = error_details(error)
    else:
        return None
    for each in found:
        each["loc"] = (*place, *each["loc"][1:])
    return ValidationError.from_exception_data("", found)


def within(error: ValidationError, *place: int | str) -> ValidationError:
    """Return the errors of a value that is at `place` in another one."""
    found = error_details(error)
    for each in found:
        each["loc"] = (*place, *each.get("loc", ()))
    return ValidationError.from_exception_data("", found)


def bounded(error: ValidationError) -> ValidationError:
    """Return the first errors of a value, and one that stands for all others."""
    if error.error_count() <= MAX_LISTED_PROBLEMS:
        return error
    found = error_details(error)
    num_errors = sum(map(_number_of, found))
    listed = found[:MAX_LISTED_PROBLEMS]
    return ValidationError.from_exception_data("", [*listed, _others(num_errors - len(listed))])


def _others(number: int) -> InitErrorDetails:
    return InitErrorDetails(type=PydanticCustomError(_UNLISTED, "errors", {"count": number}), input=None)


def unreadable_as(title: str, error: ValidationError) -> ApiError:
    """Return the error of a value that is no valid `title`, in pydantic's own form."""
    return ApiError(sanitized(str(ValidationError.from_exception_data(title, error_details(error)))))


_MARK = re.compile(r"[\[\](){}]")
_MARKS = frozenset(
    {
        *(
            "arguments",
            "bool",
            "bytearray",
            "bytes",
            "call",
            "callable",
            "chain",
            "complex",
            "default",
            "dict",
            "float",
        ),
        *("frozenset", "function-after", "function-before", "function-plain", "function-wrap", "int", "is-instance"),
        *("is-subclass", "json-or-python", "lax-or-strict", "list", "none", "nonetype", "nullable", "set", "str"),
        *("tagged-union", "tuple", "union"),
    }
)


def location(place: Sequence[int | str], prefix: str = "body") -> str:
    """Return where an error is, without the types that a value may have, whose names vLLM leaves out."""
    shown = [str(each) for each in place]
    return ".".join([prefix, *(each for each in shown if not _MARK.search(each) and each.lower() not in _MARKS)])


_REFERENCE = "$reference"


def described_as(name: str) -> WithJsonSchema:
    """Return the annotation of a type whose JSON schema is the one of another `name`."""
    return WithJsonSchema({_REFERENCE: name})


def described_as_any_of(*names: str) -> WithJsonSchema:
    """Return the annotation of a type whose JSON schema is that any of the schemas with these names holds."""
    return WithJsonSchema({"anyOf": [{_REFERENCE: each} for each in names]})


def schemas_of(
    models: Sequence[type[BaseModel]], template: str, renamed: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Return the JSON schemas of models and of all objects within, by name, as vLLM's framework writes them.

    `template` is the reference to the schema of a `{model}`; `renamed` has other names of described types.
    """
    from pydantic.json_schema import models_json_schema  # the OpenAPI document alone needs it

    _, found = models_json_schema([(each, "validation") for each in models], ref_template=template)
    return {name: _vllm_schema(each, template, renamed) for name, each in found.get("$defs", {}).items()}


_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})


def _vllm_schema(schema: Any, template: str, renamed: Mapping[str, str]) -> Any:
    if isinstance(schema, list):
        return [_vllm_schema(each, template, renamed) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    if _REFERENCE in schema:
        name = schema[_REFERENCE]
        return {"$ref": template.format(model=renamed.get(name, name))}
    return {
        name: float(each) if name in _BOUNDS and isinstance(each, int) else _vllm_schema(each, template, renamed)
        for name, each in schema.items()
        if (name, each) != ("default", None)
    }


# Parts of all replies: usage, choices, log-probabilities, the interface for writers, and typed events.

LONG_TOKENS = 512
"""Maximum number of tokens whose log-probabilities are made at once. All of a long prompt would take gigabytes."""

TOKENS_PER_BLOCK = 64
LOWEST_LOGPROB = -9999.0
"""Replaces minus infinity, which JSON cannot express."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A possible token of a step."""

    token_id: int
    text: str
    logprob: float
    rank: int


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """The chosen token of a step, and the candidates to return: the chosen token first, then the likeliest."""

    chosen: Candidate
    shown: Sequence[Candidate]


class ScoredTokens(Protocol):
    """Tokens with their scores, in order. Many tokens are scored anew in each iteration."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[ScoredToken]: ...


class ScoredPrompt(Protocol):
    """The tokens of a prompt with their scores; the first token has none."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[ScoredToken | None]: ...


def chat_logprobs(tokens: ScoredTokens, num_top: int | None, as_ids: bool, has_bytes: bool = True) -> dict[str, Any]:
    """The `logprobs` of a chat choice, with the first `num_top` candidates of each step, or all of them.

    Tokens of a beam have no `bytes`.
    """
    if len(tokens) > LONG_TOKENS:
        return {"content": json_array(lambda: (_chat_token(each, num_top, as_ids, has_bytes) for each in tokens))}
    return {"content": [_chat_token(each, num_top, as_ids, has_bytes) for each in tokens]}


def completion_logprobs(
    tokens: Iterable[ScoredToken | tuple[int, str]], num_top: int | None, as_ids: bool, text_offset: int
) -> dict[str, Any]:
    """Return the `logprobs` of a text completion, with `num_top` candidates of each step, or all of them.

    A token given as its id and text, such as the first of a prompt, has no log-probability. `text_offset` is the offset
    of the first token.
    """
    offsets: list[int] = []
    names: list[str] = []
    logprobs: list[float | None] = []
    tops: list[dict[str, float] | None] = []
    for token in tokens:
        offsets.append(text_offset)
        if isinstance(token, ScoredToken):
            name = _name(token.chosen, as_ids)
            logprobs.append(_finite(token.chosen.logprob))
            tops.append({_name(each, as_ids): _finite(each.logprob) for each in token.shown[:num_top]})
        else:
            name = _id_name(token[0]) if as_ids else token[1]
            logprobs.append(None)
            tops.append(None)
        names.append(name)
        text_offset += len(name)
    return {"text_offset": offsets, "token_logprobs": logprobs, "tokens": names, "top_logprobs": tops}


class LongCompletionLogprobs:
    """The `logprobs` of a text completion of many tokens, kept as the JSON text of the four columns.

    The reply contains one column after the other, so each token is scored once and its four values are stored apart.
    """

    def __init__(
        self, tokens: Iterable[ScoredToken | tuple[int, str]], num_top: int | None, as_ids: bool, text_offset: int
    ) -> None:
        columns: dict[str, EncodedItems] = {}
        self.text_offset = text_offset
        """Offset of the next token."""
        waiting = iter(tokens)
        while batch := list(islice(waiting, TOKENS_PER_BLOCK)):
            found = completion_logprobs(batch, num_top, as_ids, self.text_offset)
            self.text_offset = next_offset(found)
            for name, values in found.items():
                columns.setdefault(name, EncodedItems()).add(values)
        self.body = {name: items.array() for name, items in columns.items()}


def next_offset(logprobs: dict[str, Any]) -> int:
    """Return the offset of the text after some tokens."""
    offset: int = logprobs["text_offset"][-1] + len(logprobs["tokens"][-1])
    return offset


def prompt_logprobs(tokens: ScoredPrompt) -> list[Any] | JsonBlocks:
    """The `prompt_logprobs` of a prompt; its first token has none."""
    if len(tokens) > LONG_TOKENS:
        return json_array(lambda: map(_prompt_token, tokens))
    return [_prompt_token(token) for token in tokens]


def _prompt_token(token: ScoredToken | None) -> dict[str, Any] | None:
    if token is None:
        return None
    return {
        str(each.token_id): {"logprob": _finite(each.logprob), "rank": each.rank, "decoded_token": each.text}
        for each in token.shown
    }


def _chat_token(token: ScoredToken, num_top: int | None, as_ids: bool, has_bytes: bool) -> dict[str, Any]:
    # A token named by its id has the bytes of its text; a candidate has the bytes of its name.
    return {
        "token": _name(token.chosen, as_ids),
        "logprob": _finite(token.chosen.logprob),
        "bytes": _bytes(token.chosen.text) if has_bytes else None,
        "top_logprobs": [
            {"token": (name := _name(each, as_ids)), "logprob": _finite(each.logprob), "bytes": _bytes(name)}
            for each in token.shown[:num_top]
        ],
    }


def _name(candidate: Candidate, as_ids: bool) -> str:
    return _id_name(candidate.token_id) if as_ids else candidate.text


def _id_name(token_id: int) -> str:
    return f"token_id:{token_id}"


def _bytes(text: str) -> list[int]:
    return list(text.encode("utf-8", "replace"))


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)


StopReason: TypeAlias = str | int | None


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one reply. The key order, total before completion, is vLLM's.

    `prompt_details` and `num_reasoning_tokens` are None where the server does not report them.
    """

    prompt_tokens: int
    completion_tokens: int
    prompt_details: Mapping[str, Any] | None = None
    num_reasoning_tokens: int | None = None

    def counts(self) -> dict[str, Any]:
        """The three counts alone."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
        }

    @property
    def completion_details(self) -> dict[str, Any] | None:
        if self.num_reasoning_tokens is None:
            return None
        return {"reasoning_tokens": self.num_reasoning_tokens}

    def running(self) -> dict[str, Any]:
        """Return usage as in each chunk of a chat stream, which includes a null `completion_tokens_details`."""
        return {**self.counts(), "completion_tokens_details": self.completion_details}

    def last(self) -> dict[str, Any]:
        """Return usage as in the last chunk of a stream, without nulls."""
        found = self.counts()
        if self.prompt_details is not None:
            given = {name: value for name, value in self.prompt_details.items() if value is not None}
            found["prompt_tokens_details"] = given
        if self.completion_details is not None:
            found["completion_tokens_details"] = self.completion_details
        return found

    def full(self) -> dict[str, Any]:
        """Return usage as in a whole reply, with all nulls."""
        details = None if self.prompt_details is None else dict(self.prompt_details)
        return {
            **self.counts(),
            "prompt_tokens_details": details,
            "completion_tokens_details": self.completion_details,
        }


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a choice ended: a finish reason and, for a stop string or stop token, the string or token."""

    finish_reason: str
    stop_reason: StopReason = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptOutput:
    """Prompt data that a reply may repeat. `logprobs` have the shape of `prompt_logprobs`."""

    token_ids: Sequence[int] = ()
    text: str | None = None
    logprobs: Sequence[Any] | JsonBlocks | None = None


class Piece(NamedTuple):
    """The content of one event of a stream. `delta` is the new text, or the keys of a chat message.

    `logprobs` have the shape of the format. `ending`, `num_tokens` (of the whole choice) and `kv_transfer_params` are
    set in the last event of a choice only.
    """

    delta: Any
    token_ids: Sequence[int] | None = None
    prompt_token_ids: Sequence[int] | None = None
    logprobs: Mapping[str, Any] | None = None
    ending: Ending | None = None
    num_tokens: int = 0
    kv_transfer_params: Mapping[str, Any] | None = None


class Choice(NamedTuple):
    """One finished choice of a whole reply. `content` is its text, or a chat message's keys."""

    content: Any
    ending: Ending
    num_tokens: int
    token_ids: Sequence[int] | None = None
    logprobs: Mapping[str, Any] | None = None
    prompt_output: PromptOutput = PromptOutput()
    kv_transfer_params: Mapping[str, Any] | None = None


class Choices(Protocol):
    """The choices of a whole reply, in memory or made one by one."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Choice: ...

    def __iter__(self) -> Iterator[Choice]: ...


class Bodies(Protocol):
    """Builds every JSON object of one reply. `usage` is None unless the client requested usage in each chunk."""

    def opening_chunks(
        self, num_choices: int, prompt_output: PromptOutput, usage: Usage | None
    ) -> list[dict[str, Any]]:
        """Return the chunks before the first text of all choices, if there are any."""
        ...

    def chunk(self, index: int, piece: Piece, usage: Usage | None) -> dict[str, Any]:
        """Return the chunk of one or more tokens of choice `index`."""
        ...

    def usage_chunk(self, usage: Usage, metrics: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the chunk with the counts of all choices, which follows the last choice."""
        ...

    def whole(self, choices: Choices, usage: Usage, metrics: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the reply to a request without `stream`."""
        ...


def weight_versions(version: str | None, num_tokens: int) -> list[dict[str, Any]] | None:
    """Return the weight version of each range of tokens: one version for a whole reply, None to omit it."""
    return None if version is None else [{"version": version, "start": 0, "end": num_tokens}]


def listed(choices: Choices, shown: Callable[[int, Choice], dict[str, Any]]) -> list[dict[str, Any]] | JsonBlocks:
    """Return the choices of a whole reply as JSON objects; choices that are made one by one are converted one by
    one."""
    if isinstance(choices, list):
        return [shown(index, each) for index, each in enumerate(choices)]
    return json_array_of_blocks(lambda: (shown(index, each) for index, each in enumerate(choices)))


def id_list(token_ids: Sequence[int] | None) -> list[int] | None:
    """Return token ids as a list, for JSON."""
    return None if token_ids is None else list(token_ids)


Event: TypeAlias = dict[str, Any]
"""An event as a JSON object; `type` is also the name of the event."""


class EventEncoder(Protocol):
    """Encodes one reply of one choice as events. The encoder has state: call the methods in the order of the reply."""

    @property
    def starts_before_first_token(self) -> bool:
        """Whether the opening is sent before the first token."""
        ...

    @property
    def aborts_stream_when_refused(self) -> bool:
        """Whether the stream is cut without an error event when a paused server refuses the request."""
        ...

    def opening(self, usage: Usage) -> list[Event]:
        """Return the events before the first token."""
        ...

    def generated(self, piece: Piece) -> list[Event]:
        """Return the events of one or more tokens. The delta of `piece` has the keys of a chat message."""
        ...

    def ended(self, ending: Ending, usage: Usage, metrics: Mapping[str, Any] | None) -> list[Event]:
        """Return the events after the last token. `metrics` are the latencies of the reply, if they are reported."""
        ...

    def failed(self, error: ApiError) -> list[Event]:
        """Return the events that end a failed reply."""
        ...
