"""JSON as vLLM writes it: compact, in UTF-8."""

import json
from typing import Any

import orjson


def compact_json(value: Any) -> bytes:
    """`value` without spaces, keys in their order. Arrays become lists, their numbers as short as their type allows."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        # Text with half a surrogate pair, which a client may send, has no UTF-8 and must be escaped.
        return json.dumps(value, separators=(",", ":")).encode()
