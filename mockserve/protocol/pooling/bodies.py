"""Replies of pooling models, field for field in vLLM's order."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mockserve.protocol.bodies import Usage
from mockserve.protocol.json_text import JsonBlocks
from mockserve.protocol.pooling.vectors import Encoding, Vector


@dataclass(frozen=True, slots=True)
class PoolingHead:
    """What every reply of a pooling model begins with."""

    id: str
    created: int
    model: str

    def listing(self, data: Sequence[Mapping[str, Any]] | JsonBlocks, prompt_tokens: int) -> dict[str, Any]:
        """A list of results."""
        return {
            "id": self.id,
            "object": "list",
            "created": self.created,
            "model": self.model,
            "data": data,
            "usage": Usage(prompt_tokens, 0).full(),
        }


def embedding_items(vectors: Iterable[Vector], encoding: Encoding) -> Iterator[dict[str, Any]]:
    """The results of POST /v1/embeddings."""
    for index, vector in enumerate(vectors):
        yield {"index": index, "object": "embedding", "embedding": encoding.json_value(vector)}


def pooling_items(vectors: Iterable[Vector], encoding: Encoding) -> Iterator[dict[str, Any]]:
    """The results of POST /pooling."""
    for index, vector in enumerate(vectors):
        yield {"index": index, "object": "pooling", "data": encoding.json_value(vector)}


def class_items(probabilities: Iterable[Vector], labels: Mapping[int, str]) -> Iterator[dict[str, Any]]:
    """The results of POST /classify: probabilities, and the label of the largest."""
    for index, each in enumerate(probabilities):
        yield {
            "index": index,
            "label": labels.get(int(each.argmax())),
            "probs": each.tolist(),
            "num_classes": len(each),
        }


def score_items(scores: Sequence[float]) -> list[dict[str, Any]]:
    """The results of POST /score."""
    return [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)]


def reranked(
    head: PoolingHead, documents: Sequence[Any], scores: Sequence[float], top_n: int, prompt_tokens: int
) -> dict[str, Any]:
    """The reply of POST /rerank: the best first, at most `top_n`, or all for 0."""
    best_first = sorted(range(len(scores)), key=lambda index: -scores[index])
    results = [
        {"index": index, "document": _shown(documents[index]), "relevance_score": scores[index]} for index in best_first
    ]
    return {
        "id": head.id,
        "model": head.model,
        "usage": {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens},
        "results": results[:top_n] if top_n else results,
    }


def _shown(document: Any) -> dict[str, Any]:
    if isinstance(document, str):
        return {"text": document, "multi_modal": None}
    return {"text": None, "multi_modal": document.get("content", [])}
