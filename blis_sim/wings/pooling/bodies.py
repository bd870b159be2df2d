"""Bodies of the routes of pooling models, with vLLM's names and order of fields.

The fields of the last base come first, and the own fields of a class last.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self, TypeAlias, get_args

from pydantic import ConfigDict, Field, model_validator
from typing_extensions import TypedDict

from mockserve.protocol.bodies import (
    UNNAMED,
    BodyOfOneKind,
    Entries,
    Items,
    OpenObject,
    RequestObject,
    described_as_any_of,
)
from mockserve.protocol.chat_messages import (
    ChatCompletionContentPartImageParam,
    ChatCompletionContentPartTextParam,
    ChatCompletionContentPartVideoParam,
    ChatMessage,
)
from mockserve.protocol.completions import FreeObject, Int64, MediaArguments, Salt
from mockserve.protocol.forms import LARGEST_INT64

_Tokens: TypeAlias = Items[int]


class Basic(OpenObject):
    """The fields of every pooling request."""

    model: str | None = None
    user: str | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None
    padding: Literal["max_length", "do_not_pad"] | None = None
    truncation_side: Literal["left", "right"] | None = None
    request_id: str = Field(default_factory=str)
    priority: Int64 = 0
    mm_processor_kwargs: FreeObject = None
    cache_salt: Salt = None


class _Prompted(OpenObject):
    input: _Tokens | Items[_Tokens] | str | Items[str]


class _Templated(OpenObject):
    add_generation_prompt: bool = False
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: FreeObject = None
    media_io_kwargs: MediaArguments = None


class _Conversed(OpenObject):
    messages: Items[ChatMessage]


Conversations: TypeAlias = Annotated[Sequence[Annotated[list[ChatMessage], Field(min_length=1)]], Field(min_length=1)]


class Encoded(OpenObject):
    encoding_format: Literal["float", "base64", "bytes", "bytes_only"] = "float"
    embed_dtype: Literal["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"] = "float32"
    endianness: Literal["native", "big", "little"] = "native"


class _Dimensioned(OpenObject):
    dimensions: int | None = None


class _Activated(OpenObject):
    use_activation: bool | None = None


class _Padded(OpenObject):
    padding: Literal["max_length", "do_not_pad"] | None = None


class _OfText(OpenObject):
    add_special_tokens: bool = True


class _OfChat(OpenObject):
    add_special_tokens: bool = False


class _Embedding(_Activated, _Dimensioned, Encoded, _Padded):
    pass


class EmbeddingCompletionRequest(Basic, _Prompted, _Embedding, _OfText):
    """Texts or token ids to embed."""


class EmbeddingChatRequest(Basic, _Conversed, _Templated, _Embedding, _OfChat):
    """A conversation to embed."""


class EmbeddingBatchChatRequest(Basic, _Templated, _Embedding, _OfChat):
    """Conversations to embed."""

    messages: Conversations


class EmbeddingChatInputRequest(EmbeddingChatRequest):
    """A conversation to embed, given twice."""

    input: Items[ChatMessage]


class EmbeddingBatchChatInputRequest(EmbeddingBatchChatRequest):
    """Conversations to embed, given twice."""

    input: Conversations


class EmbeddingBody(BodyOfOneKind):
    """The body of POST /v1/embeddings."""

    root: (
        Annotated[EmbeddingCompletionRequest, UNNAMED]
        | Annotated[EmbeddingChatRequest, UNNAMED]
        | Annotated[EmbeddingBatchChatRequest, UNNAMED]
        | Annotated[EmbeddingChatInputRequest, UNNAMED]
        | Annotated[EmbeddingBatchChatInputRequest, UNNAMED]
    ) = Field(union_mode="left_to_right")


_Task: TypeAlias = Literal["embed", "classify", "token_embed", "token_classify", "plugin", "embed&token_classify"]


class PoolingCompletionRequest(Basic, _Prompted, _Dimensioned, Encoded, _Activated, _OfText):
    """Texts or token ids to pool."""

    task: _Task | None = None


class PoolingChatRequest(Basic, _Conversed, _Templated, _Dimensioned, Encoded, _Activated, _OfChat):
    """A conversation to pool."""

    task: _Task | None = None


class IOProcessorRequest(Basic, Encoded):
    """Data that a plugin makes prompts of."""

    data: Any
    task: _Task = "plugin"


class PoolingBody(BodyOfOneKind):
    """The body of POST /pooling."""

    root: (
        Annotated[PoolingCompletionRequest, UNNAMED]
        | Annotated[PoolingChatRequest, UNNAMED]
        | Annotated[IOProcessorRequest, UNNAMED]
    ) = Field(union_mode="left_to_right")


class LateChunkingConfig(OpenObject):
    """Chunks of a text that are pooled apart."""

    model_config = ConfigDict(extra="forbid")

    chunk_size: Annotated[int, Field(gt=0, le=LARGEST_INT64)]


class TokenEmbeddingRequest(Basic, _Prompted, _Activated, _Dimensioned, Encoded, _OfText):
    """Texts or token ids of which every token is embedded."""

    encoding_format: Literal["float"] = "float"
    dimensions: None = None
    late_chunking_params: LateChunkingConfig | None = None


class ClassificationCompletionRequest(Basic, _Prompted, _Activated, _OfText):
    """Texts or token ids to classify."""


class ClassificationChatRequest(Basic, _Conversed, _Templated, _Activated, _OfChat):
    """A conversation to classify."""


class ClassificationBody(BodyOfOneKind):
    """The body of POST /classify."""

    root: Annotated[ClassificationCompletionRequest, UNNAMED] | Annotated[ClassificationChatRequest, UNNAMED] = Field(
        union_mode="left_to_right"
    )


class CohereEmbedContent(RequestObject):
    """A text, or a picture."""

    type: Literal["text", "image_url"]
    text: str | None = None
    image_url: Entries[str] | None = None

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if getattr(self, self.type) is None:
            raise ValueError(f"CohereEmbedContent with type={self.type!r} requires {self.type}")
        return self


class CohereEmbedInput(RequestObject):
    """Parts that are embedded together."""

    content: Items[CohereEmbedContent]


class CohereEmbedRequest(RequestObject):
    """The body of POST /v2/embed, in Cohere's form."""

    model: str | None = None
    input_type: str | None = None
    texts: Items[str] | None = None
    images: Items[str] | None = None
    inputs: Items[CohereEmbedInput] | None = None
    output_dimension: int | None = None
    embedding_types: Items[Literal["float", "binary", "ubinary", "base64"]] | None = None
    truncate: Literal["NONE", "START", "END"] = "END"
    max_tokens: int | None = None
    priority: Int64 = 0

    @model_validator(mode="after")
    def _check_inputs(self) -> Self:
        given = [each for each in (self.texts, self.images, self.inputs) if each is not None]
        if len(given) != 1 or not given[0]:
            raise ValueError("Exactly one of texts, images, or inputs must be provided, and it must be non-empty")
        return self

    @property
    def truncate_to(self) -> int | None:
        """Maximum number of tokens kept of a text; -1 for the whole context, None refuses longer texts."""
        if self.truncate == "NONE":
            return None
        return -1 if self.max_tokens is None else self.max_tokens


class ChatCompletionContentPartImageEmbedsParam(TypedDict):
    """A picture as an encoder has made it."""

    type: Literal["image_embeds"]


ScoredPart: TypeAlias = (
    ChatCompletionContentPartImageParam
    | ChatCompletionContentPartImageEmbedsParam
    | ChatCompletionContentPartTextParam
    | ChatCompletionContentPartVideoParam
)


class ScoreMultiModalParam(TypedDict):
    """Parts that are compared together."""

    content: Items[Annotated[ScoredPart, described_as_any_of(*(each.__name__ for each in get_args(ScoredPart)))]]


ScoreInput: TypeAlias = str | ScoreMultiModalParam
ScoreInputs: TypeAlias = str | ScoreMultiModalParam | Items[str | ScoreMultiModalParam]


class Scored(Basic, _Activated):
    """The fields of every request for scores."""

    max_tokens_per_query: int = 0
    max_tokens_per_doc: int = 0
    instruction: str | None = None
    chat_template_kwargs: FreeObject = None


class ScoreQueriesDocumentsRequest(Scored):
    """Queries and documents."""

    queries: ScoreInputs
    documents: ScoreInputs


class ScoreQueriesItemsRequest(Scored):
    """Queries and items."""

    queries: ScoreInputs
    items: ScoreInputs


class ScoreDataRequest(Scored):
    """Two lists of data."""

    data_1: ScoreInputs
    data_2: ScoreInputs


class ScoreTextRequest(Scored):
    """Two lists of texts."""

    text_1: ScoreInputs
    text_2: ScoreInputs


class ScoreBody(BodyOfOneKind):
    """The body of POST /score."""

    root: (
        Annotated[ScoreQueriesDocumentsRequest, UNNAMED]
        | Annotated[ScoreQueriesItemsRequest, UNNAMED]
        | Annotated[ScoreDataRequest, UNNAMED]
        | Annotated[ScoreTextRequest, UNNAMED]
    ) = Field(union_mode="left_to_right")


class RerankRequest(Scored):
    """A query, and documents to rank."""

    query: ScoreInput
    documents: ScoreInputs
    top_n: Annotated[int, Field(ge=0)] = 0
