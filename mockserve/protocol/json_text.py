"""JSON as vLLM writes it: compact, in UTF-8."""

import json
from typing import Any

import orjson

from mockserve.protocol.errors import ApiError


def compact_json(value: Any) -> bytes:
    """`value` without spaces, keys in their order. Arrays become lists, their numbers as short as their type allows."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        # Text with half a surrogate pair, which a client may send, has no UTF-8 and must be escaped.
        return json.dumps(value, separators=(",", ":")).encode()


def reply_json(value: Any) -> bytes:
    """`value` as the body of a whole reply. Raises ApiError for what cannot be sent, as vLLM does."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:  # half a surrogate pair, integers of more than 64 bits, more than 254 lists within lists
        return _lenient_json(value)


def _lenient_json(value: Any) -> bytes:
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=_as_list).encode()
    except UnicodeEncodeError as error:
        raise ApiError(str(error)) from None
    except RecursionError:
        raise ApiError("Maximum serialization depth exceeded") from None


def _as_list(value: Any) -> Any:
    """An array of numbers as a list."""
    return value.tolist()
