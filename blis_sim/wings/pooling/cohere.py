"""The bodies of POST /v2/embed, in Cohere's form."""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from blis_sim.wings.pooling.bodies import CohereEmbedInput, CohereEmbedRequest
from blis_sim.wings.pooling.replies import Vector
from mockserve.protocol.bodies import read_as
from mockserve.protocol.errors import ApiError

IMAGE_SCHEMES = ("http:", "https:", "data:", "file:")


def parse_cohere_embed(body: dict[str, Any]) -> tuple[CohereEmbedRequest, list[str]]:
    """Return the body and its texts. Raises ApiError for an invalid body, and for images."""
    request = read_as(CohereEmbedRequest, body)
    if request.input_type is not None:
        raise ApiError(
            f"Unsupported input_type {request.input_type!r}. "
            "This model does not define any input_type task instructions."
        )
    for image in request.images or ():
        raise _refused_image(image)
    return request, request.texts or [_input_text(each) for each in request.inputs or ()]


def check_lengths(request: CohereEmbedRequest, lengths: Sequence[int]) -> None:
    """Raise ApiError for a text longer than `max_tokens` when truncation is off."""
    if request.truncate != "NONE" or request.max_tokens is None:
        return
    for length in lengths:
        if length > request.max_tokens:
            raise ApiError(
                f"Input of {length} tokens exceeds max_tokens={request.max_tokens} with truncate=NONE. "
                "Set truncate to END or START to allow truncation."
            )


def cohere_embeddings(
    reply_id: str, request: CohereEmbedRequest, vectors: Sequence[Vector], prompt_tokens: int
) -> dict[str, Any]:
    """Return the reply. Raises ApiError for binary vectors whose size is not a multiple of 8."""
    order = ("float", "binary", "ubinary", "base64")
    embeddings = {kind: _as(kind, vectors) for kind in order if kind in (request.embedding_types or ["float"])}
    body: dict[str, Any] = {"id": reply_id, "embeddings": embeddings}
    if request.texts is not None:
        body["texts"] = request.texts
    units = {"input_tokens": prompt_tokens, "image_tokens": 0}
    body["meta"] = {"api_version": {"version": "2"}, "billed_units": units}
    return {**body, "response_type": "embeddings_by_type"}


def _as(kind: str, vectors: Sequence[Vector]) -> list[Any]:
    if kind == "float":
        return [each.tolist() for each in vectors]
    if kind == "base64":
        return [base64.b64encode(each.astype("<f4").tobytes()).decode() for each in vectors]
    size = len(vectors[0])
    if size % 8:
        raise ApiError(f"Embedding dimension must be a multiple of 8 for binary embedding types, but got {size}.")
    bits = np.packbits(np.stack(vectors) >= 0, axis=-1).astype(np.int16)
    rows: list[Any] = (bits - 128 if kind == "binary" else bits).tolist()
    return rows


def _input_text(given: CohereEmbedInput) -> str:
    for each in given.content:
        if each.type != "text":
            raise _refused_image((each.image_url or {}).get("url", ""))
    return "\n".join(each.text or "" for each in given.content)


def _refused_image(url: str) -> ApiError:
    if not url.startswith(IMAGE_SCHEMES):
        return ApiError("The URL must be either a HTTP, data or file URL.")
    return ApiError("images are not supported by a text model")
