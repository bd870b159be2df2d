"""Requests of a frontend that want a vector instead of tokens: embeddings, classes, vectors of tokens and scores.

Facts: vllm/v1/pool/late_interaction_runner.py of release 0.33.
"""

from typing import TypeAlias, cast

import numpy as np

from blis_sim.wings.engine_core.messages import PoolingParams
from blis_sim.wings.pooling.pooler import Pooler, best_match_sum
from mockserve.protocol.errors import ApiError

MOST_QUERIES = 1000
"""Queries that are kept for documents that come after them; a new one forgets the oldest."""
Values: TypeAlias = "np.typing.NDArray[np.float32]"


class Pooling:
    """The results of a model that pools, for the requests of one rank."""

    def __init__(self, pooler: object) -> None:
        """`pooler` is None for a model that generates only."""
        self._pooler = cast(Pooler | None, pooler)
        self._queries: dict[str, list[int]] = {}

    def of(self, params: PoolingParams, token_ids: list[int]) -> Values:
        """Return the result for a prompt. Raises ApiError for a task that the model does not have."""
        pooler = self._pooler
        tasks = [] if pooler is None else list(pooler.tasks)
        if pooler is None or params.task not in tasks:
            raise ApiError(f"Unsupported task: {params.task!r} Supported tasks: {tasks}")
        activates = params.use_activation is not False
        if params.task == "embed":
            return pooler.embedding(token_ids, params.dimensions)
        if params.task == "classify":
            return pooler.classes(token_ids, activates)
        late = params.late_interaction_params
        if late is None:
            return pooler.pooled(token_ids, activates)
        if late.mode == "cache_query":
            if len(self._queries) >= MOST_QUERIES:
                del self._queries[next(iter(self._queries))]
            self._queries[late.query_key] = token_ids
            return np.zeros((), np.float32)
        query = self._queries.get(late.query_key)
        if query is None:
            raise ApiError("the query that a document is compared with has not come, or was forgotten")
        source = pooler.source
        return np.array(best_match_sum(source.of_tokens(query), source.of_tokens(token_ids)), np.float32)
