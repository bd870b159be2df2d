"""The types of bodies of pooling models that POST /invocations answers, in vLLM's order."""

from collections.abc import Sequence

from blis_sim.wings.pooling.requests import parse_classify, parse_embeddings, parse_pooling
from blis_sim.wings.pooling.routes import classify, create_embedding, pooling
from blis_sim.wings.pooling.scored import parse_rerank, parse_score
from blis_sim.wings.pooling.scoring import rerank, score
from mockserve.routes.invocations import InvocationUse
from mockserve.serving.model import RouteCondition

_FOLDER = "vllm.entrypoints.pooling"
_CHECKED = (
    "BeforeValidator(func=<function reject_removed_pooling_parameters>, json_schema_input_type=PydanticUndefined)"
)


def _union(module: str, *names: str, is_checked: bool = True) -> str:
    """Return the text of a union of request types in Python's spelling."""
    joined = " | ".join(f"{_FOLDER}.{module}.protocol.{name}" for name in names)
    return f"typing.Annotated[{joined}, {_CHECKED}]" if is_checked else joined


_EMBEDDING = _union(
    "embed",
    "EmbeddingCompletionRequest",
    "EmbeddingChatRequest",
    "EmbeddingBatchChatRequest",
    "EmbeddingChatInputRequest",
    "EmbeddingBatchChatInputRequest",
)
_SCORE = _union(
    "scoring",
    "ScoreQueriesDocumentsRequest",
    "ScoreQueriesItemsRequest",
    "ScoreDataRequest",
    "ScoreTextRequest",
    is_checked=False,
)
USES: Sequence[InvocationUse] = (
    InvocationUse(RouteCondition.EMBED, parse_embeddings, create_embedding, _EMBEDDING),
    InvocationUse(
        RouteCondition.CLASSIFY,
        parse_classify,
        classify,
        _union("classify", "ClassificationCompletionRequest", "ClassificationChatRequest"),
    ),
    InvocationUse(RouteCondition.SCORE, parse_rerank, rerank, "RerankRequest"),
    InvocationUse(RouteCondition.SCORE, parse_score, score, _SCORE),
    InvocationUse(
        RouteCondition.POOLING,
        parse_pooling,
        pooling,
        _union("pooling", "PoolingCompletionRequest", "PoolingChatRequest", "IOProcessorRequest"),
    ),
)
