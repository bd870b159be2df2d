"""The client mistake that is an internal error in vLLM, and so here."""

import json
from collections.abc import Mapping
from typing import Any


def is_vllms_own_error(body: Mapping[str, Any], reply: bytes) -> bool:
    """Whether a reply is vLLM's to `structured_outputs` that are no object."""
    kind = type(body.get("structured_outputs")).__name__
    error = {"message": f"'{kind}' object has no attribute 'get'", "type": "InternalServerError"}
    return bool(json.loads(reply) == {"error": {**error, "param": None, "code": 500}})
