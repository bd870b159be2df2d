"""Replies of the pooling routes, and their vectors as vLLM encodes them."""

import base64
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mockserve.protocol.bodies import Usage
from mockserve.protocol.json_text import JsonBlocks

Vector: TypeAlias = npt.NDArray[np.float32]
"""One embedding, or one row per token."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """The requested encoding of vectors, in vLLM's terms."""

    form: str = "float"
    dtype: str = "float32"
    endianness: str = "native"

    @property
    def is_binary(self) -> bool:
        """Whether the reply is bytes rather than JSON."""
        return self.form in ("bytes", "bytes_only")

    def json_value(self, vector: Vector) -> list[Any] | str:
        """Return a vector as a value for a JSON reply."""
        if self.form == "float":
            values: list[Any] = vector.tolist()
            return values
        return base64.b64encode(self.packed(vector)).decode()

    def packed(self, vector: Vector) -> bytes:
        """Return a vector as bytes of the requested type and order."""
        numbers = _as_type(vector, self.dtype)
        swaps = self.endianness not in ("native", sys.byteorder)
        return (numbers.byteswap() if swaps else numbers).tobytes()


def bytes_metadata(encoding: Encoding, vectors: Iterable[Vector], head: dict[str, Any], prompt_tokens: int) -> str:
    """Return the header with the position of each vector in the bytes. `head` are id, created and model."""
    items, offset = [], 0
    for index, vector in enumerate(vectors):
        end = offset + len(encoding.packed(vector))
        place = {"embed_dtype": encoding.dtype, "endianness": encoding.endianness, "start": offset, "end": end}
        items.append({"index": index, **place, "shape": list(vector.shape)})
        offset = end
    usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
    return json.dumps({**head, "data": items, "usage": usage})


def _as_type(vector: Vector, dtype: str) -> npt.NDArray[Any]:
    if dtype in ("float32", "float16"):
        return np.ascontiguousarray(vector, dtype=dtype)
    bits = np.ascontiguousarray(vector, dtype=np.float32).view(np.uint32)
    if dtype == "bfloat16":
        # Round to the nearest, ties to even: what is cut off decides.
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return _as_fp8(vector, exponent_bits=4 if dtype == "fp8_e4m3" else 5)


def _as_fp8(vector: Vector, exponent_bits: int) -> npt.NDArray[np.uint8]:
    """Return eight-bit floats: the code of the nearest value of the format, for numbers within its range."""
    mantissa_bits = 7 - exponent_bits
    bias = 2 ** (exponent_bits - 1) - 1
    codes = np.arange(2**7, dtype=np.int64)
    exponents, mantissas = codes >> mantissa_bits, codes & (2**mantissa_bits - 1)
    fractions = mantissas / 2**mantissa_bits
    values = np.where(exponents == 0, fractions * 2.0 ** (1 - bias), (1 + fractions) * 2.0 ** (exponents - bias))
    # The highest codes stand for infinity and what is no number.
    values = values[:0x7C] if exponent_bits == 5 else values[:0x7F]
    magnitudes = np.abs(np.asarray(vector, dtype=np.float64))
    above = np.clip(np.searchsorted(values, magnitudes), 1, len(values) - 1)
    middle = (values[above - 1] + values[above]) / 2
    is_lower = (magnitudes < middle) | ((magnitudes == middle) & (above % 2 == 1))
    nearest = np.where(is_lower, above - 1, above)
    signs = np.signbit(vector).astype(np.int64) << 7
    return np.asarray(nearest | signs, dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class PoolingHead:
    """Fields at the beginning of every reply of a pooling model."""

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
    """Return the results of POST /classify: probabilities, and the label of the largest."""
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


def rerank_reply(
    head: PoolingHead, documents: Sequence[Any], scores: Sequence[float], top_n: int, prompt_tokens: int
) -> dict[str, Any]:
    """Return the reply of POST /rerank: the best documents first, at most `top_n`, or all for 0."""
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
