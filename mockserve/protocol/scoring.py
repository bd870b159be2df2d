"""The bodies of POST /generative_scoring, /v1/decisions and /v1/systemone, and their replies."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, StrictBool, model_validator

from mockserve.protocol.bodies import Entries, Items, OpenObject, RequestObject, Usage, read_as
from mockserve.protocol.completions import FreeObject, Int64, Salt
from mockserve.protocol.errors import ApiError, bad_value
from mockserve.protocol.sampling import refuse_bad_salt


class GenerativeScoringRequest(OpenObject):
    """A query, items, and the tokens that are compared after each item."""

    model: str | None = None
    query: str | Items[int]
    items: Items[str] | Items[Items[int]]
    label_token_ids: Items[int]
    apply_softmax: bool = True
    item_first: bool = False
    add_special_tokens: bool = True
    cache_salt: str | None = None
    priority: Int64 = 0
    request_id: str = Field(default_factory=str)


class _Closed(RequestObject):
    model_config = ConfigDict(extra="forbid")


_Text = Annotated[str, Field(max_length=1_048_576)]
_LongText = Annotated[str, Field(max_length=10_485_760)]


class DecisionInputText(_Closed):
    """A part of a message."""

    type: Literal["input_text"]
    text: _LongText


class DecisionInputMessage(_Closed):
    """A message."""

    role: Literal["user"]
    content: _LongText | Annotated[list[DecisionInputText], Field(max_length=16384)]
    type: Literal["message"] = "message"

    @model_validator(mode="before")
    @classmethod
    def _refuse_images(cls, message: Any) -> Any:
        parts = message.get("content") if isinstance(message, dict) else None
        if isinstance(parts, list) and any(
            isinstance(each, dict) and each.get("type") == "input_image" for each in parts
        ):
            raise ValueError("Decisions supports text input only; images are not supported")
        return message


class _Question(_Closed):
    instructions: _Text
    name: _Text | None = None

    @model_validator(mode="after")
    def _check_name(self) -> Self:
        if "name" in self.model_fields_set and self.name is None:
            raise ValueError("name must be a string when provided")
        return self


class PredicateQuestion(_Question):
    """A question with yes or no."""

    type: Literal["predicate"]


class ChoiceOption(_Closed):
    """A possible answer."""

    value: str | StrictBool
    description: _Text = ""


class ChoiceQuestion(_Question):
    """A question with one of several answers."""

    type: Literal["choice"]
    choices: Annotated[list[ChoiceOption], Field(min_length=2, max_length=255)]

    @model_validator(mode="after")
    def _check_choices(self) -> Self:
        if len({(type(each.value), each.value) for each in self.choices}) < len(self.choices):
            raise ValueError("choice values must be distinct")
        return self


class ScoreLevel(_Closed):
    """A possible score."""

    label: _Text
    description: _Text = ""


class ScoreQuestion(_Question):
    """A question with a score."""

    type: Literal["score"]
    levels: Annotated[list[ScoreLevel], Field(min_length=2, max_length=10)]


_AnyQuestion = Annotated[PredicateQuestion | ChoiceQuestion | ScoreQuestion, Field(discriminator="type")]


class DecisionRequest(_Closed):
    """The body of POST /v1/decisions."""

    model: _Text
    input: _LongText | Annotated[list[DecisionInputMessage], Field(max_length=131072)]
    questions: Annotated[list[_AnyQuestion], Field(min_length=1, max_length=200)]
    safety_identifier: Annotated[str, Field(max_length=128)] | None = None
    joint: StrictBool = False
    cache_salt: Salt = None


class QuestionSpec(OpenObject):
    """A question of any type."""

    type: str
    instructions: Any = ""
    criteria: Any = None


class StructuredDecisionRequest(_Closed):
    """The body of POST /v1/systemone."""

    model: str | None = None
    state: Any
    questions: Entries[QuestionSpec]
    instructions: str | None = None
    images: Items[str] | None = None
    audio: Items[str] | None = None
    videos: Items[str] | None = None
    chat_template_kwargs: FreeObject = None
    joint: StrictBool = False
    cache_salt: str | None = None
    priority: Int64 = 0
    request_id: str = Field(default_factory=str)


def parse_scoring(body: dict[str, Any]) -> GenerativeScoringRequest:
    """Parse the body. Raises ApiError for an invalid body."""
    refuse_bad_salt(body.get("cache_salt"))
    return read_as(GenerativeScoringRequest, body)


def check_labels(request: GenerativeScoringRequest, vocabulary_size: int) -> None:
    """Raise ApiError for labels outside the vocabulary, and for a request without items."""
    for token in request.label_token_ids:
        if not 0 <= token < vocabulary_size:
            raise ApiError(
                f"label_token_id {token} is out of vocabulary range [0, {vocabulary_size}). "
                "Please provide valid token IDs."
            )
    if not request.label_token_ids:
        raise ApiError("label_token_ids must contain at least one token ID.")
    if not request.items:
        raise ApiError("items must contain at least one item.")


def check_number_of_labels(number: int, max_logprobs: int) -> None:
    """Raise ApiError for more labels than the server allows log-probabilities; -1 is no limit."""
    if 0 <= max_logprobs < number:
        message = f"Requested sample logprobs of {number}, which is greater than max allowed: {max_logprobs}"
        raise bad_value(message, "logprobs", number)


def scoring_reply(
    reply_id: str, created: int, model: str, scores: Sequence[float], prompt_tokens: int
) -> dict[str, Any]:
    """Return the reply: the probability of the first label after each prompt. One token is generated for each."""
    return {
        "id": reply_id,
        "object": "list",
        "created": created,
        "model": model,
        "data": [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)],
        "usage": Usage(prompt_tokens, len(scores)).full(),
    }


def check_decision(body: dict[str, Any]) -> None:
    """Raise ApiError for an invalid body of POST /v1/decisions."""
    refuse_bad_salt(body.get("cache_salt"))
    read_as(DecisionRequest, body)


def check_structured_decision(body: dict[str, Any]) -> None:
    """Raise ApiError for an invalid body of POST /v1/systemone."""
    refuse_bad_salt(body.get("cache_salt"))
    read_as(StructuredDecisionRequest, body)


def unsupported(interface: str) -> ApiError:
    """Return the error of a model that does not make decisions; few models do."""
    return ApiError(f"The model does not support the {interface} API", status=501, kind="NotImplementedError")
