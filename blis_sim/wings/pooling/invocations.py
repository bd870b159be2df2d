"""The types of bodies of pooling models that POST /invocations answers, in vLLM's order."""

from collections.abc import Sequence
from typing import get_args

from blis_sim.wings.pooling.bodies import ClassificationBody, EmbeddingBody, PoolingBody, ScoreBody
from blis_sim.wings.pooling.requests import parse_classify, parse_embeddings, parse_pooling
from blis_sim.wings.pooling.routes import classify, create_embedding, pooling
from blis_sim.wings.pooling.scoring import parse_rerank, parse_score, rerank, score
from mockserve.protocol.bodies import BodyOfOneKind
from mockserve.routes.invocations import InvocationUse
from mockserve.serving.model import RouteCondition

_FOLDER = "vllm.entrypoints.pooling"
_CHECKED = (
    "BeforeValidator(func=<function reject_removed_pooling_parameters>, json_schema_input_type=PydanticUndefined)"
)


def _types_of(module: str, body: type[BodyOfOneKind], is_checked: bool = True) -> str:
    """Return the types of a body in Python's spelling."""
    kinds = [get_args(each)[0].__name__ for each in get_args(body.model_fields["root"].annotation)]
    joined = " | ".join(f"{_FOLDER}.{module}.protocol.{name}" for name in kinds)
    return f"typing.Annotated[{joined}, {_CHECKED}]" if is_checked else joined


_EMBEDDING, _CLASSES = _types_of("embed", EmbeddingBody), _types_of("classify", ClassificationBody)
_SCORE, _POOLING = _types_of("scoring", ScoreBody, is_checked=False), _types_of("pooling", PoolingBody)
USES: Sequence[InvocationUse] = (
    InvocationUse(RouteCondition.EMBED, parse_embeddings, create_embedding, _EMBEDDING),
    InvocationUse(RouteCondition.CLASSIFY, parse_classify, classify, _CLASSES),
    InvocationUse(RouteCondition.SCORE, parse_rerank, rerank, "RerankRequest"),
    InvocationUse(RouteCondition.SCORE, parse_score, score, _SCORE),
    InvocationUse(RouteCondition.POOLING, parse_pooling, pooling, _POOLING),
)
