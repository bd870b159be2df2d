"""The bodies of POST /v2/embed, in Cohere's form."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mockserve.protocol.errors import ApiError, Problem, bad_fields, bad_value
from mockserve.protocol.pooling.bodies import Vector
from mockserve.protocol.pooling.requests import MAX_INT64, check_body
from mockserve.protocol.reading.containers import ListOf, MapOf, Nullable, Record, ValidatedType
from mockserve.protocol.reading.types import Integer, OneOf, Text, as_integer

IMAGE_SCHEMES = ("http:", "https:", "data:", "file:")


def _part_error(part: Any) -> str | None:
    kind = part["type"]
    name = {"text": "text", "image_url": "image_url"}[kind]
    return None if part.get(name) is not None else f"CohereEmbedContent with type={kind!r} requires {name}"


_PART = ValidatedType(
    Record(
        {
            "type": OneOf(("text", "image_url")),
            "text": Nullable(Text()),
            "image_url": Nullable(MapOf(Text())),
        },
        ("type",),
    ),
    _part_error,
)
_EMBED = Record(
    {
        "model": Nullable(Text()),
        "input_type": Nullable(Text()),
        "texts": Nullable(ListOf(Text())),
        "images": Nullable(ListOf(Text())),
        "inputs": Nullable(ListOf(Record({"content": ListOf(_PART)}, ("content",)))),
        "output_dimension": Nullable(Integer()),
        "embedding_types": Nullable(ListOf(OneOf(("float", "binary", "ubinary", "base64")))),
        "truncate": OneOf(("NONE", "START", "END")),
        "max_tokens": Nullable(Integer()),
        "priority": Integer(at_least=-MAX_INT64 - 1, at_most=MAX_INT64),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CohereEmbedRequest:
    """Texts to embed. `texts` are repeated in the reply; `inputs` are texts joined from parts."""

    model: str
    texts: tuple[str, ...]
    echoes_texts: bool
    dimensions: int | None
    types: tuple[str, ...]
    truncate: str
    max_tokens: int | None

    @property
    def truncate_to(self) -> int | None:
        """Maximum number of tokens kept of a text; -1 for the whole context, None refuses longer texts."""
        if self.truncate == "NONE":
            return None
        return -1 if self.max_tokens is None else self.max_tokens


def parse_cohere_embed(body: dict[str, Any]) -> CohereEmbedRequest:
    """Parse the body. Raises ApiError for an invalid body, and for images."""
    check_body(body, (_EMBED,))
    given = [body[name] for name in ("texts", "images", "inputs") if body.get(name) is not None]
    if len(given) != 1 or not given[0]:
        reason = "Exactly one of texts, images, or inputs must be provided, and it must be non-empty"
        context = {"error": ValueError(reason)}
        raise bad_fields([Problem("value_error", "body", f"Value error, {reason}", body, context)])
    if body.get("input_type") is not None:
        raise ApiError(
            f"Unsupported input_type {body['input_type']!r}. "
            "This model does not define any input_type task instructions."
        )
    dimensions, max_tokens = body.get("output_dimension"), body.get("max_tokens")
    texts = body.get("texts")
    return CohereEmbedRequest(
        model=body.get("model") or "",
        texts=tuple(texts) if texts is not None else _joined_inputs(body),
        echoes_texts=texts is not None,
        dimensions=None if dimensions is None else as_integer(dimensions),
        types=tuple(body.get("embedding_types") or ("float",)),
        truncate=body.get("truncate", "END"),
        max_tokens=None if max_tokens is None else as_integer(max_tokens),
    )


def check_max_tokens(request: CohereEmbedRequest, max_model_len: int) -> None:
    """Raise ApiError for a `max_tokens` above the context length."""
    length = request.truncate_to
    if length is not None and length > max_model_len:
        raise bad_value(
            f"truncate_prompt_tokens={length} cannot be greater than max_model_len = {max_model_len}. "
            "Please request a smaller truncation size.",
            "truncate_prompt_tokens",
            length,
        )


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
    embeddings = {kind: _as(kind, vectors) for kind in order if kind in request.types}
    body: dict[str, Any] = {"id": reply_id, "embeddings": embeddings}
    if request.echoes_texts:
        body["texts"] = list(request.texts)
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


def _joined_inputs(body: dict[str, Any]) -> tuple[str, ...]:
    for image in body.get("images") or ():
        raise _refused_image(image)
    return tuple(_input_text(each) for each in body["inputs"])


def _input_text(given: dict[str, Any]) -> str:
    parts = given["content"]
    for each in parts:
        if each["type"] != "text":
            raise _refused_image(each["image_url"].get("url", ""))
    return "\n".join(each["text"] for each in parts)


def _refused_image(url: str) -> ApiError:
    if not url.startswith(IMAGE_SCHEMES):
        return ApiError("The URL must be either a HTTP, data or file URL.")
    return ApiError("images are not supported by a text model")
