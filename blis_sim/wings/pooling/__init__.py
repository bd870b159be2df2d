"""Pooling models: embeddings, classes, scores and rankings.

`blis serve` loads this package by its entry point in `blis.routes` for a model that pools.
"""

from collections.abc import Sequence

from pydantic import BaseModel

from blis_sim.wings.pooling.pooler import new_pooler
from mockserve.routes.invocations import InvocationUse
from mockserve.routes.table import Route
from mockserve.serving.model import RouteCondition

_ROUTES, _SCORING = f"{__name__}.routes", f"{__name__}.scoring"

new_state = new_pooler
"""Returns what the routes share."""

ROUTES: Sequence[Route] = (
    Route("POST", "/v1/embeddings", f"{_ROUTES}:create_embedding", RouteCondition.EMBED),
    Route("POST", "/v1/embeddings", f"{_ROUTES}:create_token_embedding", RouteCondition.TOKEN_EMBED),
    Route("POST", "/v2/embed", f"{_ROUTES}:cohere_embed", RouteCondition.EMBED),
    Route("POST", "/pooling", f"{_ROUTES}:pooling", RouteCondition.POOLING),
    Route("POST", "/classify", f"{_ROUTES}:classify", RouteCondition.CLASSIFY),
    Route("POST", "/score", f"{_SCORING}:score", RouteCondition.SCORE),
    Route("POST", "/v1/score", f"{_SCORING}:score", RouteCondition.SCORE),
    Route("POST", "/rerank", f"{_SCORING}:rerank", RouteCondition.SCORE),
    Route("POST", "/v1/rerank", f"{_SCORING}:rerank", RouteCondition.SCORE),
    Route("POST", "/v2/rerank", f"{_SCORING}:rerank", RouteCondition.SCORE),
)
"""The routes of pooling models; of two enabled rows with equal paths, the first row answers."""


def body_models() -> Sequence[type[BaseModel]]:
    """Return the models of bodies, for the OpenAPI document."""
    from blis_sim.wings.pooling import bodies as models  # many types, which no server needs to start

    return (
        models.ClassificationBody,
        models.CohereEmbedRequest,
        models.EmbeddingBody,
        models.PoolingBody,
        models.RerankRequest,
        models.ScoreBody,
        models.TokenEmbeddingRequest,
    )


def invocation_uses() -> Sequence[InvocationUse]:
    """Return the types of bodies that POST /invocations answers."""
    from blis_sim.wings.pooling.invocations import USES

    return USES
