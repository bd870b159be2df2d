"""The model list."""

from collections.abc import Sequence
from typing import Any


def model_list(names: Sequence[str], root: str, max_model_len: int, created: int, permission_id: str) -> dict[str, Any]:
    """One card per served name. `permission_id` is what follows `modelperm-`."""
    cards = [_card(name, root, max_model_len, created, permission_id) for name in names]
    return {"object": "list", "data": cards}


def _card(name: str, root: str, max_model_len: int, created: int, permission_id: str) -> dict[str, Any]:
    permission = {
        "id": f"modelperm-{permission_id}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": root,
        "parent": None,
        "max_model_len": max_model_len,
        "permission": [permission],
    }
