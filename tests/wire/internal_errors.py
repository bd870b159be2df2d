"""Client mistakes that are internal errors in vLLM, and therefore also in this server."""

import json
from collections.abc import Mapping
from typing import Any


def is_vllms_own_error(body: Mapping[str, Any], reply: bytes) -> bool:
    """Whether a reply is vLLM's to `structured_outputs` that are no object, or to an answer without content."""
    messages = [f"'{type(body.get('structured_outputs')).__name__}' object has no attribute 'get'"]
    items = body.get("input")
    if isinstance(items, list) and any(isinstance(each, dict) and each.get("content") == [] for each in items):
        messages.append("list index out of range")
    errors = [{"message": each, "type": "InternalServerError", "param": None, "code": 500} for each in messages]
    return json.loads(reply) in [{"error": each} for each in errors]
